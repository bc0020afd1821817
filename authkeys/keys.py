"""
The accepted API keys, as keyed digests.

A presented key is digested with the salt of the state directory, looked up by its digest, and compared once in constant
time. Without the salt a caller can neither predict a digest nor steer the look-up, so the response time reveals neither
the number of keys nor a near match.
"""

import hmac
from collections.abc import Iterable, Mapping
from typing import Any, Self

from authkeys.principal import Principal
from runtimeconf.secret import Secret

#: Hexadecimal digits of a fingerprint: 48 bits keep 10,000 keys apart and reveal none of them.
FINGERPRINT_DIGITS = 12

# Domain separation: without it a fingerprint would be the beginning of a look-up digest.
_LOOKUP = b"api key look-up\0"
_FINGERPRINT = b"api key fingerprint\0"


class KeySet:
    """
    The accepted keys. It keeps digests only: no key can be recovered from it.

    Args:
        keys: The keys, each as its exact text. A repeated key counts once; an empty one never matches.
        salt: Secret bytes, the same in all processes of one runtime.
    """

    __slots__ = ("_keys", "_lookup", "_salt")

    def __init__(self, keys: Iterable[Secret], salt: bytes) -> None:
        self._salt = salt
        # The salt and the domain are digested once; each look-up continues from a copy.
        self._lookup = hmac.new(salt, _LOOKUP, "sha256")
        self._keys: dict[bytes, tuple[bytes, Principal]] = {}
        for key in keys:
            text = key.reveal()
            if text:
                fingerprint = hmac.digest(salt, _FINGERPRINT + _encoded(text), "sha256").hex()[:FINGERPRINT_DIGITS]
                self._add(self._digest(text), fingerprint)

    @classmethod
    def from_handover(cls, fields: Mapping[str, Any]) -> Self:
        """Return the key set that `handover` described as *fields* in another process."""
        key_set = cls((), bytes.fromhex(fields["salt"]))
        for digest, fingerprint in fields["keys"]:
            key_set._add(bytes.fromhex(digest), fingerprint)
        return key_set

    def handover(self) -> dict[str, Any]:
        """Return what another process needs to find the same keys, as JSON types: salt and digests in hex."""
        keys = [[digest.hex(), principal.fingerprint] for digest, principal in self._keys.values()]
        return {"salt": self._salt.hex(), "keys": keys}

    def find(self, presented: str) -> Principal | None:
        """Return the principal of the key *presented*, or None. Any text is allowed."""
        digest = self._digest(presented)
        # Compare an unknown digest with itself, so that both outcomes take one comparison.
        expected, principal = self._keys.get(digest, (digest, None))
        return principal if hmac.compare_digest(digest, expected) else None

    def fingerprints(self) -> tuple[str, ...]:
        """Return the fingerprint of each distinct key, in the order of the configuration."""
        return tuple(principal.fingerprint for _, principal in self._keys.values())

    def __len__(self) -> int:
        return len(self._keys)

    def _add(self, digest: bytes, fingerprint: str) -> None:
        self._keys[digest] = (digest, Principal(fingerprint))

    def _digest(self, text: str) -> bytes:
        digest = self._lookup.copy()
        digest.update(_encoded(text))
        return digest.digest()


def _encoded(text: str) -> bytes:
    # A header may hold any bytes, which arrive as lone surrogates if they are not valid text.
    return text.encode("utf-8", "surrogatepass")

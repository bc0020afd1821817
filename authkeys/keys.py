"""
The accepted API keys, as keyed digests.

The SHA-256 of a presented key is digested with the salt from the state directory. The result is used for the lookup and
compared once in constant time. Without the salt a caller can neither predict a digest nor steer the lookup, so the
response time reveals neither the number of keys nor a near match. The configuration can contain the SHA-256 of a key
instead of the key.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import Any, Self

from authkeys.principal import Principal
from runtimeconf.model import NamedKey
from runtimeconf.secret import Secret

#: The number of hexadecimal digits in a fingerprint: 48 bits distinguish 10,000 keys and reveal none of them.
FINGERPRINT_DIGITS = 12

# Domain separation. Without it, a fingerprint would be the start of a lookup digest.
_LOOKUP = b"api key look-up\0"
_FINGERPRINT = b"api key fingerprint\0"


class KeySet:
    """
    The accepted keys, stored as digests from which no key can be recovered.

    Args:
        keys: The unnamed keys as exact text. An empty key never matches.
        salt: Secret bytes, the same in all processes of one runtime.
        named: The named keys. If a key is listed more than once, the first item applies, and an unnamed key takes
            precedence over named ones.
    """

    __slots__ = ("_keys", "_lookup", "_salt")

    def __init__(self, keys: Iterable[Secret], salt: bytes, named: Iterable[NamedKey] = ()) -> None:
        self._salt = salt
        # The salt and the domain are digested once. Each lookup continues from a copy.
        self._lookup = hmac.new(salt, _LOOKUP, "sha256")
        self._keys: dict[bytes, tuple[bytes, Principal]] = {}
        for key in keys:
            if text := key.reveal():
                self._accept(_sha256(text))
        for item in named:
            self._accept(
                item.sha256 if item.key is None else _sha256(item.key.reveal()),
                name=item.name,
                expires_at=None if item.expires_at is None else item.expires_at.timestamp(),
                scope=item.scope,
                rights=item.rights,
                limits=item.limits,
            )

    @classmethod
    def from_handover(cls, fields: Mapping[str, Any]) -> Self:
        """Return the key set from *fields*, which `handover` returned in another process."""
        key_set = cls((), bytes.fromhex(fields["salt"]))
        for digest, principal in fields["keys"]:
            key_set._add(bytes.fromhex(digest), Principal.from_handover(principal))
        return key_set

    def handover(self) -> dict[str, Any]:
        """Return the salt and digests in hex as JSON types, for `from_handover` in another process."""
        keys = [[digest.hex(), principal.handover()] for digest, principal in self._keys.values()]
        return {"salt": self._salt.hex(), "keys": keys}

    def find(self, presented: str) -> Principal | None:
        """Return the principal of the key *presented*, or None. Any text is allowed."""
        digest = self._digest(_sha256(presented))
        # Compare an unknown digest with itself, so that hits and misses both take one comparison.
        expected, principal = self._keys.get(digest, (digest, None))
        return principal if hmac.compare_digest(digest, expected) else None

    def principals(self) -> tuple[Principal, ...]:
        """Return the principal of each distinct key, in configuration order."""
        return tuple(principal for _, principal in self._keys.values())

    def fingerprints(self) -> tuple[str, ...]:
        """Return the fingerprint of each distinct key, in configuration order."""
        return tuple(principal.fingerprint for principal in self.principals())

    def __len__(self) -> int:
        return len(self._keys)

    def _accept(self, sha256: bytes | None, **fields: Any) -> None:
        if sha256 is None:
            raise ValueError("A named key has neither a text nor a digest.")
        fingerprint = hmac.digest(self._salt, _FINGERPRINT + sha256, "sha256").hex()[:FINGERPRINT_DIGITS]
        self._add(self._digest(sha256), Principal(fingerprint=fingerprint, **fields))

    def _add(self, digest: bytes, principal: Principal) -> None:
        self._keys.setdefault(digest, (digest, principal))

    def _digest(self, sha256: bytes) -> bytes:
        digest = self._lookup.copy()
        digest.update(sha256)
        return digest.digest()


def _sha256(text: str) -> bytes:
    # A header can contain any bytes. Bytes that are not valid text arrive as lone surrogates.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()

"""
The accepted API keys, as keyed digests.

A presented key is digested with the salt of the state directory, looked up by that digest, and compared once in
constant time. A caller without the salt can neither predict a digest nor steer the look-up, so the time that an answer
takes shows neither how many keys there are nor which one came near.
"""

from __future__ import annotations

import enum
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from runtimeconf.secret import Secret

#: Hexadecimal digits of a fingerprint: 48 bits keep 10,000 keys apart and lead back to none of them.
FINGERPRINT_DIGITS = 12

# Two uses of one salt must never give the same digest, or a fingerprint would be the start of a look-up digest.
_LOOKUP = b"api key look-up\0"
_FINGERPRINT = b"api key fingerprint\0"


class AccessLevel(enum.Enum):
    """What a key allows."""

    READ = "read"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """
    An accepted key as the rest of the runtime may know it.

    `fingerprint` is the same in every process that shares the state directory, and is safe to log.
    """

    fingerprint: str
    access: AccessLevel = AccessLevel.READ


class KeySet:
    """
    The accepted keys. No key can be read out of it: it keeps digests only.

    Args:
        keys: The keys, each as its exact text. A key that is there twice counts once; an empty one never matches.
        salt: Secret bytes; all processes of one runtime use the same.
    """

    __slots__ = ("_keys", "_lookup", "_salt")

    def __init__(self, keys: Iterable[Secret], salt: bytes) -> None:
        self._salt = salt
        # Salt and domain are digested once; a key that is presented goes on from there.
        self._lookup = hmac.new(salt, _LOOKUP, "sha256")
        self._keys: dict[bytes, tuple[bytes, ApiKey]] = {}
        for key in keys:
            text = key.reveal()
            if text:
                digest = self._digest(text)
                fingerprint = hmac.digest(salt, _FINGERPRINT + _encoded(text), "sha256").hex()[:FINGERPRINT_DIGITS]
                self._keys[digest] = (digest, ApiKey(fingerprint))

    @classmethod
    def from_handover(cls, fields: Mapping[str, Any]) -> Self:
        """Return the key set of another process that `handover` gave these *fields*."""
        key_set = cls((), bytes.fromhex(fields["salt"]))
        for text, fingerprint in fields["keys"]:
            digest = bytes.fromhex(text)
            key_set._keys[digest] = (digest, ApiKey(fingerprint))
        return key_set

    def handover(self) -> dict[str, Any]:
        """Return all that another process needs to find the same keys, fit for JSON: salt and digests, in hex."""
        keys = [[digest.hex(), key.fingerprint] for digest, key in self._keys.values()]
        return {"salt": self._salt.hex(), "keys": keys}

    def find(self, presented: str) -> ApiKey | None:
        """Return the accepted key that *presented* is, or None. Any text may be asked for."""
        digest = self._digest(presented)
        # An unknown digest is compared too: with itself, so that both ways take one comparison.
        expected, key = self._keys.get(digest, (digest, None))
        return key if hmac.compare_digest(digest, expected) else None

    def fingerprints(self) -> tuple[str, ...]:
        """Return the fingerprint of each distinct key, in the order of the configuration."""
        return tuple(key.fingerprint for _, key in self._keys.values())

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"<KeySet of {len(self)}>"

    def _digest(self, text: str) -> bytes:
        digest = self._lookup.copy()
        digest.update(_encoded(text))
        return digest.digest()


def _encoded(text: str) -> bytes:
    # A header may hold any bytes: what came in as a lone surrogate is digested like the rest.
    return text.encode("utf-8", "surrogatepass")

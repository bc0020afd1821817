"""Who calls, as views see it: `request.user`."""

from __future__ import annotations

from dataclasses import dataclass

from authkeys.keys import AccessLevel, ApiKey


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller. `fingerprint` names the key in logs and is empty when authentication is off."""

    fingerprint: str
    access: AccessLevel

    @classmethod
    def of(cls, key: ApiKey) -> Principal:
        """Return the caller that presented *key*."""
        return cls(fingerprint=key.fingerprint, access=key.access)


#: Every caller while authentication is off.
ANONYMOUS = Principal(fingerprint="", access=AccessLevel.READ)

"""The authenticated caller. Views see it as `request.user`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """
    A caller with an accepted key.

    `fingerprint` identifies the key. It is the same in every process that shares the state directory, is safe to log,
    and is empty while authentication is off.
    """

    fingerprint: str


#: Every caller while authentication is off.
ANONYMOUS = Principal(fingerprint="")

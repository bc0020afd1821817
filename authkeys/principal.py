"""The authenticated caller. Views see it as `request.user`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from authkeys.errors import NotPermittedError
from runtimeconf.model import KeyLimits, Right

ALL_RIGHTS: frozenset[Right] = frozenset({"query", "refresh"})
NO_LIMITS = KeyLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """
    A caller with an accepted key.

    `fingerprint` identifies the key. It is the same in every process that shares the state directory, is safe to log,
    and is empty while authentication is off. `name` is empty for a key without one. The key is refused from
    `expires_at` on, in seconds since 1970 in UTC. `datasets` are the datasets and views that it may name, in lower
    case; None means all.
    """

    fingerprint: str
    name: str = ""
    expires_at: float | None = None
    datasets: frozenset[str] | None = None
    rights: frozenset[Right] = ALL_RIGHTS
    limits: KeyLimits = NO_LIMITS

    def require(self, right: Right) -> None:
        """
        Check that the caller has *right*.

        Raises:
            NotPermittedError: It has not.
        """
        if right not in self.rights:
            raise NotPermittedError(right)

    def may_name(self, relation: str) -> bool:
        """Return whether *relation*, a dataset or view, exists for the caller."""
        return self.datasets is None or relation.lower() in self.datasets

    def handover(self) -> dict[str, Any]:
        """Return what `from_handover` needs in another process, as JSON types."""
        return {
            "fingerprint": self.fingerprint,
            "name": self.name,
            "expires_at": self.expires_at,
            "datasets": None if self.datasets is None else sorted(self.datasets),
            "rights": sorted(self.rights),
            "limits": {name: getattr(self.limits, name) for name in KeyLimits.__slots__},
        }

    @classmethod
    def from_handover(cls, fields: Mapping[str, Any]) -> Self:
        """Return the principal that `handover` described as *fields*."""
        datasets = fields["datasets"]
        return cls(
            fingerprint=fields["fingerprint"],
            name=fields["name"],
            expires_at=fields["expires_at"],
            datasets=None if datasets is None else frozenset(datasets),
            rights=frozenset(fields["rights"]),
            limits=KeyLimits(**fields["limits"]),
        )


#: Every caller while authentication is off.
ANONYMOUS = Principal(fingerprint="")

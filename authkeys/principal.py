"""The authenticated caller. Views see it as `request.user`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from authkeys.errors import NotPermittedError
from runtimeconf.model import DatasetRule, KeyLimits, Right, Scope

ALL_RIGHTS: frozenset[Right] = frozenset({"query", "refresh"})
NO_LIMITS = KeyLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """
    A caller with an accepted key.

    `fingerprint` identifies the key. It is the same in every process that shares the state directory, is safe to log,
    and is empty while authentication is off. `name` is empty for a key without one. The key is refused from
    `expires_at` on, in seconds since 1970 in UTC. `scope` is what it may see; None means everything.
    """

    fingerprint: str
    name: str = ""
    expires_at: float | None = None
    scope: Scope | None = None
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
        return self.scope is None or relation.lower() in self.scope.relations

    def rule_of(self, dataset: str) -> DatasetRule | None:
        """Return what limits the rows, columns and values of *dataset* for the caller; None if nothing does."""
        return next((rule for rule in self.rules if rule.dataset == dataset.lower()), None)

    @property
    def rules(self) -> tuple[DatasetRule, ...]:
        """What limits the rows, columns and values of datasets for the caller."""
        return () if self.scope is None else self.scope.rules

    def handover(self) -> dict[str, Any]:
        """Return what `from_handover` needs in another process, as JSON types."""
        return {
            "fingerprint": self.fingerprint,
            "name": self.name,
            "expires_at": self.expires_at,
            "scope": None
            if self.scope is None
            else [sorted(self.scope.relations), [asdict(rule) for rule in self.scope.rules]],
            "rights": sorted(self.rights),
            "limits": {name: getattr(self.limits, name) for name in KeyLimits.__slots__},
        }

    @classmethod
    def from_handover(cls, fields: Mapping[str, Any]) -> Self:
        """Return the principal that `handover` described as *fields*."""
        scope = fields["scope"]
        return cls(
            fingerprint=fields["fingerprint"],
            name=fields["name"],
            expires_at=fields["expires_at"],
            scope=None if scope is None else Scope(relations=frozenset(scope[0]), rules=tuple(map(_rule, scope[1]))),
            rights=frozenset(fields["rights"]),
            limits=KeyLimits(**fields["limits"]),
        )


def _rule(fields: Mapping[str, Any]) -> DatasetRule:
    """Return the rule whose fields passed through JSON."""
    columns = fields["columns"]
    masks = tuple((column, sql) for column, sql in fields["masks"])
    return DatasetRule(**{**fields, "columns": None if columns is None else tuple(columns), "masks": masks})


#: Every caller while authentication is off.
ANONYMOUS = Principal(fingerprint="")

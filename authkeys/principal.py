"""The authenticated caller. Views see it as `request.user`."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Self

from msgspec import Struct

from authkeys.errors import NotPermittedError
from runtimeconf.model import DatasetRule, KeyLimits, Right, Scope

ALL_RIGHTS: frozenset[Right] = frozenset({"query", "refresh"})
NO_LIMITS = KeyLimits()


class Principal(Struct, frozen=True, kw_only=True):
    """
    A caller with an accepted key.

    `fingerprint` identifies the key. It is the same in every process that shares the state directory, is safe to log,
    and is empty while authentication is off. `name` is empty for an unnamed key. `expires_at` is in seconds since 1970
    in UTC; from then on, the key is refused. `scope` is the part of the data that the caller may see; None means
    everything.
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
            NotPermittedError: The caller does not have *right*.
        """
        if right not in self.rights:
            raise NotPermittedError(right)

    def may_name(self, relation: str) -> bool:
        """Return True if the caller may know of *relation*, a dataset or view."""
        return self.scope is None or relation.lower() in self.scope.relations

    def rule_of(self, dataset: str) -> DatasetRule | None:
        """Return the rule that limits the caller's view of *dataset*; None if the caller sees all of it."""
        return next((rule for rule in self.rules if rule.dataset == dataset.lower()), None)

    @property
    def rules(self) -> tuple[DatasetRule, ...]:
        """The rules that limit the rows, columns and values that the caller sees."""
        return () if self.scope is None else self.scope.rules

    def handover(self) -> dict[str, Any]:
        """Return the arguments of `from_handover` for another process, as JSON types."""
        return {
            "fingerprint": self.fingerprint,
            "name": self.name,
            "expires_at": self.expires_at,
            "scope": None
            if self.scope is None
            else [sorted(self.scope.relations), [asdict(rule) for rule in self.scope.rules]],
            "rights": sorted(self.rights),
            "limits": {name: getattr(self.limits, name) for name in KeyLimits.__struct_fields__},
        }

    @classmethod
    def from_handover(cls, fields: Mapping[str, Any]) -> Self:
        """Return the principal from *fields*, a result of `handover`."""
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
    """Rebuild a rule from fields that have passed through JSON."""
    columns = fields["columns"]
    masks = tuple((column, sql) for column, sql in fields["masks"])
    return DatasetRule(**{**fields, "columns": None if columns is None else tuple(columns), "masks": masks})


#: The principal of every caller while authentication is off.
ANONYMOUS = Principal(fingerprint="")

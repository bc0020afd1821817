"""
The catalog of a key with rules or plain views, which defines what such a key sees under the declared names.

Statements of the key run in this catalog instead of `runtime`, so a name cannot refer to the whole dataset.
"""

from collections.abc import Mapping

from msgspec import Struct

from runtimeconf.model import DatasetRule


class GatedRule(Struct, frozen=True, kw_only=True):
    """
    A rule whose SQL was admitted by the gate. If `error` is set, the SQL was refused and the dataset is unavailable.

    `relations` are the datasets and views that the rule reads, including its own dataset. A rule that is not
    `deterministic` also depends on the time. `macros` are the macros that the rule calls. `columns` and `uncast`
    are from `rule_names.Names`. If `has_subquery`, a filter or mask contains a query.
    """

    rule: DatasetRule
    row_filter: str | None = None
    masks: Mapping[str, str] | None = None
    relations: frozenset[str] = frozenset()
    macros: frozenset[str] = frozenset()
    deterministic: bool = False
    columns: frozenset[tuple[str, str]] = frozenset()
    uncast: frozenset[tuple[str, str]] = frozenset()
    has_subquery: bool = False
    error: str = ""


class KeyCatalog(Struct, frozen=True, kw_only=True, eq=False):
    """The catalog of one scope: its `name` in the engine, the relations in it, and their rules by dataset."""

    name: str
    relations: frozenset[str]
    rules: Mapping[str, GatedRule]

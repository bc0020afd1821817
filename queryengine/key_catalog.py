"""
What a key with rules, or with plain views, finds under the names of datasets and views: a catalog of its own.

Its statements run in this catalog instead of `runtime`, so a name cannot mean the whole dataset.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from runtimeconf.model import DatasetRule


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedRule:
    """
    A rule whose SQL passed the gate. If `error` is set, it did not, and its dataset is unavailable.

    `relations` are the datasets and views that it reads, its own dataset among them. A rule that is not `deterministic`
    depends on the time too. `macros` are those that it calls.
    """

    rule: DatasetRule
    row_filter: str | None = None
    masks: Mapping[str, str] | None = None
    relations: frozenset[str] = frozenset()
    macros: frozenset[str] = frozenset()
    deterministic: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyCatalog:
    """The catalog of one scope: its `name` in the engine, the relations in it, and their rules by dataset."""

    name: str
    relations: frozenset[str]
    rules: Mapping[str, GatedRule]

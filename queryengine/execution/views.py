"""Gates the declared views, orders them by their dependencies, and reports their errors."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from queryengine.engine import GatedStatement, StatementGate
from queryengine.errors import StatementError
from queryengine.gate.arrays import NOT_HERE
from queryengine.gate.lexer import scan
from queryengine.gate.rewriting import is_sorted
from runtimeconf.errors import ConfigError, ConfigFault
from runtimeconf.model import DatasetConfig, RuntimeConfig, ViewConfig

_ONE_QUERY = (
    "A materialized view must be a single row-returning query. SHOW and information_schema are not allowed in it or in "
    "a view that it reads."
)

#: The order of rows by all their values. Values such as 0.0 and -0.0 compare as equal, so their text decides, and for
#: numbers of different types in a VARIANT, their hash.
BY_VALUES: Final = "COLUMNS(*), encode(CAST(COLUMNS(*) AS VARCHAR)), hash(*COLUMNS(*))"

#: What the runtime puts before and after the SQL of a materialized view that does not fix the order of its rows.
_BEFORE_SORTED, _AFTER_SORTED = "FROM (\n", f"\n) ORDER BY {BY_VALUES}"


class GatedView(Struct, frozen=True, kw_only=True):
    """A view and its gated SQL. `statement.relations` are the datasets and views that it reads."""

    config: ViewConfig
    statement: GatedStatement


def gate_views(
    views: Sequence[ViewConfig], datasets: frozenset[str], gate: StatementGate, file: Path
) -> tuple[GatedView, ...]:
    """
    Gate *views* and order them so that each view reads only earlier ones, close to configuration order.

    *datasets* are the lower-case names of the datasets. *file* is the configuration file, for errors.

    Raises:
        ConfigError: The SQL of views is refused, or views form a circle. The error names every such view.
    """
    known = datasets | {view.name.lower() for view in views}
    gated: dict[str, GatedView] = {}
    faults: dict[str, str] = {}
    for view in views:
        name = view.name.lower()
        try:
            statement = gate.admit(view.sql, known)
        except StatementError as exc:
            faults[name] = str(exc)
            continue
        if statement.kind not in ("select", "show"):
            faults[name] = "A view must be one SELECT, and PIVOT must list its values with IN (...)."
        elif statement.parameters:
            faults[name] = "A view cannot have parameters."
        elif statement.makes_arrays:
            faults[name] = NOT_HERE
        else:
            gated[name] = GatedView(config=view, statement=statement)
    ordered: dict[str, GatedView] = {}
    placed = datasets | faults.keys()
    # Repeatedly place the first view that reads only placed relations.
    while ready := next((n for n, v in gated.items() if n not in ordered and v.statement.relations <= placed), None):
        ordered[ready] = gated[ready]
        placed |= {ready}
    left = {name: view for name, view in gated.items() if name not in ordered}
    for name in left:
        if name not in faults and (circle := _path_back(name, left)):
            steps = " -> ".join(left[step].config.name for step in [*circle, name])
            faults |= dict.fromkeys(circle, f"Circular view references: {steps}.")
    if faults:
        raise ConfigError(
            tuple(
                ConfigFault(file=file, line=view.line, yaml_path=view.yaml_path, message=faults[view.name.lower()])
                for view in views
                if view.name.lower() in faults
            )
        )
    return tuple(ordered.values())


def with_materialized_views(config: RuntimeConfig, gate: StatementGate) -> RuntimeConfig:
    """
    Gate all views of *config*. Return it with the gated SQL and the dependencies of each materialized view.

    If a key with `datasets` may see a materialized view that does not fix the order of its rows, they are sorted. With
    `snapshots`, they always are, because keys of other nodes may see them. Otherwise, rows that the view leaves out
    could decide the order, because their number decides how a join runs. A cluster does not keep the order anyway.

    Raises:
        ConfigError: See `gate_views`. Materialized views are also checked.
    """
    materialized = {dataset.name.lower(): dataset for dataset in config.datasets if dataset.view is not None}
    sources = frozenset(one.name.lower() for one in config.datasets).difference(materialized)
    declared = [
        ViewConfig(name=one.name, sql=one.view.sql, line=one.line, yaml_path=one.yaml_path)
        for one in materialized.values()
        if one.view is not None
    ]
    try:
        ordered = gate_views([*config.views, *declared], sources, gate, config.file)
    except ConfigError as exc:
        faults = tuple(replace(fault, file=config.file_of(fault.yaml_path)) for fault in exc.faults)
        raise ConfigError(faults) from None
    gated = {view.config.name.lower(): view for view in ordered}
    read: dict[str, set[str]] = {}
    for name in materialized:
        pending, read[name] = {name}, set()
        while pending:
            one = pending.pop()
            needed = gated[one].statement.relations if one == name or one not in materialized.keys() | sources else ()
            pending |= set(needed) - read[name]
            read[name] |= set(needed)
    faults = tuple(
        ConfigFault(file=config.file_of(one.yaml_path), line=one.line, yaml_path=one.yaml_path, message=_ONE_QUERY)
        for name, one in materialized.items()
        if gated[name].statement.kind != "select"
        or any(gated[other].statement.catalog is not None for other in {name, *read[name]} & gated.keys())
    )
    if faults:
        raise ConfigError(faults)

    scopes = [key.scope.relations for key in config.auth.named_keys if key.scope is not None]
    shown = frozenset(materialized) if config.snapshots is not None else frozenset().union(*scopes)

    def resolved(dataset: DatasetConfig) -> DatasetConfig:
        name = dataset.name.lower()
        if dataset.view is None:
            return dataset
        found = read[name]
        sql = gated[name].statement.sql
        if name in shown and config.engine is None and not is_sorted(scan(sql)):
            sql = f"{_BEFORE_SORTED}{sql}{_AFTER_SORTED}"
        plain = [view for other, view in gated.items() if other in found and other not in materialized]
        return replace(
            dataset,
            view=replace(
                dataset.view,
                sql=sql,
                reads=tuple(sorted(found & (materialized.keys() | sources))),
                views=tuple(ViewConfig(name=view.config.name, sql=view.statement.sql) for view in plain),
            ),
        )

    return replace(config, datasets=tuple(map(resolved, config.datasets)))


def unsorted_datasets(config: RuntimeConfig) -> frozenset[str]:
    """
    Return the datasets the order of whose rows depends on columns that a key may not see, in lower case.

    The runtime sorts the rows of a materialized view without ORDER BY by all columns. An upsert moves a row to the end.
    """

    def is_unsorted(one: DatasetConfig) -> bool:
        if one.view is None:
            return one.acceleration.on_conflict == "upsert"
        return not is_sorted(scan(one.view.sql)) or without_order(one.view.sql) != one.view.sql

    return frozenset(one.name.lower() for one in config.datasets if is_unsorted(one))


def without_order(sql: str) -> str:
    """Return the SQL of a materialized view without the order that the runtime has added to it."""
    if sql.startswith(_BEFORE_SORTED) and sql.endswith(_AFTER_SORTED):
        return sql.removeprefix(_BEFORE_SORTED).removesuffix(_AFTER_SORTED)
    return sql


def _path_back(start: str, views: Mapping[str, GatedView]) -> list[str]:
    """Return the shortest path from a view through its dependencies back to itself; empty if there is none."""
    paths = [[start]]
    seen: set[str] = set()
    for path in paths:  # grows during iteration (breadth-first search)
        for name in sorted(views[path[-1]].statement.relations & views.keys()):
            if name == start:
                return path
            if name not in seen:
                seen.add(name)
                paths.append([*path, name])
    return []

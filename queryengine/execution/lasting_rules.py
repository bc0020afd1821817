"""
Checks that no name in the rule of a key can come to mean something else when the columns of the data change.

The engine itself resolves the names: the rule is planned on empty tables that have the columns of the data, and again
on tables in which a column has another name. If both plans exist and differ, one of the two is not what was meant.
`queryengine.gate.lasting_names` says which:

* A name that is meant to be a column must mean the same when any table without such a column gains one. If its own
  table has lost the column, and the name now means another one, it would mean the lost one again.
* A name that is meant to be a table or parameter must mean the same when a column of that name is lost. If it now means
  a field of such a column, it would mean the table again.

So a check needs only the columns of the present, not those of the past. Tables contain only columns that the text of
the rule contains, because the gate refuses what takes columns by position.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from typing import Any, Final

import duckdb
from msgspec import Struct

from queryengine.bounded_dict import BoundedDict
from queryengine.gate import macros
from queryengine.gate.lexer import lower
from queryengine.key_catalog import GatedRule
from queryengine.values import qualified, quoted, split_relation

#: Types by column.
Columns = Mapping[str, str]
#: Columns by table.
Tables = Mapping[str, Columns]

#: How the names of types begin whose values have fields.
_WITH_FIELDS: Final = ("STRUCT", "UNION", "VARIANT", "MAP", "JSON")

#: How the names of columns begin that no rule can name.
_FRESH: Final = "_k000000000000"

_SETTINGS: Final[dict[str, str | bool | int | float | list[str]]] = {
    "threads": 1,
    "async_threads": 1,
    "enable_external_access": False,
    "python_enable_replacements": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
_PLAN: Final = "SELECT json_serialize_plan(?::VARCHAR, skip_null := true, skip_empty := true, skip_default := true)"

#: Keys of plans with names, and with the types of columns that may be unused.
_NOT_COMPARED: Final = frozenset(
    {"alias", "bound_columns", "names", "query_location", "query_location_length", "returned_types"}
)

#: The kept results, by a digest of what was asked.
_results: BoundedDict[bytes, str | None] = BoundedDict(1024)


class _Change(Struct, frozen=True):
    """
    A change of *before* to *after*, under which these names of columns must keep their meaning.

    After a loss, a rule that cannot be planned is harmless.
    """

    names: tuple[str, ...]
    table: str
    before: Tables
    after: Tables
    is_loss: bool = False


def doubt(rule: GatedRule, sql: str, tables: Tables) -> str | None:
    """
    Return which name in *sql*, the SQL of *rule* on *tables*, could come to mean something else; None if none.

    Raises:
        duckdb.Error: The tables cannot be created.
    """
    text = lower(sql)
    tables = {
        table: {column: type_ for column, type_ in columns.items() if lower(column).replace('"', '""') in text}
        for table, columns in tables.items()
    }
    names = sorted(rule.columns), sorted(rule.others)
    asked = hashlib.blake2b(repr((sql, names, sorted(rule.macros), tables)).encode(), digest_size=16).digest()
    if asked not in _results:
        _results[asked] = _first_doubt(rule, sql, tables, spreads="unnest" in text or "*" in text)
    return _results.get(asked)


def _first_doubt(rule: GatedRule, sql: str, tables: Tables, *, spreads: bool) -> str | None:
    columns: dict[str, list[list[str]]] = {}
    for name, *fields in sorted(rule.columns):
        columns.setdefault(name, []).append(fields)
    types = {name: _type_with(fields) for name, fields in columns.items()}
    gains = [*_gains(tables, types)]
    others = [*_other_gains(tables, types, spreads=spreads), *_losses(tables, rule.others, spreads=spreads)]
    if not gains and not others:
        return None
    with duckdb.connect(":memory:", config=_SETTINGS) as connection:
        connection.execute("ATTACH ':memory:' AS runtime; USE runtime")
        for macro in macros.needed(rule.macros):
            connection.execute(f"CREATE MACRO {macro.definition}")
        # If no name means any of all new columns together, none means one of them alone.
        some_gain = bool(gains) and _changes_meaning(connection, sql, _together(tables, gains))
        for change in gains + others if some_gain else others:
            if _changes_meaning(connection, sql, change):
                name = change.names[0]
                if change.is_loss:
                    return f"{name} means a column of {change.table}, but could mean something else without it"
                return (
                    f"{name} could mean another column once {change.table} has one of that name: write the dataset "
                    "before it"
                )
    return "a name could mean another column once a dataset has one: write the dataset before it" if some_gain else None


def _gains(tables: Tables, types: Columns) -> Iterator[_Change]:
    """Yield the changes in which one table gains one column of *types*."""
    for table, columns in tables.items():
        present = set(map(lower, columns))
        for name, type_ in types.items():
            if name not in present:
                before, after = ({**tables, table: {**columns, one: type_}} for one in (_FRESH, name))
                yield _Change((name,), table, before, after)


def _together(tables: Tables, gains: Iterable[_Change]) -> _Change:
    """Return the change of all *gains* of columns at once."""
    before = {table: dict(columns) for table, columns in tables.items()}
    after = {table: dict(columns) for table, columns in tables.items()}
    numbers = count()
    for gain in gains:
        (name,), table = gain.names, gain.table
        before[table][f"{_FRESH}{next(numbers)}"] = after[table][name] = gain.after[table][name]
    return _Change(tuple(gain.names[0] for gain in gains), "", before, after)


def _other_gains(tables: Tables, types: Columns, *, spreads: bool) -> Iterator[_Change]:
    """Yield the changes in which a column gets fields. If the rule *spreads* structures, fields may become columns."""
    for table, columns in tables.items():
        for column, present in columns.items():
            wanted = types.get(lower(column), "VARCHAR")
            if wanted != "VARCHAR" and not present.startswith(_WITH_FIELDS):
                yield _Change((lower(column),), table, tables, {**tables, table: {**columns, column: wanted}})
            for found in re.finditer(r"STRUCT\(", present) if spreads else ():
                for name, type_ in types.items():
                    before, after = (
                        f"{present[: found.end()]}{quoted(one)} {type_}, {present[found.end() :]}"
                        for one in (_FRESH, name)
                    )
                    yield _Change(
                        (name,),
                        table,
                        {**tables, table: {**columns, column: before}},
                        {**tables, table: {**columns, column: after}},
                    )


def _losses(tables: Tables, names: Iterable[tuple[str, bool]], *, spreads: bool) -> Iterator[_Change]:
    """Yield the changes in which one table, or all, lose the columns that have one of *names*."""
    for name, needs_fields in sorted(names):
        for within in (*([table] for table in tables), [*tables]):
            after = {
                table: _without(columns, name, needs_fields=needs_fields, spreads=spreads)
                if table in within
                else columns
                for table, columns in tables.items()
            }
            if after != tables:
                yield _Change((name,), within[0], tables, after, is_loss=True)


def _without(columns: Columns, name: str, *, needs_fields: bool, spreads: bool) -> Columns:
    """Return *columns* without those called *name*, and if the rule *spreads* structures, without such fields."""
    types = "|".join(_WITH_FIELDS) if needs_fields else ""
    either = "|".join(map(re.escape, {name, quoted(name)}))
    field = re.compile(rf"([(,] ?)(?:{either}) (?={types})", re.IGNORECASE)
    return {
        _FRESH if lower(column) == name and re.match(types, type_) else column: field.sub(rf"\1{_FRESH} ", type_)
        if spreads
        else type_
        for column, type_ in columns.items()
    }


def _type_with(paths: Iterable[list[str]]) -> str:
    """Return a type with the nested fields *paths*."""
    fields: dict[str, list[list[str]]] = {}
    for name, *rest in filter(None, paths):
        fields.setdefault(name, []).append(rest)
    if not fields:
        return "VARCHAR"
    return f"STRUCT({', '.join(f'{quoted(name)} {_type_with(rests)}' for name, rests in fields.items())})"


def _changes_meaning(connection: duckdb.DuckDBPyConnection, sql: str, change: _Change) -> bool:
    _create(connection, change.before)
    before = _plan(connection, sql, change.names)
    with suppress(duckdb.BinderException):  # The structure has this field already.
        _create(connection, change.after)
    after = _plan(connection, sql, change.names)
    return before is None or (before != after and not (change.is_loss and after is None))


def _create(connection: duckdb.DuckDBPyConnection, tables: Tables) -> None:
    for table, columns in tables.items():
        if (schema := split_relation(table)[0]) != "main":
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}")
        listed = ", ".join(f"{quoted(column)} {type_}" for column, type_ in (columns or {f"{_FRESH}_": "INT"}).items())
        connection.execute(f"CREATE OR REPLACE TABLE {qualified(table)} ({listed})")


def _plan(connection: duckdb.DuckDBPyConnection, sql: str, names: Iterable[str]) -> Any:
    """Return the plan of *sql*, in which the *names* of columns are not compared; None if there is none."""
    (text,) = connection.execute(_PLAN, [sql]).fetchone() or ("",)
    found = json.loads(text)
    return None if found.get("error") else _compared(found, frozenset(names))


def _compared(node: Any, names: frozenset[str]) -> Any:
    if isinstance(node, dict):
        return {key: _compared(one, names) for key, one in node.items() if key not in _NOT_COMPARED}
    if isinstance(node, list):
        return [_compared(one, names) for one in node]
    return "" if isinstance(node, str) and (lower(node) in names or node.startswith(_FRESH)) else node

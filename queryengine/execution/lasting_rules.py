"""
Checks that no name in the rule of a key can come to mean something else when the columns of the data change.

The engine itself resolves the names: the rule is planned on empty tables that have the columns of the data, and again
on tables in which a column has another name or type. If the plans differ, one of the two is not what was meant.
`queryengine.gate.lasting_names` says which:

* A name that is meant to be a column must mean the same when any table without such a column gains one. If its own
  table has lost the column, and the name now means another one, it would mean the lost one again.
* A name that is meant to be a table or parameter must mean the same when a column of that name is lost. If it now means
  a field of such a column, it would mean the table again.
* A name with fields must mean the same when another column of that name gets such fields.

So a check needs only the columns of the present, not those of the past. Tables contain only columns that the text of
the rule contains, because the gate refuses what takes columns by position.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Final, Self

import duckdb
from msgspec import Struct

from queryengine.bounded_dict import BoundedDict
from queryengine.execution.bounded_functions import MACROS
from queryengine.gate import macros
from queryengine.gate.gate import SETTINGS
from queryengine.gate.lexer import lower
from queryengine.key_catalog import GatedRule
from queryengine.values import qualified, quoted, split_relation

#: Types by column.
Columns = Mapping[str, str]
#: Columns by table.
Tables = Mapping[str, Columns]
#: Names of nested fields; an empty one for a value itself.
Paths = Iterable[list[str]]

_NO_QUOTES: Final = str.maketrans(dict.fromkeys("\"'`"))

#: How the names of columns begin that no rule can name.
_FRESH: Final = "_k000000000000"

_PLAN: Final = "SELECT json_serialize_plan(?::VARCHAR, skip_null := true, skip_empty := true, skip_default := true)"

#: A value of an ENUM in the text of a type, and what stands before the fields of a structure.
_TEXT: Final = "'(?:[^']|'')*'"
_STRUCTURE: Final = re.compile(rf'{_TEXT}|"(?:[^"]|"")*"|(STRUCT\()')

#: Keys of plans with names, and with the types of columns that may be unused.
_NOT_COMPARED: Final = frozenset(
    {"alias", "bound_columns", "names", "query_location", "query_location_length", "returned_types"}
)

#: A string, number or sign of JSON. A key ends with its colon.
_PART: Final = re.compile(r'"(?:[^"\\]|\\.)*":?|[\[\]{},]|[^\[\]{},"\s]+')

#: The maximum length of all plans for one rule, which take some seconds to compare, and the memory for making one.
_MOST_CHARACTERS: Final = 10_000_000
_MEMORY: Final = "128MB"
#: What the engine says if a limit of its own is reached, and not if the machine has no memory.
_LIMIT_REACHED: Final = re.compile(r"/[^/]+ used\)")

#: The kept results, by a digest of what was asked.
_results: BoundedDict[bytes, str | None] = BoundedDict(4096)


class _Change(Struct, frozen=True):
    """A change of *before* to *after*, under which *name*, or each of *names*, must keep its meaning."""

    name: str
    table: str
    before: Tables
    after: Tables
    names: tuple[str, ...] = ()


def doubt(rule: GatedRule, sql: str, tables: Tables) -> str | None:
    """
    Return which name in *sql*, the SQL of *rule* on *tables*, could come to mean something else; None if none.

    Raises:
        duckdb.Error: The tables cannot be created.
    """
    text = _without_quotes(sql)
    tables = {
        table: {column: type_ for column, type_ in columns.items() if _without_quotes(column) in text}
        for table, columns in tables.items()
    }
    # Literals count, because a string can be an alias or the name of a field.
    asked = hashlib.blake2b(repr((sql, sorted(rule.macros), tables)).encode()).digest()
    found = _results.get(asked, "")
    if found == "":
        found = _results[asked] = _first_doubt(rule, sql, tables)
    return found


def _without_quotes(text: str) -> str:
    """Return *text* in lower case without quotes, which are written twice within a name that is quoted."""
    return lower(text).translate(_NO_QUOTES)


def _first_doubt(rule: GatedRule, sql: str, tables: Tables) -> str | None:
    columns: dict[str, list[list[str]]] = {}
    for name, *fields in sorted(rule.columns):
        columns.setdefault(name, []).append(fields)
    gains = [*_gains(tables, columns)]
    with_fields = {name for name, *fields in rule.columns if fields} | {name for name, *_ in rule.others}
    present = {lower(column) for one in tables.values() for column in one}
    if not gains and not rule.spreads and present.isdisjoint(with_fields):
        return None
    with _Planner(sql, rule.macros) as planner:
        try:
            # If no name means any of all new columns together, none means one of them alone.
            if gains and planner.tells_apart(_together(tables, gains)):
                found = next(filter(planner.tells_apart, gains), None)
                where = "a dataset" if found is None else found.table
                return (
                    f"{'a name' if found is None else found.name} could mean another column once {where} has one of "
                    "that name: write the dataset before it"
                )
            for change in _gained_fields(planner, tables, columns, spreads=rule.spreads):
                if planner.tells_apart(change):
                    return f"{change.name} could mean a field of another column of {change.table}"
            for change in _losses(planner, tables, rule.others, spreads=rule.spreads):
                if planner.tells_apart(change):
                    return (
                        f"{change.name} means a column of {change.table}, but also is the name of something else: "
                        "choose another name for that"
                    )
        except _TooLargeError:
            return "it is too large, or the columns have too many fields, to check what its names mean"
    return None


def _gains(tables: Tables, names: Mapping[str, Paths]) -> Iterator[_Change]:
    """Yield the changes in which one table gains one column."""
    for table, columns in tables.items():
        present = set(map(lower, columns))
        for name, fields in names.items():
            if name not in present:
                before, after = ({**columns, one: _type_with(fields)} for one in (_FRESH, name))
                yield _Change(name, table, {**tables, table: before}, {**tables, table: after})


def _together(tables: Tables, gains: Iterable[_Change]) -> _Change:
    """Return the change of all *gains* of columns at once."""
    before = {table: dict(columns) for table, columns in tables.items()}
    after = {table: dict(columns) for table, columns in tables.items()}
    numbers: dict[str, int] = {}
    for gain in gains:
        number = numbers.setdefault(gain.name, len(numbers))
        before[gain.table][f"{_FRESH}{number}"] = after[gain.table][gain.name] = gain.after[gain.table][gain.name]
    return _Change("", "", before, after, tuple(numbers))


def _gained_fields(
    planner: "_Planner", tables: Tables, names: Mapping[str, Paths], *, spreads: bool
) -> Iterator[_Change]:
    """Yield the changes in which a column gets fields. If the rule *spreads* structures, fields may become columns."""
    for table, columns in tables.items():
        for column, type_ in columns.items():
            paths = [*filter(None, names.get(lower(column), ()))]
            if paths and not any(planner.has_field(type_, path) for path in paths):
                yield _Change(lower(column), table, tables, {**tables, table: {**columns, column: _type_with(paths)}})
            for found in filter(itemgetter(1), _STRUCTURE.finditer(type_) if spreads else ()):
                for name, fields in names.items():
                    before, after = (
                        f"{type_[: found.end()]}{quoted(one)} {_type_with(fields)}, {type_[found.end() :]}"
                        for one in (_FRESH, name)
                    )
                    yield _Change(
                        name,
                        table,
                        {**tables, table: {**columns, column: before}},
                        {**tables, table: {**columns, column: after}},
                    )


def _losses(
    planner: "_Planner", tables: Tables, names: Iterable[tuple[str, ...]], *, spreads: bool
) -> Iterator[_Change]:
    """
    Yield the changes in which a table loses a column that could take the place of one of *names* with its fields.

    If the rule *spreads* structures, their fields count, too.
    """
    for name, *fields in sorted(names):
        for table, columns in tables.items():
            for column, type_ in columns.items():
                if lower(column) == name and planner.has_field(type_, fields):
                    after = {_FRESH if one == column else one: columns[one] for one in columns}
                elif spreads:
                    after = {**columns, column: _without_field(type_, name)}
                else:
                    continue
                if after != columns:
                    yield _Change(name, table, tables, {**tables, table: after})


def _without_field(type_: str, name: str) -> str:
    """Return *type_* with another name for all fields with this lower-case *name*."""
    either = "|".join(map(re.escape, {name, quoted(name)}))
    pattern = re.compile(rf"{_TEXT}|([(,] ?)(?:{either}) ", re.IGNORECASE)
    return pattern.sub(lambda found: found[0] if found[1] is None else f"{found[1]}{_FRESH} ", type_)


def _type_with(paths: Paths) -> str:
    """Return a type with the nested fields *paths*."""
    fields: dict[str, list[list[str]]] = {}
    for name, *rest in filter(None, paths):
        fields.setdefault(name, []).append(rest)
    if not fields:
        return "VARCHAR"
    return f"STRUCT({', '.join(f'{quoted(name)} {_type_with(rests)}' for name, rests in fields.items())})"


class _TooLargeError(Exception):
    """The plans take too long to compare."""


def _out_of_memory(message: str) -> Exception:
    """Return what an engine without memory tells about the rule. A shortage of the machine tells nothing."""
    if _LIMIT_REACHED.search(message):
        return _TooLargeError()
    return duckdb.OutOfMemoryException("There is too little memory to plan the rule of a key.")


class _Planner:
    """Plans *sql*, which calls the macros *called*, on empty tables in an engine of its own."""

    def __init__(self, sql: str, called: frozenset[str]) -> None:
        self._sql = sql
        self._characters_left = _MOST_CHARACTERS
        self._connection = duckdb.connect(":memory:", config=SETTINGS | {"memory_limit": _MEMORY})
        self._connection.execute("ATTACH ':memory:' AS runtime; USE runtime")
        for macro in (*MACROS, *(one.definition for one in macros.needed(called))):
            self._connection.execute(f"CREATE MACRO {macro}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def tells_apart(self, change: _Change) -> bool:
        """
        Return whether the plans before and after *change* differ, or whether there are none.

        Raises:
            _TooLargeError: The plans are too large.
        """
        names = change.names or (change.name,)
        self._create(change.before)
        before = self._plan(names)
        with suppress(duckdb.BinderException):  # The structure has this field already.
            self._create(change.after)
        return before is None or before != self._plan(names)

    def has_field(self, type_: str, path: Iterable[str]) -> bool:
        """Return whether a column of this type has the nested field *path*. An empty path is the column itself."""
        field = ".".join(map(quoted, ("x", *path)))
        try:
            self._execute(f"FROM (VALUES (NULL::{type_})) AS {_FRESH}(x) SELECT {field} LIMIT 0")
        except duckdb.OutOfMemoryException:
            raise
        except duckdb.Error:
            return False
        return True

    def _create(self, tables: Tables) -> None:
        for table, columns in tables.items():
            if (schema := split_relation(table)[0]) != "main":
                self._execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}")
            listed = (f"{quoted(name)} {type_}" for name, type_ in (columns or {f"{_FRESH}_": "INT"}).items())
            self._execute(f"CREATE OR REPLACE TABLE {qualified(table)} ({', '.join(listed)})")

    def _execute(self, sql: str, values: Sequence[str] = ()) -> duckdb.DuckDBPyConnection:
        try:
            return self._connection.execute(sql, values)
        except duckdb.OutOfMemoryException as exc:
            raise _out_of_memory(str(exc)) from exc

    def _plan(self, names: Iterable[str]) -> list[str] | None:
        """
        Return the parts of the plan that tell what it does, without *names* of columns; None if there is no plan.

        The plan is not decoded, because it can be nested more deeply than Python's decoder supports.
        """
        (text,) = self._execute(_PLAN, [self._sql]).fetchone() or ("",)
        self._characters_left -= len(text)
        if self._characters_left < 0:
            raise _TooLargeError
        if not text.startswith('{"error":false'):
            error = json.loads(text)
            if error["error_type"] == "out of memory":
                raise _out_of_memory(error["error_message"])
            return None
        compared: list[str] = []
        depth, end = 0, -1  # The value of a key that is not compared ends at the depth `end`.
        for part in _PART.findall(text):
            if part in {",", "]", "}"} and depth <= end:
                end = -1
            depth += (part in {"{", "["}) - (part in {"}", "]"})
            if end < 0:
                if part.endswith(":") and part[1:-2] in _NOT_COMPARED:
                    end = depth
                else:
                    compared.append(part)
        fixed = {json.dumps(name, ensure_ascii=False) for name in names}
        return ["" if lower(part) in fixed or part.startswith(f'"{_FRESH}') else part for part in compared]

"""The SQL of the rows, columns and values that a rule of a key makes visible, checked against the dataset it is for."""

import re
from collections.abc import Mapping
from typing import Final

import duckdb

from queryengine.execution.definitions import Definitions
from queryengine.gate.lexer import lower
from queryengine.gate.rule_names import OUTERMOST
from queryengine.key_catalog import GatedRule
from queryengine.values import qualified, quoted

#: An ENUM in a type name, or the quoted name of a field.
_ENUM: Final = re.compile(r"""ENUM\((?:'(?:[^']|'')*'(?:, )?)*\)|("(?:[^"]|"")*")""")


#: Types whose values have no parts, so that their text has no quotes or brackets. An ENUM counts as text.
_PLAIN: Final = re.compile(
    r"BOOLEAN|U?(?:TINY|SMALL|BIG|HUGE)INT|U?INTEGER|FLOAT|DOUBLE|DECIMAL\(\d+,\d+\)|VARCHAR|UUID"
    r"|DATE|INTERVAL|TIME(?: WITH TIME ZONE|_NS)?|TIMESTAMP(?: WITH TIME ZONE|_(?:S|MS|NS))?"
)


class UnfitRuleError(Exception):
    """A rule does not fit the data. The message is for the operator and contains no data."""


def rows_of(
    cursor: duckdb.DuckDBPyConnection,
    rule: GatedRule,
    definitions: Definitions,
    *,
    leaves_rows_out: bool = False,
    table: str | None = None,
) -> str:
    """
    Return the SQL of the rows, columns and values that *rule* makes visible, in the order of *table* if there is one.

    A column becomes text if its type is an ENUM that may list values of hidden rows or masked values.

    Raises:
        UnfitRuleError: The rule does not fit the dataset's columns, or the gate refused it.
        duckdb.Error: The rule does not fit the column types, or the dataset does not exist.
    """
    if rule.error:
        raise UnfitRuleError(rule.error)
    name = rule.rule.dataset
    cursor.execute("USE runtime")
    _check_columns(cursor, rule)
    check_types(rule, definitions)
    types = columns_of(cursor, f"FROM runtime.{qualified(name)}")
    named = {lower(column): column for column in types}
    masks = {lower(column): sql for column, sql in (rule.masks or {}).items()}
    listed = [lower(column) for column in (types if rule.rule.columns is None else rule.rule.columns)]
    missing = [column for column in listed if column not in named] or [*(masks.keys() - listed)]
    if missing:
        raise UnfitRuleError(f"there is no column {missing[0]}")
    view = f"FROM runtime.{qualified(name)} AS {OUTERMOST}"  # which has no `rowid`: expressions are checked in it
    source = view if table is None else f"FROM {table} AS {OUTERMOST}"
    if rule.row_filter is not None:
        if _types_of(cursor, view, {"row_filter": f"(\n{rule.row_filter}\n)"}) != {"row_filter": "BOOLEAN"}:
            raise UnfitRuleError("row_filter is not BOOLEAN")
        source += f" WHERE (\n{rule.row_filter}\n)"  # in which a name means the column, not its mask
    # An error in a mask would quote the hidden value, so the mask returns null instead.
    values = {column: f"TRY((\n{sql}\n))" for column, sql in masks.items()}
    types_of_masks = _types_of(cursor, view, values)
    items = []
    for column in listed:
        actual, type_ = quoted(named[column]), types[named[column]]
        value = f"{OUTERMOST}.{actual}"
        if column in masks:
            value, found = values[column], types_of_masks[column]
            if found == '"NULL"':
                value = f"CAST({value} AS {_without_enums(type_)})"
            type_ = found
        if (leaves_rows_out or column in masks) and type_ != _without_enums(type_):
            value = f"CAST({value} AS {_without_enums(type_)})"
        items.append(f"{value} AS {actual}")
    sql = f"SELECT {', '.join(items)} {source}"
    if [*columns_of(cursor, sql)] != [named[column] for column in listed]:
        raise UnfitRuleError("a mask returns more than one column")
    return sql if table is None else f"{sql} ORDER BY {OUTERMOST}.rowid"


def _check_columns(cursor: duckdb.DuckDBPyConnection, rule: GatedRule) -> None:
    for relation in sorted(rule.relations):
        present = {*map(lower, columns_of(cursor, f"FROM runtime.{qualified(relation)}"))}
        if missing := sorted(column for one, column in rule.columns if one == relation and column not in present):
            hint = "" if relation == rule.rule.dataset else ": write the dataset before a column of an outer query"
            raise UnfitRuleError(f"there is no column {missing[0]} in {relation}{hint}")


def check_types(rule: GatedRule, definitions: Definitions) -> None:
    """
    Check that the columns which the rule reads have their first types.

    In `grade > '5'`, a column of numbers would be compared by number, which shows rows that the text left out. The SQL
    of a view that the rule reads is part of the rule, and its casts are not known.

    Raises:
        UnfitRuleError: One has another type.
    """
    for relation in sorted(rule.relations):
        is_derived = definitions.is_derived(relation)
        for name, *types in definitions.retyped(relation, with_inputs=is_derived):
            first, present = map(_without_enums, types)
            is_plain = _PLAIN.fullmatch(first) is not None and _PLAIN.fullmatch(present) is not None
            if is_derived or (relation, name) in (rule.uncast if is_plain else rule.columns):
                where = "" if is_plain and not is_derived else " in the refresh_sql of the dataset"
                where += f" behind {relation}" if is_derived else ""
                raise UnfitRuleError(
                    f"the type of {name} has changed from {first:.80} to {present:.80}: cast it{where} "
                    f"to the type that is meant, as in CAST({name} AS {first:.80})"
                )


def columns_of(cursor: duckdb.DuckDBPyConnection, sql: str) -> dict[str, str]:
    """Return the names and types of the columns of *sql*."""
    return {str(name): str(type_) for name, type_, *_ in cursor.execute(f"FROM ({sql}) LIMIT 0").description or ()}


def _types_of(cursor: duckdb.DuckDBPyConnection, source: str, expressions: Mapping[str, str]) -> dict[str, str]:
    """Return the types of the *expressions* of a rule, which are bound at once: binding a wide *source* is slow."""
    if not expressions:
        return {}
    selected = ", ".join(f"{sql} AS {quoted(f'{number}')}" for number, sql in enumerate(expressions.values()))
    found = columns_of(cursor, f"{source} SELECT {selected}")
    if [*found] != [f"{number}" for number in range(len(expressions))]:
        raise UnfitRuleError("an expression returns more than one column")
    return dict(zip(expressions, found.values(), strict=True))


def _without_enums(type_: str) -> str:
    return _ENUM.sub(lambda found: found[1] or "VARCHAR", type_)

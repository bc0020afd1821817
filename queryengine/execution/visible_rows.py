"""The SQL of the rows, columns and values that a rule of a key makes visible, checked against the dataset it is for."""

import re
from collections.abc import Collection, Mapping
from typing import Final

import duckdb

from queryengine.execution.definitions import Definitions
from queryengine.gate.lexer import lower
from queryengine.key_catalog import GatedRule
from queryengine.values import qualified, quoted, split_relation

#: An ENUM in a type name, or the quoted name of a field.
_ENUM: Final = re.compile(r"""ENUM\((?:'(?:[^']|'')*'(?:, )?)*\)|("(?:[^"]|"")*")""")


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
    alias = quoted(split_relation(name)[1])
    cursor.execute("USE runtime")
    _check_types(rule, definitions)
    types = columns_of(cursor, f"FROM runtime.{qualified(name)}")
    named = {lower(column): column for column in types}
    masks = {lower(column): sql for column, sql in (rule.masks or {}).items()}
    listed = [lower(column) for column in (types if rule.rule.columns is None else rule.rule.columns)]
    missing = [column for column in listed if column not in named] or [*(masks.keys() - listed)]
    if missing:
        raise UnfitRuleError(f"there is no column {missing[0]}")
    view = f"FROM runtime.{qualified(name)} AS {alias}"  # which has no `rowid`: expressions are checked in it
    source = view if table is None else f"FROM {table} AS {alias}"
    if rule.row_filter is not None:
        if _types_of(cursor, view, {"row_filter": f"(\n{rule.row_filter}\n)"}) != {"row_filter": "BOOLEAN"}:
            raise UnfitRuleError("row_filter is not BOOLEAN")
        source += f" WHERE (\n{rule.row_filter}\n)"  # in which a name means the column, not its mask
    # An error in a mask would quote the hidden value, so the mask returns null instead.
    values = {column: f"TRY((\n{sql}\n))" for column, sql in masks.items()}
    types_of_masks = _types_of(cursor, view, values)
    _check_names(cursor, rule)
    items = []
    for column in listed:
        actual, type_ = quoted(named[column]), types[named[column]]
        value = f"{alias}.{actual}"
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
    return sql if table is None else f"{sql} ORDER BY {alias}.rowid"


def misnamed(rule: GatedRule, columns: Mapping[str, Collection[str]]) -> str | None:
    """
    Return why a name in *rule* does not mean what its text says; None if each does.

    Args:
        rule: The rule of a key.
        columns: The lower-case columns of each relation that the rule reads.
    """
    if missing := sorted((relation, column) for relation, column in rule.columns if column not in columns[relation]):
        relation, column = missing[0]
        hint = "" if relation == rule.rule.dataset else ": write the dataset before a column of an outer query"
        return f"there is no column {column} in {relation}{hint}"
    if present := sorted((relation, column) for relation, column in rule.absent if column in columns[relation]):
        relation, column = present[0]
        return f"{relation} has a column {column}, which could take the place of another name: choose another alias"
    return None


def _check_names(cursor: duckdb.DuckDBPyConnection, rule: GatedRule) -> None:
    found = {relation: columns_of(cursor, f"FROM runtime.{qualified(relation)}") for relation in sorted(rule.relations)}
    if reason := misnamed(rule, {relation: {*map(lower, columns)} for relation, columns in found.items()}):
        raise UnfitRuleError(reason)


def _check_types(rule: GatedRule, definitions: Definitions) -> None:
    """
    Check that the columns which the rule reads have their first types.

    In `grade > '5'`, a column of numbers would be compared by number, which shows rows that the text left out. The SQL
    of a view that the rule reads is part of the rule, and its casts are not known.
    """
    for relation in sorted(rule.relations):
        is_own = relation == rule.rule.dataset
        uncast = {column for one, column in rule.uncast if one == relation}
        is_any = bool(uncast) and definitions.is_view(relation) if is_own else definitions.is_derived(relation)
        for name, first, present in definitions.retyped(relation, with_inputs=not is_own):
            if is_any or name in uncast:
                meant = _without_enums(first)
                cure = f"cast it to the type that is meant, as in CAST({name} AS {meant:.80})"
                if is_any and not is_own:
                    cure = f"read its dataset instead of the view {relation}"
                changed = f"the type of {name} has changed from {meant:.80} to {_without_enums(present):.80}"
                raise UnfitRuleError(f"{changed}: {cure}")


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

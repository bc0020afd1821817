"""
Checks that names in the parse tree of a rule keep their meaning when the columns of the data change.

In SQL, a name in a subquery means the column of an outer table once its own table has lost it: in `tenant IN (SELECT
tenant FROM grants)`, the inner name then means the outer column, and the condition is true for every row. So in a rule,
a name without its table must be a column of the innermost query's tables, or the rule does not fit the data.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from queryengine.errors import StatementNotAllowedError
from queryengine.gate.lexer import lower
from queryengine.gate.node_kinds import nodes_of
from queryengine.values import quoted

#: The tables of a query, one of which must have the column whose lower-case name follows.
OwnColumn = tuple[tuple[str, ...], str]

#: Names that mean a function of the engine if there is no such column.
_FUNCTIONS: Final = frozenset(
    {"current_catalog", "current_role", "current_schema", "current_user", "session_user", "user"}
)
#: Names of functions that are useful in a rule.
_TIMES: Final = frozenset({"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"})
#: References to tables, by `type`.
_TABLES: Final = frozenset({"BASE_TABLE", "EXPRESSION_LIST", "PIVOT", "SUBQUERY", "TABLE_FUNCTION"})
_NO_TABLE: Final = {"type": "EMPTY"}


def own_columns(tree: Mapping[str, Any]) -> frozenset[OwnColumn]:
    """
    Check the tree of `SELECT (rule) FROM dataset`, and return the names in its subqueries that have no table.

    The rule fits the data only if one of the tables has the column.

    Raises:
        StatementNotAllowedError: A name could later mean something else, whatever the data.
    """
    tables = {lower(name) for name in _tables(tree)} | {"main", "runtime"}
    expressions = {lower(entry["key"]) for one in nodes_of(tree) for entry in one.get("cte_map", {}).get("map", ())}
    _check_forms(tree)
    found: set[OwnColumn] = set()
    # Each node with the tables of the innermost query, or None outside subqueries, and the parameters of lambdas.
    pending: list[tuple[Any, tuple[str, ...] | None, frozenset[str]]] = [
        (tree["node"]["select_list"], None, frozenset())
    ]
    while pending:
        node, own, parameters = pending.pop()
        if isinstance(node, list):
            pending.extend((item, own, parameters) for item in node)
        if not isinstance(node, dict):
            continue
        kind = node.get("class")
        table = node.get("from_table") or _NO_TABLE
        if table["type"] != _NO_TABLE["type"]:  # Without a table, as in `x = ANY(list)`, names are the outer query's.
            own = _own_tables(table, expressions)
        if kind == "COLUMN_REF":
            names = [lower(name) for name in node["column_names"]]
            if names[0] in parameters or not _is_loose(names, tables, in_subquery=own is not None):
                continue
            if own:
                found.add((own, names[0]))
            else:
                raise StatementNotAllowedError(
                    f"write '{node['column_names'][0]}' with its dataset, as in orders.id: if this column disappeared, "
                    "the name alone would mean something else."
                )
        elif kind == "LAMBDA" and node.get("syntax_type") == "LAMBDA_KEYWORD":
            names_of_values = {lower(name) for one in _columns(node["lhs"]) for name in one}
            pending.append((node["expr"], own, parameters | names_of_values))
        else:
            pending.extend((part, own, parameters) for part in node.values())
    return frozenset(found)


def _own_tables(table: Mapping[str, Any], expressions: set[str]) -> tuple[str, ...]:
    """Return the tables of a FROM clause; none if one of them is not a dataset, or its columns have other names."""
    found: list[str] = []
    pending = [table]
    while pending:
        one = pending.pop()
        if one["type"] == "JOIN":
            pending.extend((one["left"], one["right"]))
        elif one["type"] == "BASE_TABLE" and not one.get("column_name_alias") and _path(one)[-1] not in expressions:
            found.append(".".join(map(quoted, one["qualified_name"]["path"])))
        else:
            return ()
    return tuple(found)


def _is_loose(names: list[str], tables: set[str], *, in_subquery: bool) -> bool:
    if len(names) > 1 and names[0] in tables:
        return False
    return names[0] not in _TIMES if in_subquery else names[0] in _FUNCTIONS


def _tables(node: Any) -> Iterator[str]:
    """Yield the names by which columns of tables can be qualified."""
    for one in nodes_of(node):
        if "class" not in one and one.get("type") in _TABLES:
            yield from (one.get("alias", ""), *one.get("qualified_name", {}).get("path", ()))
            yield one.get("function", {}).get("function_name", "")


def _check_forms(tree: Mapping[str, Any]) -> None:
    """
    Refuse positions, natural joins, and another table with the name of the rule's dataset.

    If that table lacked a column, its qualified name would mean the dataset's column.
    """
    dataset = _path(tree["node"]["from_table"])
    for one in nodes_of(tree):
        if one.get("class") == "POSITIONAL_REFERENCE":
            raise StatementNotAllowedError("write the name of a column instead of its position.")
        if one.get("ref_type") == "NATURAL":
            raise StatementNotAllowedError("NATURAL JOIN is not allowed: list the columns with USING (...).")
        if "class" not in one and one.get("type") in _TABLES:
            path = _path(one)
            if lower(one.get("alias") or path[-1]) == dataset[-1] and path != dataset:
                raise StatementNotAllowedError(
                    f"another table must not have the name {dataset[-1]} as well: write FROM ... AS with another name."
                )


def _path(table: Mapping[str, Any]) -> list[str]:
    """Return the name of *table* without the default database and schema; one empty part if it has none."""
    path = [lower(part) for part in table.get("qualified_name", {}).get("path", ("",))]
    return [*(part for part in path[:-1] if part not in {"main", "runtime"}), path[-1]]


def _columns(node: Any) -> Iterator[list[str]]:
    for one in nodes_of(node):
        if one.get("class") == "COLUMN_REF":
            yield one["column_names"]

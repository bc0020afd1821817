"""
Checks that names in the parse tree of a rule keep their meaning when the columns of the data change.

Without its dataset, a name in a subquery means the column of another dataset once its own has disappeared: in `tenant
IN (SELECT tenant FROM grants)`, the inner name then means the outer column, and the condition is true for every row.
With its dataset, the name no longer exists, so the rule does not fit the data.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from queryengine.errors import StatementNotAllowedError
from queryengine.gate.lexer import lower

#: Names that mean a function of the engine if there is no such column.
_FUNCTIONS: Final = frozenset(
    {"current_catalog", "current_role", "current_schema", "current_user", "session_user", "user"}
)
#: Names of functions that are useful in a rule.
_TIMES: Final = frozenset({"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"})
#: References to tables, by `type`.
_TABLES: Final = frozenset({"BASE_TABLE", "EXPRESSION_LIST", "PIVOT", "SUBQUERY", "TABLE_FUNCTION"})
_NO_TABLE: Final = {"type": "EMPTY"}


def check(tree: Mapping[str, Any]) -> None:
    """
    Check the tree of `SELECT (rule) FROM dataset`.

    Raises:
        StatementNotAllowedError: A name could later mean something else.
    """
    tables = {lower(name) for name in _tables(tree)} | {"main", "runtime"}
    _check_aliases(tree)
    pending: list[tuple[Any, bool, frozenset[str]]] = [(tree["node"]["select_list"], False, frozenset())]
    while pending:
        node, in_subquery, parameters = pending.pop()
        if isinstance(node, list):
            pending.extend((item, in_subquery, parameters) for item in node)
        if not isinstance(node, dict):
            continue
        kind = node.get("class")
        # Without a table, as in `x = ANY(list)`, names in a subquery can only mean the outer columns.
        in_subquery = in_subquery or (node.get("from_table") or _NO_TABLE)["type"] != _NO_TABLE["type"]
        if kind == "POSITIONAL_REFERENCE":
            raise StatementNotAllowedError("write the name of a column instead of its position.")
        if node.get("ref_type") == "NATURAL":
            raise StatementNotAllowedError("NATURAL JOIN is not allowed: list the columns with USING (...).")
        if kind == "COLUMN_REF":
            names = [lower(name) for name in node["column_names"]]
            if names[0] not in parameters and _is_loose(names, tables, in_subquery=in_subquery):
                raise StatementNotAllowedError(
                    f"write '{node['column_names'][0]}' with its dataset, as in orders.id: if this column disappeared, "
                    "the name alone would mean something else."
                )
        elif kind == "LAMBDA" and node.get("syntax_type") == "LAMBDA_KEYWORD":
            names_of_values = {lower(name) for one in _columns(node["lhs"]) for name in one}
            pending.append((node["expr"], in_subquery, parameters | names_of_values))
        else:
            pending.extend((part, in_subquery, parameters) for part in node.values())


def _is_loose(names: list[str], tables: set[str], *, in_subquery: bool) -> bool:
    if len(names) > 1 and names[0] in tables:
        return False
    return names[0] not in _TIMES if in_subquery else names[0] in _FUNCTIONS


def _tables(node: Any) -> Iterator[str]:
    """Yield the names by which columns of tables can be qualified."""
    for one in _nodes(node):
        if "class" not in one and one.get("type") in _TABLES:
            yield from (one.get("alias", ""), *one.get("qualified_name", {}).get("path", ()))
            yield one.get("function", {}).get("function_name", "")


def _check_aliases(tree: Mapping[str, Any]) -> None:
    """Refuse another table with the name of the rule's dataset. A column that it lacks would be the dataset's own."""
    dataset = _path(tree["node"]["from_table"])
    for one in _nodes(tree):
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
    for one in _nodes(node):
        if one.get("class") == "COLUMN_REF":
            yield one["column_names"]


def _nodes(node: Any) -> Iterator[dict[str, Any]]:
    pending = [node]
    while pending:
        one = pending.pop()
        if isinstance(one, dict):
            yield one
            pending.extend(one.values())
        elif isinstance(one, list):
            pending.extend(one)

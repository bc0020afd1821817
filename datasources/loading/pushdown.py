"""
Determines the columns and rows that a `refresh_sql` needs, so that a source can skip the rest.

They are derived from the parse tree with an allowlist, as in the gate (`queryengine.gate.parse_tree`). If the SELECT
contains anything that could use columns without naming them, all columns are needed. If it could use rows that its
WHERE excludes, all rows are needed. The source may therefore read too much, but never too little. The complete SELECT,
including its WHERE, then runs on the rows that the source returns.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import duckdb

from datasources.sources.source import Bound, Operator, Value, Wanted
from datasources.sql import literal
from queryengine.gate.node_kinds import column_name, nodes_of
from queryengine.gate.parse_tree import decode

_PARSE: Final = "SELECT json_serialize_sql($1, skip_null := true, skip_empty := true, skip_default := true)"
_SETTINGS: Final[dict[str, str | bool | int | float | list[str]]] = {
    "threads": 1,
    "enable_external_access": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
}

#: Expressions that use only the columns they name. STAR, COLUMNS() and #1 are excluded, and so is LAMBDA, whose
#: parameters look like columns.
_EXPRESSIONS: Final = frozenset(
    {
        *("BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION"),
        *("OPERATOR", "SUBQUERY", "TYPE", "WINDOW"),
    }
)
#: The corresponding query nodes, table references and modifiers, without JOIN (NATURAL), PIVOT and SHOW_REF
#: (SUMMARIZE).
_NODES: Final = frozenset(
    {
        *("SELECT_NODE", "SET_OPERATION_NODE", "BASE_TABLE", "EMPTY", "SUBQUERY"),
        *("ORDER_MODIFIER", "ORDER_DEFAULT", "ASCENDING", "DESCENDING", "DISTINCT_MODIFIER", "LIMIT_MODIFIER"),
    }
)
#: Elements that rename columns by position.
_RENAMES: Final = frozenset({"column_name_alias", "aliases"})

_OPERATORS: Final[Mapping[str, Operator]] = {
    "COMPARE_EQUAL": "=",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}
_MIRRORED: Final[Mapping[Operator, Operator]] = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}

#: The types of literals such as DATE '2024-01-01', and the SQL for their values as Python types.
_TIMES: Final[Mapping[str, str]] = {
    "date": "{}::DATE",
    "timestamp": "{}::TIMESTAMP",
    "datetime": "{}::TIMESTAMP",
    "timestamptz": "{}::TIMESTAMPTZ AT TIME ZONE 'UTC'",
}
_ZONED: Final = "timestamptz"

#: The engine reads decimal numbers with more digits as floating-point numbers.
_MAX_DECIMAL_DIGITS: Final = 38

_Node = Mapping[str, Any]


def wanted_by(refresh_sql: str) -> Wanted:
    """Return the columns and rows that *refresh_sql*, a SELECT admitted by the gate, needs."""
    with duckdb.connect(":memory:", config=_SETTINGS) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        try:
            row = connection.execute(_PARSE, [refresh_sql]).fetchone()
        except duckdb.Error:
            return Wanted()  # The load reports the error.
        answer = decode(row[0]) if row else {}
        statements = answer.get("statements", ())
        if len(statements) != 1:
            return Wanted()
        root = statements[0]["node"]
        nodes = list(nodes_of(root))
        return Wanted(columns=_columns(nodes), bounds=tuple(_bounds(root, nodes, connection)))


def _columns(nodes: Iterable[_Node]) -> frozenset[str] | None:
    """Return every name that may be a column; None if columns may be used without being named."""
    names: set[str] = set()
    lasts: set[str] = set()
    relations: set[str] = set()
    for node in nodes:
        class_, type_ = node.get("class"), node.get("type")
        if isinstance(class_, str):
            if class_ not in _EXPRESSIONS:
                return None
        elif isinstance(type_, str) and type_ not in _NODES:
            return None
        if "sample" in node or not _RENAMES.isdisjoint(node):
            return None
        if parts := [part.lower() for part in column_name(node)]:
            # Only the engine knows which part is the column and which is a table, a schema or a field.
            names.update(parts)
            lasts.add(parts[-1])
        elif not isinstance(class_, str):
            relations.update(_relation_names(node))
    # A table name in a column position means a row with all columns of the table.
    return frozenset(names) if names and relations.isdisjoint(lasts) else None


def _relation_names(node: _Node) -> Iterator[str]:
    """Yield the names by which an expression may refer to a table reference or common table expression."""
    for name in (node.get("table_name"), node.get("alias"), node.get("key")):
        if isinstance(name, str):
            yield name.lower()


def _bounds(root: _Node, nodes: Iterable[_Node], connection: duckdb.DuckDBPyConnection) -> Iterator[Bound]:
    """Yield the comparisons in the WHERE clause of a plain SELECT that names the dataset only once."""
    tables = [node for node in nodes if node.get("type") == "BASE_TABLE"]
    if root.get("type") != "SELECT_NODE" or tables != [root.get("from_table")] or root["cte_map"].get("map"):
        return
    table = tables[0]
    if "sample" in root or "sample" in table or not _RENAMES.isdisjoint(table):
        return
    # WHERE may use an alias of the select list if no column has that name.
    given = {item["alias"].lower() for item in root["select_list"] if "alias" in item}
    given.update(_relation_names(table))
    for conjunct in _conjuncts(root.get("where_clause", {})):
        comparisons = list(_comparisons(conjunct))
        if len(comparisons) > 1 and not _are_alike([_value(right, connection) for _, _, right in comparisons]):
            continue
        for left, operator, right in comparisons:
            sides = ((left, operator, right), (right, _MIRRORED[operator], left))
            for name, towards, constant in sides:
                column, value = _column(name), _value(constant, connection)
                if column is not None and value is not None and column not in given:
                    yield Bound(column, towards, value)


def _conjuncts(where: _Node) -> Iterator[_Node]:
    pending = [where]
    while pending:
        node = pending.pop(0)
        if node.get("type") == "CONJUNCTION_AND":
            pending[:0] = node["children"]
        else:
            yield node


def _comparisons(node: _Node) -> Iterator[tuple[_Node, Operator, _Node]]:
    if node.get("class") == "COMPARISON" and node["type"] in _OPERATORS:
        yield node["left"], _OPERATORS[node["type"]], node["right"]
    elif node.get("type") == "COMPARE_BETWEEN":
        yield node["input"], ">=", node["lower"]
        yield node["input"], "<=", node["upper"]


def _are_alike(ends: Sequence[Value | None]) -> bool:
    """
    Return whether BETWEEN compares the column with each of *ends*, its bounds, as it would with that one alone.

    It casts its operands to one type, so a double at one end rounds the column for the other end as well.
    """
    return None not in ends and len({isinstance(end, float) for end in ends}) == 1


def _column(node: _Node) -> str | None:
    names: list[str] = node["column_names"] if node.get("class") == "COLUMN_REF" else []
    return names[0].lower() if len(names) == 1 else None


def _value(node: _Node, connection: duckdb.DuckDBPyConnection) -> Value | None:
    """Return the value of a literal; None for another node or a value that Python cannot represent exactly."""
    if node.get("class") == "CAST" and not node.get("try_cast"):
        child, kind = node["child"].get("literal", {}), node["type_expr"].get("type_name", "").lower()
        text = child.get("text", "")  # An empty text is left out.
        return _time(text, kind, connection) if child.get("kind") == "STRING" and kind in _TIMES else None
    written = node.get("literal", {}) if node.get("class") == "CONSTANT" else {}
    text = written.get("text", "")
    match written.get("kind"):
        case "STRING":
            return str(text)
        case "INTEGER":
            return int(text)
        case "NUMERIC":
            if "e" in text.lower():
                return float(text)
            return Decimal(text) if sum(map(str.isdigit, text)) <= _MAX_DECIMAL_DIGITS else None
    return None


def _time(text: str, kind: str, connection: duckdb.DuckDBPyConnection) -> date | datetime | None:
    moment = _TIMES[kind].format(literal(text))
    try:
        row = connection.execute(f"SELECT m FROM (SELECT {moment} AS m) WHERE isfinite(m)").fetchone()  # noqa: S608
    except duckdb.Error:
        return None  # The load reports the error.
    value: Any = row[0] if row else None
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if kind == _ZONED else value
    return value if isinstance(value, date) else None

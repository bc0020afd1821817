"""
Collects the names in the parse tree of a rule, and refuses forms that take columns by their position.

The meaning of a name depends on the columns of the data. In `tenant IN (SELECT tenant FROM grants)`, the inner name
means the outer column once `grants` has lost its own, and the condition is true for every row. In `orders.tenant`, the
first name means a column `orders` of an inner table once that table has gained it. `lasting_rules` in
`queryengine.execution` checks this with the columns of the data. It must know which names are meant to be columns.

A star takes columns by position: `tenant IN (FROM grants)` reads whatever is the only column of `grants`. PIVOT without
GROUP BY depends on all columns. Names do not become values, because their letters' case may change.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from queryengine.errors import StatementNotAllowedError
from queryengine.gate.lexer import lower
from queryengine.gate.node_kinds import SCHEMAS, before_function, column_name, nodes_of

#: Names of functions that are useful in a rule, and are not columns.
_TIMES: Final = frozenset({"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"})
_NO_TABLE: Final = {"type": "EMPTY"}


class Names(Struct, frozen=True):
    """
    The names in a rule, each in lower case.

    Attributes:
        columns: Names that are meant to be columns, each followed by the names of fields.
        others: Names that are meant to be tables, schemas, parameters of lambdas, or functions, each followed by the
            names of the fields that a column in its place would need.
        uncast: The parts of all names of columns that do not stand alone in a CAST.
        spreads: Whether the fields of a structure may become columns.
    """

    columns: frozenset[tuple[str, ...]] = frozenset()
    others: frozenset[tuple[str, ...]] = frozenset()
    uncast: frozenset[str] = frozenset()
    spreads: bool = False


def lasting_names(tree: Mapping[str, Any]) -> Names:
    """
    Return the names in the tree of `SELECT (rule) FROM dataset`.

    Raises:
        StatementNotAllowedError: The rule takes columns by their position, or names for values, or a lambda hides a
            table.
    """
    _check_forms(tree)
    if any(map(_takes_name, nodes_of(tree))):
        raise StatementNotAllowedError("UNPIVOT, alias(a) and struct_pack(a) take the name of a column for a value.")
    found = _Collector(tree)
    pending: list[tuple[Any, frozenset[str]]] = [(tree, frozenset())]
    while pending:
        node, parameters = pending.pop()
        if isinstance(node, list):
            pending.extend((item, parameters) for item in node)
        if not isinstance(node, dict):
            continue
        for names in _names(node):
            found.add(names, node, parameters)
        if node.get("class") == "LAMBDA" and node.get("syntax_type") == "LAMBDA_KEYWORD":
            parameters = parameters.union(found.parameters_of(node))
            node = {"expr": node["expr"]}
        pending.extend((one, parameters) for one in node.values())
    spreads = any(map(_spreads, nodes_of(tree)))
    return Names(frozenset(found.columns), frozenset(found.others), _uncast(tree), spreads)


class _Collector:
    """The names in *tree*: see `Names`."""

    def __init__(self, tree: Mapping[str, Any]) -> None:
        self.columns: set[tuple[str, ...]] = set()
        self.others: set[tuple[str, ...]] = set()
        nodes = [*nodes_of(tree)]
        self._tables = {*SCHEMAS, *(lower(name) for one in nodes for name in _names_of_table(one))}
        self._datasets = {
            _without_schema(one["qualified_name"]["path"]) for one in nodes if one.get("type") == "BASE_TABLE"
        }
        self._derived = _derived_tables(tree)
        if functions := self._tables & _TIMES:
            raise StatementNotAllowedError(f"a table must not have the name {min(functions)}, which is a function.")

    def add(self, names: Sequence[str], node: Mapping[str, Any], parameters: frozenset[str]) -> None:
        """
        Add the name in *node* with the lower-case parts *names*, within lambdas with these *parameters*.

        Raises:
            StatementNotAllowedError: The name means a whole row, which depends on all columns.
        """
        kind, is_alone = node.get("class"), len(names) == 1
        if names[0] in parameters:
            # A parameter alone comes before any column, but a field or method of it does not.
            self.others.update([tuple(names)] if not is_alone or kind != "COLUMN_REF" else ())
        elif kind in {"FUNCTION", "WINDOW"} and SCHEMAS.issuperset(names):
            self.others.add((names[0],))  # A method of a column would come before a function of a schema.
        elif is_alone and (names[0] in _TIMES or (names[0] in self._tables and kind == "STAR")):
            self.others.add(tuple(names))
        elif kind is not None and (names[0] in self._derived if is_alone else _without_schema(names) in self._datasets):
            raise StatementNotAllowedError(f"write the columns of {names[-1]} instead of {'.'.join(names)} alone.")
        else:
            start = next(i for i, name in enumerate(names) if name not in self._tables or i == len(names) - 1)
            self.others.update(tuple(names[i:]) for i in range(start))
            self.columns.add(tuple(names[start:]))

    def parameters_of(self, node: Mapping[str, Any]) -> set[str]:
        """Return the parameters of a lambda. Raises StatementNotAllowedError if one has the name of a table."""
        found = {lower(name) for one in nodes_of(node["lhs"]) for name in one.get("column_names", ())}
        if hidden := found & self._tables:
            raise StatementNotAllowedError(
                f"the parameter {min(hidden)} of a lambda must not have the name of a table."
            )
        return found


def _names(node: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the names that *node* itself contains, each as a list of its parts in lower case."""
    if written := column_name(node) or before_function(node):
        yield [*map(lower, written)]
    if node.get("class") == "STAR" and node.get("relation_name"):
        yield [lower(node["relation_name"])]
    yield from ([lower(name)] for name in (*node.get("using_columns", ()), *node.get("groups", ())))


def _without_schema(path: Iterable[str]) -> tuple[str, ...]:
    """Return the lower-case *path* of a table without the default database and schema."""
    names = [*map(lower, path)]
    return tuple(name for name in names[:-1] if name not in {"main", "runtime"}) + tuple(names[-1:])


def _names_of_table(node: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names under which a table reference or common table expression can be written."""
    if "class" not in node and "type" in node:
        yield from node.get("qualified_name", {}).get("path", ())
        yield from filter(None, (node.get("alias"), node.get("function", {}).get("function_name")))
    yield from (entry["key"] for entry in node.get("cte_map", {}).get("map", ()))


def _spreads(node: Mapping[str, Any]) -> bool:
    if node.get("class") == "STAR":
        return bool(node.get("relation_name") or node.get("expr"))
    return lower(node.get("function_name", "")) in {"unlist", "unnest"}


def _derived_tables(tree: Mapping[str, Any]) -> set[str]:
    """Return the names of tables whose columns a query, join or pivot gives. Alone, such a name is a whole row."""
    expressions = {lower(entry["key"]) for one in nodes_of(tree) for entry in one.get("cte_map", {}).get("map", ())}
    return expressions.union(
        lower(one["alias"])
        for one in nodes_of(tree)
        if one.get("alias") and "class" not in one
        if one.get("type") in {"JOIN", "PIVOT", "SUBQUERY"}
        or not expressions.isdisjoint(map(lower, _names_of_table(one)))
    )


def _uncast(tree: Mapping[str, Any]) -> frozenset[str]:
    found: set[str] = set()
    pending: list[Any] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending.extend(node)
        elif isinstance(node, dict):
            found.update(name for names in _names(node) for name in names)
            # A method of a column, as in CAST(x.greatest(y) AS DATE), runs before the cast.
            # That of `x IS TRUE` is the parser's, and has no length.
            is_cast = node.get("class") == "CAST" and node.get("query_location_length")
            is_cast = is_cast and node["child"].get("class") == "COLUMN_REF"
            pending.extend(one for key, one in node.items() if not (is_cast and key == "child"))
    return frozenset(found)


def _check_forms(tree: Mapping[str, Any]) -> None:
    """Refuse positions, stars and natural joins."""
    harmless = {id(star) for one in nodes_of(tree) for star in _read_by_name(one)}
    for one in nodes_of(tree):
        if one.get("class") == "STAR" and id(one) not in harmless:
            raise StatementNotAllowedError("write the names of the columns instead of * or a query without SELECT.")
        if one.get("type") == "PIVOT" and one.get("aggregates") and not one.get("groups"):
            raise StatementNotAllowedError("write GROUP BY in a PIVOT: without it, each other column makes groups.")
        if one.get("class") == "POSITIONAL_REFERENCE":
            raise StatementNotAllowedError("write the name of a column instead of its position.")
        using = {lower(column) for column in one.get("using_columns", ())}
        if not all(_has_using(one[side], column) for column in using for side in ("left", "right")):
            raise StatementNotAllowedError("write ON with the tables of columns instead of USING beside another join.")
        if one.get("ref_type") == "NATURAL":
            raise StatementNotAllowedError("NATURAL JOIN is not allowed: list the columns with USING (...).")
        if one.get("aliases") or one.get("column_name_alias"):
            renamed = [*nodes_of(one)]
            if one.get("type") != "BASE_TABLE" and not any(inner.get("class") == "STAR" for inner in renamed):
                continue
            if not any(inner.get("type") == "BASE_TABLE" for inner in renamed):
                continue
            raise StatementNotAllowedError("write the names of columns instead of new ones by position, as in t(a, b).")


def _takes_name(node: Mapping[str, Any]) -> bool:
    """Return whether the result of *node* contains the name of a column as the data writes it."""
    function = lower(node.get("function_name", ""))
    if function != "struct_pack":
        return function == "alias" or bool(node.get("unpivot_names"))
    return bool(before_function(node)) or not all(one.get("name") for one in node.get("arguments", ()))


def _read_by_name(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """
    Yield the stars of a query in *node* whose columns nobody reads, as in EXISTS, or only by name, as in FROM and WITH.

    If tables are joined there, another one's column could take the place of one that has disappeared.
    """
    is_table = node.get("type") == "SUBQUERY" and "class" not in node
    if node.get("subquery_type") == "EXISTS" or is_table:
        query = node["subquery"]["node"]
    else:  # The columns of VALUES do not change.
        query = node if node.get("from_table", _NO_TABLE)["type"] == "EXPRESSION_LIST" else node.get("query_node", {})
    selected, is_joined = query.get("select_list", ()), query.get("from_table", _NO_TABLE)["type"] == "JOIN"
    if query.get("aggregate_handling") != "STANDARD_HANDLING" or (node.get("subquery_type") != "EXISTS" and is_joined):
        return
    modifiers = query.get("modifiers", ())
    orders = [order for one in modifiers for order in one.get("orders", ())]
    ordered_or_grouped = [*orders, *query.get("group_expressions", ())]
    if any(not any(map(column_name, nodes_of(one))) for one in ordered_or_grouped):  # A number is a position.
        return
    if len(selected) == 1 and not any(one["type"] == "DISTINCT_MODIFIER" for one in modifiers):
        # A column that is renamed stands behind that of its new name.
        yield from (
            one for one in selected if one.get("class") == "STAR" and not one.keys() & {"columns", "rename_list"}
        )


def _has_using(table: Mapping[str, Any], column: str) -> bool:
    """Return whether *column* can only be that of one side of *table*, or of both."""
    return table["type"] != "JOIN" or column in map(lower, table.get("using_columns", ()))

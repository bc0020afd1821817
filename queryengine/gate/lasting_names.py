"""
Checks that names in the parse tree of a rule keep their meaning when the columns of the data change.

In SQL, a name in a subquery means the column of an outer table once its own table has lost it: in `tenant IN (SELECT
tenant FROM grants)`, the inner name then means the outer column, and the condition is true for every row. So in a rule,
a name without its table must be a column of the innermost query's only table, or the rule does not fit the data. A name
with its table must be a column of this table: `grants.tenant` could otherwise be a field of an outer column `grants`.

A name in a subquery also means the column of an inner table once that table has gained it: the outer column
`orders.tenant` then is a field of a column `orders` in `grants`. So no inner table may have a column with the name of
an outer table. Likewise, `x.name` and `x.lower()` mean a column `x` instead of the parameter `x` of a lambda.

A star takes columns by position: `tenant IN (FROM grants)` reads whatever is the only column of `grants`.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from queryengine.errors import StatementNotAllowedError
from queryengine.gate.lexer import lower
from queryengine.gate.node_kinds import column_name, nodes_of
from queryengine.values import qualified, quoted

#: The tables of a query, one of which must have the column whose lower-case name follows.
OwnColumn = tuple[tuple[str, ...], str]
#: Datasets, none of which may have a column with the lower-case name that follows. If True follows, columns without
#: fields are allowed.
ForeignName = tuple[tuple[str, ...], str, bool]

#: Names that mean a function of the engine if there is no such column.
_FUNCTIONS: Final = frozenset(
    {"current_catalog", "current_role", "current_schema", "current_user", "session_user", "user"}
)
#: Names of functions that are useful in a rule.
_TIMES: Final = frozenset({"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"})
#: References to tables, by `type`.
_TABLES: Final = frozenset({"BASE_TABLE", "EXPRESSION_LIST", "PIVOT", "SUBQUERY", "TABLE_FUNCTION"})
_NO_TABLE: Final = {"type": "EMPTY"}


class Names(Struct, frozen=True):
    """
    The names in a rule, each in lower case.

    Attributes:
        own: Names that must be columns of a table.
        foreign: Names that must not be columns of these datasets.
        uncast: The parts of all names of columns that do not stand alone in a CAST.
    """

    own: frozenset[OwnColumn] = frozenset()
    foreign: frozenset[ForeignName] = frozenset()
    uncast: frozenset[str] = frozenset()


def lasting_names(tree: Mapping[str, Any]) -> Names:
    """
    Check the tree of `SELECT (rule) FROM dataset`, and return what must be a column of a table, and what must not.

    Names with a dataset must be columns of it, and names in subqueries without one must be columns of the innermost
    tables. Names of tables must not be columns of tables that are searched first.

    Raises:
        StatementNotAllowedError: A name could later mean something else, whatever the data.
    """
    names = _Names(_path(tree["node"]["from_table"]), tree["node"]["select_list"])
    expressions = {lower(entry["key"]) for one in nodes_of(tree) for entry in one.get("cte_map", {}).get("map", ())}
    _check_forms(tree)
    # The tables of the innermost query are None outside subqueries.
    seen = {names.dataset[-1]: ".".join(names.dataset)}
    pending = [_Part(tree["node"]["select_list"], None, frozenset(), seen, frozenset())]
    while pending:
        part = pending.pop()
        node = part.node
        if isinstance(node, list):
            pending.extend(replace(part, node=item) for item in node)
        if not isinstance(node, dict):
            continue
        names.add(part)
        if node.get("class") == "LAMBDA" and node.get("syntax_type") == "LAMBDA_KEYWORD":
            names_of_values = {lower(name) for one in _columns(node["lhs"]) for name in one}
            pending.append(replace(part, node=node["expr"], parameters=part.parameters | names_of_values))
        else:
            pending.extend(_parts(part, expressions))
    return Names(frozenset(names.own), frozenset(names.foreign), _uncast(tree))


def _uncast(tree: Mapping[str, Any]) -> frozenset[str]:
    found: set[str] = set()
    pending: list[Any] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending.extend(node)
        elif isinstance(node, dict):
            found.update(map(lower, [*column_name(node), *node.get("using_columns", ())]))
            # A method of a column, as in CAST(x.greatest(y) AS DATE), runs before the cast.
            is_cast = node.get("class") == "CAST" and node["child"].get("class") == "COLUMN_REF"
            pending.extend(one for key, one in node.items() if not (is_cast and key == "child"))
    return frozenset(found)


class _Part(Struct, frozen=True):
    """
    A node with the tables of its innermost query, and the parameters of lambdas.

    It sees all tables in `seen` by name; those that are `near` belong to its innermost query.
    """

    node: Any
    own: tuple[str, ...] | None
    parameters: frozenset[str]
    seen: Mapping[str, str]
    near: frozenset[str]


class _Names:
    """The names in a rule of *dataset*, whose expression is *node*: see `lasting_names`."""

    def __init__(self, dataset: list[str], node: Any) -> None:
        self.dataset = dataset
        self.own: set[OwnColumn] = set()
        self.foreign: set[ForeignName] = set()
        # These include names of common table expressions.
        inner = {".".join(_path(one)) for one in nodes_of(node) if one.get("type") == "BASE_TABLE"}
        self._inner, self._all = tuple(sorted(inner)), tuple(sorted({".".join(dataset), *inner}))

    def add(self, part: "_Part") -> None:
        """Add the name of a column, if the node of *part* is one. Raises StatementNotAllowedError."""
        written = column_name(part.node)
        names, own = [lower(name) for name in written], part.own
        if not names:
            return
        if names[0] in part.parameters:
            self._add_parameter(part, names)
        elif names == self.dataset[-1:] and own is None:  # Without such a column, it would mean the whole row.
            self.own.add(((".".join(map(quoted, self.dataset)),), names[0]))
        elif (column := _column(names, part.seen)) is not None:
            if column[0]:
                self.own.add(column)
            else:
                self.foreign.add((self._all, column[1], True))
            if own is not None and names[0] not in part.near:
                self.foreign.add((self._inner, names[0], True))
        elif names[0] in _TIMES:
            self.foreign.add((self._all, names[0], False))
        elif own is not None or names[0] in _FUNCTIONS:
            if own is None or len(own) != 1:
                raise StatementNotAllowedError(
                    f"write '{written[0]}' with its dataset, as in orders.id: if this column disappeared, the name "
                    "alone would mean something else."
                )
            self.own.add((own, names[0]))

    def _add_parameter(self, part: "_Part", names: Sequence[str]) -> None:
        """Add a name that begins with the parameter of a lambda. Raises StatementNotAllowedError."""
        if len(names) == 1 and part.node["class"] == "COLUMN_REF":  # The parameter comes first.
            return
        if names[0] in part.seen:
            raise StatementNotAllowedError(f"the parameter {names[0]} of a lambda must not have the name of a table.")
        # A method of the parameter would be one of any column with its name.
        self.foreign.add((self._all, names[0], len(names) > 1))


def _parts(part: _Part, expressions: set[str]) -> Iterator[_Part]:
    """Yield the parts of the node of *part*, each with the tables that it sees."""
    node: Mapping[str, Any] = part.node
    table = node.get("from_table") or _NO_TABLE
    if node.get("type") == "JOIN" and "class" not in node:
        yield replace(part, node=node["left"])
        yield replace(part, node=node["right"], seen=_with(part.seen, node["left"], expressions))
        own = (_own_tables(node["left"], expressions), _own_tables(node["right"], expressions))
        seen = _with(part.seen, {**node, "join_type": "INNER"}, expressions)  # Its condition sees both sides.
        near = frozenset(_with({}, {**node, "join_type": "INNER"}, expressions))
        inner = replace(part, own=own[0] + own[1] if all(own) else (), seen=seen, near=near)
        yield from (replace(inner, node=one) for key, one in node.items() if key not in {"left", "right"})
    elif table["type"] != _NO_TABLE["type"]:
        seen, near = _with(part.seen, table, expressions), frozenset(_with({}, table, expressions))
        inner = replace(part, own=_own_tables(table, expressions), seen=seen, near=near)
        yield replace(inner, node=table, seen=part.seen)
        yield replace(part, node=node.get("cte_map"))
        yield from (replace(inner, node=one) for key, one in node.items() if key not in {"from_table", "cte_map"})
    else:  # Without a table, as in `x = ANY(list)`, names are the outer query's.
        yield from (replace(part, node=one) for one in node.values())


def _own_tables(table: Mapping[str, Any], expressions: set[str]) -> tuple[str, ...]:
    """Return the tables whose columns a FROM clause gives; none if the columns of one of them are unknown."""
    found: list[str] = []
    pending = [table]
    while pending:
        one = pending.pop()
        if one["type"] == "JOIN":
            pending.append(one["left"])
            if one.get("join_type") not in {"SEMI", "ANTI"}:
                pending.append(one["right"])
        elif one["type"] == "BASE_TABLE" and _path(one)[-1] not in expressions:
            found.append(_quoted_path(one))
        else:
            return ()
    return tuple(found)


def _with(seen: Mapping[str, str], table: Mapping[str, Any], expressions: set[str]) -> Mapping[str, str]:
    """
    Return what a query sees that reads *table* and sees the tables *seen* around it.

    It does not see the right side of a SEMI or ANTI JOIN, but the check applies to that, too.

    Raises:
        StatementNotAllowedError: Two different tables have one name. If the inner one lacked a column, its qualified
            name would mean the outer one's.
    """
    found = dict(seen)
    pending = [(table, True)]
    while pending:
        one, is_visible = pending.pop()
        if one["type"] == "JOIN":
            is_joined = one.get("join_type") not in {"SEMI", "ANTI"}
            pending += [(one["left"], is_visible), (one["right"], is_visible and is_joined)]
        elif one["type"] in _TABLES:
            path = _path(one)
            name = lower(one.get("alias") or path[-1] or one.get("function", {}).get("function_name", ""))
            is_dataset = one["type"] == "BASE_TABLE" and path[-1] not in expressions
            meant = ".".join(path) if is_dataset else f"{name} at {id(one)}"
            if name and seen.get(name, meant) != meant:
                raise StatementNotAllowedError(
                    f"another table must not have the name {name} as well: write FROM ... AS with another name."
                )
            if is_visible:
                found[name] = meant
    return found


def _column(names: list[str], seen: Mapping[str, str]) -> OwnColumn | None:
    """
    Return the column that a name with a table means; None if it has none of the tables that are *seen*.

    If the table is a subquery with unknown columns, return its name alone.
    """
    for before, (table, column) in enumerate(pairwise(names)):
        meant = seen.get(table)
        if meant is not None and {"main", "runtime", *meant.split(".")[:-1]}.issuperset(names[:before]):
            return ((), table) if " " in meant else ((qualified(meant),), column)
    return None


def _check_forms(tree: Mapping[str, Any]) -> None:
    """Refuse positions, stars and natural joins."""
    harmless = {id(star) for one in nodes_of(tree) for star in _read_by_name(one)}
    for one in nodes_of(tree):
        if one.get("class") == "STAR" and id(one) not in harmless:
            raise StatementNotAllowedError("write the names of the columns instead of * or a query without SELECT.")
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
    if len(selected) == 1 and not any(one["type"] == "DISTINCT_MODIFIER" for one in query.get("modifiers", ())):
        # A column that is renamed stands behind that of its new name.
        yield from (
            one for one in selected if one.get("class") == "STAR" and not one.keys() & {"columns", "rename_list"}
        )


def _has_using(table: Mapping[str, Any], column: str) -> bool:
    """Return whether *column* can only be that of one side of *table*, or of both."""
    return table["type"] != "JOIN" or column in map(lower, table.get("using_columns", ()))


def _path(table: Mapping[str, Any]) -> list[str]:
    """Return the name of *table* without the default database and schema; one empty part if it has none."""
    path = [lower(part) for part in table.get("qualified_name", {}).get("path", ("",))]
    return [*(part for part in path[:-1] if part not in {"main", "runtime"}), path[-1]]


def _quoted_path(table: Mapping[str, Any]) -> str:
    return ".".join(map(quoted, table["qualified_name"]["path"]))


def _columns(node: Any) -> Iterator[list[str]]:
    for one in nodes_of(node):
        if one.get("class") == "COLUMN_REF":
            yield one["column_names"]

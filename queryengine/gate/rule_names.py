"""
Decides what each name in the rule of a key means, and refuses rules whose text alone does not decide it.

SQL looks names up in the columns that exist. In `tenant IN (SELECT tenant FROM grants)`, the inner name means the outer
column once `grants` has lost its own, and the condition is true for every row. In `orders.tenant`, the first name means
a column `orders` of an inner dataset as soon as that has one with fields. Therefore:

* The subqueries of a rule read declared datasets and views, joined with ON or USING. There are no other tables and no
  new names of columns.
* A name alone means a column of the only dataset in FROM, or one in USING. Otherwise in a join, and for columns of an
  outer query, the name of the dataset or its alias stands before it.
* Nothing takes columns by position, and no name becomes a value, because the source may write it in capitals.

`Names` says which columns the data must have, and which it must not have, so that the engine finds the same meanings.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Final, NamedTuple

from msgspec import Struct

from queryengine.errors import StatementNotAllowedError
from queryengine.gate.lexer import lower
from queryengine.gate.node_kinds import SCHEMAS, before_function, nodes_of

#: A dataset or view, and a column, both in lower case.
Column = tuple[str, str]

#: Names of functions without parentheses. A column of the same name would come first.
_TIMES: Final = frozenset({"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"})

#: The parts of queries that a rule may have, by `type`.
_PARTS: Final = frozenset(
    {
        *("SELECT_NODE", "SET_OPERATION_NODE", "BASE_TABLE", "EMPTY", "JOIN"),
        *("ORDER_MODIFIER", "ORDER_DEFAULT", "ASCENDING", "DESCENDING", "DISTINCT_MODIFIER", "LIMIT_MODIFIER"),
    }
)

#: The expressions that a rule may have, by `class`.
_EXPRESSIONS: Final = frozenset(
    {
        *("BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION"),
        *("LAMBDA", "OPERATOR", "SUBQUERY", "TYPE", "WINDOW"),
    }
)

_JOINS: Final = frozenset({"CROSS", "REGULAR"})
#: Joins outside of which one of the two tables cannot be named.
_HIDING: Final = frozenset({"ANTI", "SEMI"})

#: The keys of a star without EXCLUDE, REPLACE and the like.
_PLAIN_STAR: Final = frozenset({"class", "type", "query_location", "query_location_length"})

_TABLES: Final = (
    "the subqueries of a rule can read only declared datasets and views, joined with ON or USING: "
    "write it without WITH, VALUES, NATURAL, SEMI or ANTI JOIN and queries in FROM."
)
_COLUMNS: Final = "write the names of the columns instead of *, ALL, a position or a query without SELECT."


class Names(Struct, frozen=True):
    """
    The columns that decide what the names in a rule mean.

    Attributes:
        columns: Those that the names mean. The rule does not fit data without one of them.
        absent: Those that could take the place of a name. The rule does not fit data with one of them.
        uncast: Those of `columns` that do not stand alone in a CAST everywhere.
    """

    columns: frozenset[Column] = frozenset()
    absent: frozenset[Column] = frozenset()
    uncast: frozenset[Column] = frozenset()


class _Table(NamedTuple):
    alias: str
    relation: str


class _Scope(NamedTuple):
    """What a name can mean: a column of the `tables` in FROM or of an `outer` query, or a parameter of a lambda."""

    tables: Sequence[_Table] = ()
    using: frozenset[str] = frozenset()
    outer: "_Scope | None" = None
    parameters: frozenset[str] = frozenset()


def rule_names(tree: Mapping[str, Any]) -> Names:
    """
    Return the names in the tree of `SELECT (rule) FROM dataset`.

    Raises:
        StatementNotAllowedError: The rule has a form in which the columns of the data decide what a name means.
    """
    return _Reader(tree).read(tree)


class _Reader:
    """Reads the names in *tree*."""

    def __init__(self, tree: Mapping[str, Any]) -> None:
        tables = [node for node in nodes_of(tree) if node.get("type") == "BASE_TABLE"]
        self._relations = {_relation(node) for node in tables}
        self._schemas = SCHEMAS.union(one.rpartition(".")[0] for one in self._relations)
        if functions := _TIMES.intersection(_table(node).alias for node in tables):
            raise StatementNotAllowedError(f"a table must not have the name {min(functions)}, which is a function.")
        self._columns: set[Column] = set()
        self._absent: set[Column] = set()
        self._uncast: set[Column] = set()

    def read(self, tree: Mapping[str, Any]) -> Names:
        """Return the names. The parser's limit on depth is not Python's, so this does not call itself."""
        pending: list[tuple[Any, _Scope]] = [(tree, _Scope())]
        while pending:
            node, scope = pending.pop()
            if isinstance(node, list):
                pending.extend((item, scope) for item in node)
            elif isinstance(node, dict):
                pending.extend(self._expression(node, scope) if "class" in node else self._part(node, scope))
        return Names(frozenset(self._columns), frozenset(self._absent), frozenset(self._uncast))

    def _part(self, node: dict[str, Any], scope: _Scope) -> list[tuple[Any, _Scope]]:
        """Check a part of a query, and return what to read next."""
        kind = node.get("type")
        if kind not in {*_PARTS, None} or node.get("cte_map", {}).get("map") or node.get("sample"):
            raise StatementNotAllowedError(_TABLES)
        if node.get("column_name_alias"):
            raise StatementNotAllowedError("write the names of columns instead of new ones by position, as in t(a, b).")
        if kind == "SET_OPERATION_NODE" and node.get("modifiers"):
            raise StatementNotAllowedError("write ORDER BY and LIMIT within the parts of a UNION.")
        if node.get("aggregate_handling", "STANDARD_HANDLING") != "STANDARD_HANDLING":
            raise StatementNotAllowedError(_COLUMNS)
        if kind == "SELECT_NODE":
            if aliases := [*filter(None, (one.get("alias") for one in node["select_list"]))]:
                raise StatementNotAllowedError(f"leave out the name {aliases[0]} after AS: a rule does not need it.")
            if node["from_table"]["type"] != "EMPTY":
                scope = _scope_of(node["from_table"], scope if scope.tables else None)
        elif kind == "JOIN":
            self._join(node)
            scope = _scope_of(node, scope.outer)  # The condition of an inner join does not see all tables.
        # What is last is read first, so that the message is about a table rather than about its columns.
        return sorted(((one, scope) for one in node.values()), key=lambda one: one[0] is node.get("from_table"))

    def _join(self, node: Mapping[str, Any]) -> None:
        """Check a join, and add the columns in its USING."""
        if node["right"]["type"] == "JOIN":  # Its condition would see the tables on the left, too.
            raise StatementNotAllowedError("write one join after the other, each with its ON or USING.")
        if node["ref_type"] not in _JOINS or node["join_type"] in _HIDING or node.get("alias"):
            raise StatementNotAllowedError(_TABLES)
        for column, side in product(map(lower, node.get("using_columns", ())), (node["left"], node["right"])):
            if side["type"] == "BASE_TABLE":
                self._add((_relation(side), column))
            elif column not in map(lower, side.get("using_columns", ())):
                raise StatementNotAllowedError(f"write ON with the dataset before {column} instead of USING.")

    def _expression(self, node: dict[str, Any], scope: _Scope) -> list[tuple[Any, _Scope]]:
        """Check an expression, and return what to read next."""
        kind = node["class"]
        if kind not in _EXPRESSIONS:
            raise StatementNotAllowedError(_COLUMNS)
        if kind == "CONSTANT":
            return []
        if kind == "COLUMN_REF":
            self._name([*map(lower, node["column_names"])], scope, is_cast=False)
            return []
        if kind in {"FUNCTION", "WINDOW"}:
            _check_function(node)
        elif kind == "LAMBDA" and node["syntax_type"] == "LAMBDA_KEYWORD":
            names = (lower(name) for one in nodes_of(node["lhs"]) for name in one.get("column_names", ()))
            return [(node["expr"], scope._replace(parameters=scope.parameters.union(names)))]
        elif kind == "SUBQUERY":
            return self._subquery(node, scope)
        # The parser makes a CAST of `x IS TRUE`, too, but that has no length.
        elif kind == "CAST" and node.get("query_location_length") and node["child"]["class"] == "COLUMN_REF":
            self._name([*map(lower, node["child"]["column_names"])], scope, is_cast=True)
            return [(node["type_expr"], scope)]
        return [(one, scope) for one in node.values()]

    def _subquery(self, node: Mapping[str, Any], scope: _Scope) -> list[tuple[Any, _Scope]]:
        if scope.parameters:
            raise StatementNotAllowedError("a lambda cannot contain a subquery.")
        query = node["subquery"]["node"]
        if node["subquery_type"] == "EXISTS" and _has_unread_star(query):
            query = {**query, "select_list": []}
        return [(query, scope), (node.get("child"), scope)]

    def _name(self, names: list[str], scope: _Scope, *, is_cast: bool) -> None:
        """Add the columns that decide what the lower-case *names* mean, which are separated by dots."""
        first, *fields = names
        if not fields and first in scope.parameters | scope.using:
            return
        if not fields and first in _TIMES:
            self._absent.update((relation, first) for relation in self._relations)
            return
        written = ".".join(names)
        if fields and first in scope.parameters:
            raise StatementNotAllowedError(f"write {first}['{fields[0]}'] instead of {written}.")
        if len(fields) > 1 and first in self._schemas:
            raise StatementNotAllowedError(f"write {'.'.join(fields)} instead of {written}.")
        column = self._qualified(first, fields[0], scope) if fields else None
        if column is None:
            if len(scope.tables) != 1 or (fields and scope.outer is not None):
                raise StatementNotAllowedError(f"write the dataset or its alias before {written}.")
            column = (scope.tables[0].relation, first)
        self._add(column, is_cast=is_cast)

    def _add(self, column: Column, *, is_cast: bool = False) -> None:
        self._columns.add(column)
        if not is_cast:
            self._uncast.add(column)

    def _qualified(self, alias: str, column: str, scope: _Scope) -> Column | None:
        """Return the column of the table *alias*; None if there is none in *scope*."""
        passed: set[Column] = set()  # Columns of this name with fields would come before the table.
        around: _Scope | None = scope
        while around is not None:
            passed.update((table.relation, alias) for table in around.tables if table.alias != alias)
            for table in around.tables:
                if table.alias == alias:
                    self._absent |= passed
                    return table.relation, column
            around = around.outer
        return None


def _scope_of(source: Mapping[str, Any], outer: _Scope | None) -> _Scope:
    """Return the scope of the tables that *source*, which is a table or a join, consists of."""
    tables: list[_Table] = []
    using: set[str] = set()
    pending = [source]
    while pending:
        one = pending.pop()
        if one["type"] == "BASE_TABLE":
            tables.append(_table(one))
        elif one["type"] == "JOIN":
            using.update(map(lower, one.get("using_columns", ())))
            pending += [one["left"], one["right"]]
    return _Scope(tables, frozenset(using), outer)


def _table(node: Mapping[str, Any]) -> _Table:
    return _Table(lower(node.get("alias") or node["qualified_name"]["path"][-1]), _relation(node))


def _relation(node: Mapping[str, Any]) -> str:
    *before, name = map(lower, node["qualified_name"]["path"])
    return ".".join((*(one for one in before if one not in {"main", "runtime"}), name))


def _check_function(node: Mapping[str, Any]) -> None:
    name = lower(node["function_name"])
    if before := before_function(node):
        raise StatementNotAllowedError(f"write {name}({'.'.join(before)}) instead of {'.'.join(before)}.{name}().")
    arguments = node.get("arguments", ())
    if name == "alias" or (name == "struct_pack" and not all(one.get("name") for one in arguments)):
        raise StatementNotAllowedError(f"{name} takes the name of a column for a value.")


def _has_unread_star(query: Mapping[str, Any]) -> bool:
    """Return whether *query* is `SELECT * FROM ... WHERE ...`, in which an EXISTS reads no column."""
    selected = query.get("select_list", ())
    read = ("group_expressions", "group_sets", "having", "qualify")
    return (
        [one["class"] for one in selected] == ["STAR"]
        and not any(selected[0][key] for key in selected[0].keys() - _PLAIN_STAR)
        and not any(query.get(key) for key in read)
        and all(one["type"] == "LIMIT_MODIFIER" for one in query.get("modifiers", ()))
    )

"""
Decides by the text of a key's rule what each of its names means, and writes this into the rule.

SQL looks names up in the columns that exist, and if an expression does not fit its own query, in those around it. In
`tenant IN (SELECT tenant FROM grants)`, the inner name means the outer column once `grants` has lost its own, and the
condition is true for every row. In `orders.tenant`, the first name means a column `orders` of an inner dataset as soon
as that has one with fields. Therefore each dataset in a rule gets an alias that nothing else has, and each column is
written with the alias of its dataset: `_xyz0.tenant IN (SELECT _xyz1.tenant FROM grants AS _xyz1)`. If there is no such
column any more, the engine finds no other meaning, and the rule does not fit the data. The parameters of lambdas get
names of their own, too, because `lambda part: {'p': part}` would mean a column `part`.

So that the text alone decides whose column a name is, the subqueries of a rule read declared datasets and views, joined
with ON or USING. A name alone means a column of the only dataset in FROM. In a join, and for columns of an outer query,
the name of the dataset or its alias stands before it. Nothing takes columns by position, and no name becomes a value,
because the source may write it in capitals.
"""

import secrets
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from string import ascii_lowercase
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from msgspec import Struct

from queryengine.errors import StatementNotAllowedError
from queryengine.gate.lexer import lower
from queryengine.gate.node_kinds import SCHEMAS, before_function, nodes_of

#: A dataset or view, and a column, both in lower case.
Column = tuple[str, str]

#: How the aliases in the rules of this process begin. No column of the data can have such a name on purpose.
_ALIAS: Final = "_" + "".join(secrets.choice(ascii_lowercase) for _ in range(8))

#: The alias of the dataset that a rule is for.
OUTERMOST: Final = f"{_ALIAS}0"

#: Functions that are written without parentheses, and with them. Here, a column of the same name must be quoted.
_TIMES: Final = {
    "current_date": "current_date",
    "current_time": "get_current_time",
    "current_timestamp": "get_current_timestamp",
    "localtime": "current_localtime",
    "localtimestamp": "current_localtimestamp",
}

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

#: The keys of a star without EXCLUDE, REPLACE and the like.
_PLAIN_STAR: Final = frozenset({"class", "type", "query_location", "query_location_length"})

_TABLES: Final = (
    "the subqueries of a rule can read only declared datasets and views, joined with ON or USING: "
    "write it without WITH, VALUES, NATURAL JOIN and queries in FROM."
)
_COLUMNS: Final = "write the names of the columns instead of *, ALL, a position or a query without SELECT."


class Names(Struct, frozen=True):
    """
    What the names in a rule mean.

    Attributes:
        columns: The columns that the rule reads.
        uncast: Those of `columns` that do not stand alone in a CAST everywhere.
    """

    columns: frozenset[Column] = frozenset()
    uncast: frozenset[Column] = frozenset()


class _Table(NamedTuple):
    name: str  # its alias in the text
    alias: str  # the new one
    relation: str


class _Scope(NamedTuple):
    """
    What a name can mean: a column of the `tables` in FROM or of an `outer` query, or a parameter of a lambda.

    In the ON of a join, `in_from` are the names of the tables around it, too. `parameters` contains the new name of
    each parameter.
    """

    tables: Sequence[_Table] = ()
    outer: "_Scope | None" = None
    in_from: frozenset[str] = frozenset()
    parameters: Mapping[str, str] = MappingProxyType({})


def resolve(tree: Mapping[str, Any]) -> Names:
    """
    Write the datasets of names into the tree of `SELECT (rule) FROM dataset`, and return what they mean.

    Raises:
        StatementNotAllowedError: The rule has a form in which the columns of the data decide what a name means.
    """
    return _Resolver(tree).read(tree)


class _Resolver:
    """Resolves the names in *tree*."""

    def __init__(self, tree: Mapping[str, Any]) -> None:
        nodes = [node for node in nodes_of(tree) if node.get("type") == "BASE_TABLE"]
        # The dataset that the rule is for comes first.
        nodes.sort(key=lambda node: node is not tree["node"]["from_table"])
        self._tables = {id(node): _table(node, f"{_ALIAS}{number}") for number, node in enumerate(nodes)}
        self._schemas = SCHEMAS.union(table.relation.rpartition(".")[0] for table in self._tables.values())
        for node in nodes:
            node["alias"] = self._tables[id(node)].alias
        self._numbers = count()
        self._columns: set[Column] = set()
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
        return Names(frozenset(self._columns), frozenset(self._uncast))

    def _part(self, node: dict[str, Any], scope: _Scope) -> list[tuple[Any, _Scope]]:
        """Check a part of a query, and return what to read next."""
        kind = node.get("type")
        if kind not in {*_PARTS, None} or node.get("cte_map", {}).get("map") or node.get("sample"):
            raise StatementNotAllowedError(_TABLES)
        if node.get("column_name_alias"):
            raise StatementNotAllowedError("write the names of columns instead of new ones by position, as in t(a, b).")
        if kind == "SET_OPERATION_NODE":
            _check_union(node)
        if node.get("aggregate_handling", "STANDARD_HANDLING") != "STANDARD_HANDLING":
            raise StatementNotAllowedError(_COLUMNS)
        if kind == "SELECT_NODE":
            if node["from_table"]["type"] != "EMPTY":
                scope = _Scope(self._tables_in(node["from_table"]), scope if scope.tables else None)
            _check_outputs(node, {table.name for table in scope.tables})
        elif kind == "JOIN":
            if node["ref_type"] not in _JOINS or node.get("alias"):
                raise StatementNotAllowedError(_TABLES)
            self._using(node)
            in_from = scope.in_from.union(table.name for table in scope.tables)
            scope = scope._replace(tables=self._tables_in(node), in_from=in_from)
        # What is last is read first, so that the message is about a table rather than about its columns.
        return sorted(((one, scope) for one in node.values()), key=lambda one: one[0] is node.get("from_table"))

    def _using(self, node: Mapping[str, Any]) -> None:
        """Add the columns in the USING of a join."""
        for column in map(lower, node.get("using_columns", ())):
            for side in (node["left"], node["right"]):
                if side["type"] == "BASE_TABLE":
                    self._add((self._tables[id(side)].relation, column))
                elif column not in map(lower, side.get("using_columns", ())):
                    raise StatementNotAllowedError(f"write ON with the dataset before {column} instead of USING.")

    def _tables_in(self, source: Mapping[str, Any]) -> list[_Table]:
        """
        Return the tables that *source*, which is a table or a join, consists of.

        Raises:
            StatementNotAllowedError: Two have the same name.
        """
        found: dict[str, _Table] = {}
        pending = [source]
        while pending:
            one = pending.pop()
            if one["type"] == "JOIN":
                pending += [one["left"], one["right"]]
            elif one["type"] == "BASE_TABLE":
                table = self._tables[id(one)]
                if table.name in found:
                    raise StatementNotAllowedError(f"{table.name} occurs twice: write another alias for one of them.")
                found[table.name] = table
        return [*found.values()]

    def _expression(self, node: dict[str, Any], scope: _Scope) -> list[tuple[Any, _Scope]]:
        """Check an expression, and return what to read next."""
        kind = node["class"]
        if kind not in _EXPRESSIONS:
            raise StatementNotAllowedError(_COLUMNS)
        if kind == "CONSTANT":
            return []
        if kind == "COLUMN_REF":
            self._name(node, scope, is_cast=False)
            return []
        if kind in {"FUNCTION", "WINDOW"}:
            _check_function(node)
        elif kind == "LAMBDA" and node["syntax_type"] == "LAMBDA_KEYWORD":
            return [(node["expr"], scope._replace(parameters={**scope.parameters, **self._parameters(node["lhs"])}))]
        elif kind == "SUBQUERY":
            return self._subquery(node, scope)
        # The parser makes a CAST of `x IS TRUE`, too, but that has no length.
        elif kind == "CAST" and node.get("query_location_length") and node["child"]["class"] == "COLUMN_REF":
            self._name(node["child"], scope, is_cast=True)
            return [(node["type_expr"], scope)]
        return [(one, scope) for one in node.values()]

    def _parameters(self, written: Any) -> Mapping[str, str]:
        """Rename the *written* parameters of a lambda, because the engine takes some for columns of the same name."""
        names: dict[str, str] = {}
        for node in nodes_of(written):
            if "column_names" in node:
                name = ".".join(map(lower, node["column_names"]))
                node["column_names"] = [names.setdefault(name, f"{_ALIAS}p{next(self._numbers)}")]
        return names

    def _subquery(self, node: Mapping[str, Any], scope: _Scope) -> list[tuple[Any, _Scope]]:
        if scope.parameters:
            raise StatementNotAllowedError("a lambda cannot contain a subquery.")
        query = node["subquery"]["node"]
        if node["subquery_type"] == "EXISTS" and _has_unread_star(query):
            query = {**query, "select_list": []}
        return [(query, scope), (node.get("child"), scope)]

    def _name(self, node: dict[str, Any], scope: _Scope, *, is_cast: bool) -> None:
        """Write the table of a column into *node*, and add the column."""
        first, *fields = map(lower, node["column_names"])
        if not fields and first in scope.parameters:
            node["column_names"] = [scope.parameters[first]]
            return
        if not fields and first in _TIMES and node.get("query_location_length") == len(first):  # It is not quoted.
            _call(node, _TIMES[first])
            return
        written = ".".join((first, *fields))
        if fields and first in scope.parameters:
            raise StatementNotAllowedError(f"write {first}['{fields[0]}'] instead of {written}.")
        if len(fields) > 1 and first in self._schemas:
            raise StatementNotAllowedError(f"write {'.'.join(fields)} instead of {written}.")
        column = node["column_names"]
        if fields and (table := _table_named(first, scope)):
            column = column[1:]
        elif len(scope.tables) == 1:
            (table,) = scope.tables
        else:
            raise StatementNotAllowedError(f"write the dataset or its alias before {written}.")
        node["column_names"] = [table.alias, *column]
        self._add((table.relation, lower(column[0])), is_cast=is_cast and len(column) == 1)

    def _add(self, column: Column, *, is_cast: bool = False) -> None:
        self._columns.add(column)
        if not is_cast:
            self._uncast.add(column)


def _table_named(name: str, scope: _Scope | None) -> _Table | None:
    """
    Return the table that *name* means in *scope*, or in the queries around it.

    Raises:
        StatementNotAllowedError: It is in the same FROM as a join, but not in the join.
    """
    while scope is not None:
        for table in scope.tables:
            if table.name == name:
                return table
        if name in scope.in_from:
            raise StatementNotAllowedError(f"{name} is not in the join before ON: write the condition after WHERE.")
        scope = scope.outer
    return None


def _table(node: Mapping[str, Any], alias: str) -> _Table:
    *before, name = map(lower, node["qualified_name"]["path"])
    relation = ".".join((*(one for one in before if one not in {"main", "runtime"}), name))
    return _Table(lower(node.get("alias") or name), alias, relation)


def _call(node: dict[str, Any], function: str) -> None:
    """Make *node* a call of *function* without arguments."""
    node.clear()
    node |= {"class": "FUNCTION", "type": "FUNCTION", "function_name": function}
    node |= {"order_bys": {"type": "ORDER_MODIFIER"}, "qualified_name": {"path": [function]}}


def _check_union(node: Mapping[str, Any]) -> None:
    if node.get("modifiers"):
        raise StatementNotAllowedError("write ORDER BY and LIMIT within the parts of a UNION.")
    if node["setop_type"] == "UNION_BY_NAME":  # The names of expressions contain the new aliases.
        raise StatementNotAllowedError("write UNION with columns in the same order instead of UNION BY NAME.")


def _check_outputs(query: Mapping[str, Any], tables: Collection[str]) -> None:
    """Refuse names that could mean a column of its *tables* or an output of *query*."""
    outputs = set()
    for one in query["select_list"]:
        alias, column = lower(one.get("alias", "")), [*map(lower, one.get("column_names", ()))]
        is_column = column == [alias] or (len(column) == 2 and column[0] in tables and column[1] == alias)
        if alias and not is_column:
            outputs.add(alias)
    for node in nodes_of([query.get(key) for key in ("group_expressions", "having", "qualify", "modifiers")]):
        name = ".".join(map(lower, node.get("column_names", ())))
        if name in outputs:
            raise StatementNotAllowedError(f"write the expression instead of {name}, or another name after AS.")


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

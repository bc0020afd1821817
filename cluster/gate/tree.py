"""
Checks sqlglot's tree of a statement against allowlists, and replaces the caller's names with ours.

Every node class, argument, function, type and relation must be known. Everything else is refused.
"""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import singledispatchmethod
from typing import Final

from msgspec import Struct, field
from sqlglot import exp

from cluster.gate import functions
from cluster.gate.costs import Costs, Depth, check_call
from cluster.gate.dialect import UNNAMED
from cluster.gate.node_kinds import FIELDS, TYPES, UNITS, known
from cluster.gate.text import marker
from queryengine.errors import ParameterError, SqlError, SqlSyntaxError, StatementError, StatementNotAllowedError
from queryengine.gate.lexer import lower

#: The relations of `information_schema` that exist here.
CATALOG: Final = frozenset({"tables", "columns", "schemata"})

_QUALIFIERS: Final = frozenset({(), ("main",), ("runtime",), ("runtime", "main")})
_CATALOG_QUALIFIERS: Final = frozenset({("information_schema",), ("runtime", "information_schema")})
_FILE: Final = re.compile(r"[/\\:*?.]")

#: Schemas that turn the name after them into a path.
_FORMATS: Final = frozenset(
    {"avro", "binaryfile", "csv", "delta", "hudi", "iceberg", "json", "orc", "parquet", "text", "xml"}
)
_PARAMETER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]{0,62}")
_HEX: Final = re.compile(r"(?:[0-9A-Fa-f]{2})*")

_FUNCTION_SCHEMA: Final = "Write a function without a schema: only the engine's own functions are available."

#: The prefix of common table expression names in the text.
_OURS: Final = "_cte_"

#: A hidden column of every file source.
_HIDDEN_COLUMN: Final = "_metadata"

#: Arguments that are not written: hints, and sqlglot's notes for other dialects.
_WITHOUT_EFFECT: Final[Mapping[type[exp.Expr], tuple[str, ...]]] = {
    exp.Select: ("hint",),
    exp.Table: ("hints",),
    exp.Join: ("hint",),
    exp.Pivot: (
        *("columns", "identify_pivot_strings", "prefixed_pivot_columns", "pivot_column_naming"),
        *("value_columns_first", "default_on_null"),
    ),
}


class _Scope(Struct, frozen=True):
    """A common table expression visible at a node, its name in the text, and the outer scopes."""

    name: str
    ours: str
    outer: "_Scope | None"

    def find(self, name: str) -> str | None:
        scope: _Scope | None = self
        while scope is not None:
            if scope.name == name:
                return scope.ours
            scope = scope.outer
        return None


_NOTHING: Final = _Scope("", "", None)


class Reading(Struct):
    """
    The relations and parameters that a tree reads: `relations` are a subset of *declared*.

    `reads_catalog` is true if the tree lists relations through `information_schema`. See `GatedStatement` for
    `deterministic`.
    """

    declared: frozenset[str]
    relations: set[str] = field(default_factory=set)
    parameters: set[str] = field(default_factory=set)
    reads_catalog: bool = False
    deterministic: bool = True
    _costs: Costs = field(default_factory=Costs)
    _ctes: int = 0
    #: The names of tables written with a schema and without an alias, which columns may repeat.
    _qualified_tables: set[tuple[str, ...]] = field(default_factory=set)
    _qualified_columns: list[exp.Expr] = field(default_factory=list)
    _unnamed_parameters: list[exp.Expr] = field(default_factory=list)

    def judge(self, tree: exp.Expr) -> None:
        """
        Walk *tree* and replace the names in it.

        Raises:
            StatementNotAllowedError: The tree contains something that is not on the allowlist.
            SqlError: The tree names a table or function that does not exist.
            SqlSyntaxError: The tree contains too many constructs that are slow to plan, or a name that cannot be sent.
            ParameterError: The tree has both named and positional parameters.
        """
        pending = [(tree, _NOTHING, Depth())]
        while pending:
            node, scope, outer = pending.pop()
            depth = outer.inside(node)
            for key in _WITHOUT_EFFECT.get(type(node), ()):
                node.set(key, None)
            form = known(node)
            self._costs.count(node)
            self._judge(node, scope)
            if isinstance(node, exp.Table) and node.name.startswith(_OURS):
                self._costs.count_read(node.name, depth)
            if isinstance(with_ := node.args.get("with_"), exp.With):
                scope = self._with_ctes(with_, scope, depth, pending)
            # Use argument order, so that every process numbers names alike and reports the same error first.
            for key, value in reversed(node.args.items()):
                if key in form.parts and key != "with_":
                    parts = value if isinstance(value, list) else [value]
                    pending.extend((part, scope, depth) for part in reversed(parts) if isinstance(part, exp.Expr))
        for column in self._qualified_columns:
            _shorten(column, self._qualified_tables)
        self._number_parameters()
        self._costs.check_reads()

    def _with_ctes(
        self, with_: exp.With, scope: _Scope, depth: Depth, pending: list[tuple[exp.Expr, _Scope, Depth]]
    ) -> _Scope:
        """Queue and rename the common table expressions of a query. Each sees the earlier ones (and itself)."""
        known(with_)
        names: set[str] = set()
        for cte in with_.expressions:
            alias = cte.args["alias"]
            name = lower(alias.name)
            if name in names:
                raise SqlSyntaxError(f"WITH defines {_shown([name])} twice.")
            names.add(name)
            self._ctes += 1
            ours = f"{_OURS}{self._ctes}"
            alias.set("this", exp.to_identifier(ours))
            outer, scope = scope, _Scope(name, ours, scope)
            pending.append((cte, scope if with_.args.get("recursive") else outer, depth))
        return scope

    @singledispatchmethod
    def _judge(self, _: exp.Expr, __: _Scope) -> None:
        """Judge a node beyond its form."""

    @_judge.register
    def _(self, node: exp.Table, scope: _Scope) -> None:
        qualifier = [node.args[key].name for key in ("catalog", "db") if node.args.get(key)]
        if isinstance(node.this, exp.Anonymous):
            if qualifier:
                raise StatementNotAllowedError(_FUNCTION_SCHEMA)
            node.this.meta["kind"] = "table"
            return
        path = (*qualifier, node.name)
        *schema, name = map(lower, path)
        if not isinstance(node.this, exp.Identifier):
            raise _unknown(path)
        if not schema and (ours := scope.find(name)):
            name = ours
        elif (relation := _declared(schema, name, self.declared)) is not None:
            self.relations.add(relation)
            name = marker("relation", relation)
        elif tuple(schema) in _CATALOG_QUALIFIERS and name in CATALOG:
            self.reads_catalog, self.deterministic = True, False
            name = marker(name)
        else:
            raise _unknown(path)
        if node.args.get("alias") is None:
            node.set("alias", exp.TableAlias(this=exp.to_identifier(node.name)))
            self._qualified_tables |= {(*schema[at:], lower(node.name)) for at in range(len(schema))}
        node.set("this", exp.to_identifier(name))
        node.set("db", None)
        node.set("catalog", None)

    @_judge.register
    def _(self, node: exp.Lateral, _: _Scope) -> None:
        if isinstance(node.this, exp.Anonymous):
            node.this.meta["kind"] = "table"

    @_judge.register
    def _(self, node: exp.Anonymous, _: _Scope) -> None:
        name = lower(node.name)
        functions.check(name, node.meta.get("kind", "scalar"))
        check_call(name, node.expressions)
        node.set("this", name)
        if name in functions.NONDETERMINISTIC:
            self.deterministic = False
        arguments = node.expressions
        if name in functions.TAKE_A_UNIT and len(arguments) == 3 and lower(arguments[0].sql()) in UNITS:
            node.set("expressions", [exp.var(lower(arguments[0].name)), *arguments[1:]])

    @_judge.register
    def _(self, node: exp.Dot, _: _Scope) -> None:
        if not isinstance(node.expression, exp.Identifier | exp.Star):
            raise StatementNotAllowedError(_FUNCTION_SCHEMA)

    @_judge.register
    def _(self, node: exp.Column, _: _Scope) -> None:
        if node.args.get("db"):
            self._qualified_columns.append(node)
        elif not node.args.get("table"):
            name = lower(node.name)
            if functions.is_refused_by_name(name):
                raise StatementNotAllowedError(
                    f"Column '{name}' must be qualified with its table, as in t.{name}: unqualified, it could be a "
                    "function that shows the engine's own state."
                )
            self.deterministic &= name not in functions.CALLED_BY_NAME

    @_judge.register
    def _(self, node: exp.Identifier, _: _Scope) -> None:
        if lower(node.name) == _HIDDEN_COLUMN:
            raise StatementNotAllowedError(f"Column '{_HIDDEN_COLUMN}' is not allowed: it shows where data is stored.")

    @_judge.register
    def _(self, node: exp.Alias, _: _Scope) -> None:
        if not isinstance(node.args["alias"], exp.Identifier):  # for sqlglot, a:b is a AS :b
            raise StatementNotAllowedError("A path after a colon is not allowed: write get_json_object or variant_get.")

    @_judge.register
    def _(self, node: exp.TableAlias, _: _Scope) -> None:
        if not isinstance(node.this, exp.Identifier | None):
            raise SqlSyntaxError("An alias must be a name.")

    @_judge.register
    def _(self, node: exp.Collate, _: _Scope) -> None:
        if node.expression.args.get("table"):
            raise StatementNotAllowedError("Write a collation without a schema.")
        if isinstance(node.expression, exp.Var):  # like a column, the name is quoted
            node.set("expression", exp.to_identifier(node.expression.name))

    @_judge.register
    def _(self, node: exp.Var, _: _Scope) -> None:
        if lower(node.name) not in FIELDS:
            raise StatementNotAllowedError(
                f"The statement has a word that is not allowed here ({_shown([node.name])})."
            )

    @_judge.register
    def _(self, node: exp.DataType, _: _Scope) -> None:
        if node.this not in TYPES and not isinstance(node.this, exp.Interval):
            raise SqlError(f"Type {_shown([node.sql()])} does not exist.")

    @_judge.register
    def _(self, _: exp.IntervalSpan, __: _Scope) -> None:
        """Judge nothing, because sqlglot derives this class from DataType."""

    @_judge.register
    def _(self, node: exp.HexString, _: _Scope) -> None:
        if not _HEX.fullmatch(node.name):
            raise SqlSyntaxError("X'...' must contain pairs of hexadecimal digits.")

    @_judge.register
    def _(self, node: exp.Placeholder, _: _Scope) -> None:
        if node.name.startswith(UNNAMED):
            self._unnamed_parameters.append(node)
        elif not _PARAMETER.fullmatch(node.name):
            raise SqlSyntaxError(
                "A parameter must be $1, ? or a name of letters, digits and underscores after $ or a colon."
            )
        else:
            self.parameters.add(node.name)

    @_judge.register
    def _(self, _: exp.TableSample | exp.CurrentDate | exp.CurrentTimestamp, __: _Scope) -> None:
        self.deterministic = False

    def _number_parameters(self) -> None:
        in_order = sorted(self._unnamed_parameters, key=lambda node: int(node.name.removeprefix(UNNAMED)))
        for number, node in enumerate(in_order, 1):
            node.set("this", str(number))
            self.parameters.add(str(number))
        if len({name.isdigit() for name in self.parameters}) > 1:
            raise ParameterError("A statement cannot mix named parameters ($name, :name) with positional ones (?, $1).")


def find_relation(path: Sequence[str], declared: frozenset[str]) -> str:
    """
    Return the declared name that *path* refers to, outside a query.

    Raises:
        StatementError: There is no such relation.
    """
    *schema, name = map(lower, path)
    if (relation := _declared(schema, name, declared)) is None:
        raise _unknown(path)
    return relation


def _declared(schema: Sequence[str], name: str, declared: frozenset[str]) -> str | None:
    """Return the name in *declared* that *schema* and *name* refer to. A name with a dot includes its schema."""
    if "." in name:
        return None
    if tuple(schema) in _QUALIFIERS:
        return name if name in declared else None
    own = schema[1:] if schema[0] == "runtime" else schema
    full_name = f"{own[0]}.{name}" if len(own) == 1 else ""
    return full_name if full_name in declared else None


def _shorten(column: exp.Expr, tables: Container[tuple[str, ...]]) -> None:
    """Remove the schema from a *column* of one of *tables*, because in the text the table has only an alias."""
    keys = [key for key in ("catalog", "db", "table") if column.args.get(key)]
    names = [lower(column.args[key].name) for key in keys]
    for length in range(2, len(keys) + 1):
        if tuple(names[:length]) in tables:
            for key in keys[: length - 1]:
                column.set(key, None)
            return


def _unknown(path: Sequence[str]) -> StatementError:
    *schema, name = map(lower, path)
    if schema and schema[-1] == "information_schema":
        return StatementNotAllowedError(
            f"Table {_shown(path)} is not allowed: information_schema has only tables, columns and schemata here."
        )
    if _FILE.search(name) or not name or (schema and schema[-1] in _FORMATS):
        return StatementNotAllowedError(
            f"Table {_shown(path)} is not allowed: files cannot be read, only the declared datasets and views."
        )
    return SqlError(f"Table {_shown(path)} does not exist.")


def _shown(path: Iterable[str]) -> str:
    text = ".".join(path)
    return f"'{text[:80]}…'" if len(text) > 80 else f"'{text}'"

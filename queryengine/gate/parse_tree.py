"""
Checks a parse tree from DuckDB's `json_serialize_sql` against an allowlist.

Every kind of node, every part of a node, every function and every relation must be known here. Anything else is
refused, so a construct of a new DuckDB version is refused until it has been reviewed.
"""

import difflib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from queryengine.errors import SqlError, SqlSyntaxError, StatementError, StatementNotAllowedError
from queryengine.gate import arrays, datafusion, functions
from queryengine.gate.functions import Place
from queryengine.gate.lexer import lower
from queryengine.gate.macros import macros
from queryengine.gate.node_kinds import EXPRESSIONS, NODES, UNTYPED, column_name, known

#: The `information_schema` views that exist here, and the hidden catalog that contains them (see `catalog_schema`).
CATALOG_VIEWS: Final = frozenset({"tables", "columns", "schemata"})
CATALOG: Final = "_catalog"

#: The views of the hidden catalog that replace SHOW TABLES and SHOW ALL TABLES.
SHOWN_TABLES: Final = "shown_tables"
SHOWN_COLUMNS: Final = "shown_columns"

#: Constructs that make the planner, which cannot be interrupted, slower: 120 joins take 1.5 s, 400 over three minutes;
#: 40 NEAREST joins 3 s; 2,000 UNION ALL branches 0.35 s, 16,000 minutes; 20 nested lambdas 6 s.
_COSTLY: Final[Mapping[str, tuple[str, int]]] = {
    "JOIN": ("joins (NEAREST counts as five)", 100),
    "PIVOT": ("PIVOT and UNPIVOT", 50),
    "SET_OPERATION_NODE": ("UNION, INTERSECT and EXCEPT branches", 5000),
}
MAX_NESTED_LAMBDAS: Final = 8
#: The binder takes quadratic time for a name. 3,000 parts take 3 seconds.
MAX_NAME_PARTS: Final = 100
#: The maximum number of nodes in expanded macro bodies and repeated macro arguments. Planning this number takes one to
#: two seconds. Nested calls multiply the number.
MAX_EXPANSION: Final = 50_000

_HIDDEN_VIEWS: Final = CATALOG_VIEWS | {SHOWN_TABLES, SHOWN_COLUMNS}
_QUALIFIERS: Final = frozenset({(), ("main",), ("runtime",), ("runtime", "main")})
_ENGINE_SCHEMAS: Final = frozenset({"pg_catalog", "information_schema", "system", "temp", "memory", CATALOG})
_ENGINE_TABLES: Final = ("duckdb_", "pragma_", "pg_", "sqlite_")
#: The maximum depth of the structure argument of these functions. 10,000 levels would crash the process.
_MAX_LEVELS: Final = 100
_TAKE_AN_AGGREGATE: Final = frozenset({"aggregate", "array_aggr", "array_aggregate", "list_aggr", "list_aggregate"})
_WITHOUT_NANOSECONDS: Final = "df_format"  # a macro whose result is a format without `%n`
_SHOW: Final = "SHOW accepts a dataset or view, TABLES [FROM main], ALL TABLES, DATABASES and SCHEMAS."
_SHOWN_LISTS: Final = frozenset({('"tables"',), ("__show_tables_expanded",)})
_SHOWN_SCHEMAS: Final = frozenset({("main", ""), ("runtime", ""), ("runtime", "main", "")})
_FILE: Final = re.compile(r"[/\\:*?.]")
#: The engine's hidden names for snapshots and lists. An error about such a name would reveal whether a dataset exists.
_HIDDEN_NAME: Final = re.compile(r"_catalog|_copies|_macros|_[sk][0-9a-f]{12}(_list)?")


class _Scope(Struct):
    """
    The names visible at a node: the first `visible` of the common table expressions `names`, and the parent's names.

    `lambdas` is the number of enclosing lambda functions. `copies` is how often macros repeat the node. If `defines`,
    the node is in the definition of one of these common table expressions.
    """

    names: Mapping[str, int]
    visible: int
    parent: "_Scope | None"
    lambdas: int = 0
    defines: bool = False
    copies: int = 1

    def sees(self, name: str) -> bool:
        scope: _Scope | None = self
        while scope is not None:
            if scope.names.get(name, scope.visible) < scope.visible:
                return True
            scope = scope.parent
        return False

    def inner(self, names: Mapping[str, int] | None = None, visible: int = 0, **changes: Any) -> "_Scope":
        """Return the scope of a node inside this scope, with its own *names* and other *changes*."""
        return replace(self, **{"names": names or {}, "visible": visible, "parent": self, "defines": False, **changes})


_NOTHING: Final = _Scope({}, 0, None)


class Reading(Struct):
    """
    Checks one tree and collects what it reads.

    Results: `relations` are the declared names that the tree reads. It `reads_catalog` if it lists them with
    `information_schema` or SHOW. It `shows` if a part of it is SHOW, DESCRIBE or SUMMARIZE. It is `deterministic` if it
    takes no sample, calls nothing in `functions.NONDETERMINISTIC`, and shows nothing. `macros` are the macros for
    DataFusion functions that it calls. It `is_foreign` if it calls a function with arguments that only DataFusion
    accepts. It `makes_arrays` as in `queryengine.gate.arrays`.

    Settings: with `catalog`, the tree comes from a text in which this schema of the hidden catalog replaces the lists.
    With `engine_tables` (lower-case names), a PIVOT may find its own columns. For that, the engine runs a query that
    does not see all common table expressions. Therefore none of them may have one of these names, and a name that the
    query might resolve to a relation is checked as a relation. With `datafusion`, the session has the macros. Without
    `variant_casts`, a cast to VARIANT is refused. Without `names_database`, a relation in `runtime` is refused, because
    the statement runs in another database.
    """

    declared: frozenset[str]
    catalog: str = ""
    engine_tables: frozenset[str] = frozenset()
    datafusion: bool = False
    variant_casts: bool = True
    names_database: bool = True
    relations: set[str] = field(default_factory=set)
    reads_catalog: bool = False
    deterministic: bool = True
    shows: bool = False
    macros: set[str] = field(default_factory=set)
    is_foreign: bool = False
    makes_arrays: bool = False
    _expansion: int = 0
    _costly: Counter[str] = field(default_factory=Counter)
    #: The ids of the nodes around a PIVOT that finds its columns, and the common table expressions that it may read.
    _around_pivots: set[int] = field(default_factory=set)
    _pivoted: set[str] = field(default_factory=set)

    def judge(self, statement: Mapping[str, Any]) -> None:
        """
        Check the tree of one statement.

        Raises:
            StatementNotAllowedError: The tree contains something that is not on the allowlist.
            SqlError: The tree names a table or function that does not exist.
            SqlSyntaxError: The tree contains too many constructs that are slow to plan.
        """
        if self.engine_tables:
            self._around_pivots, self._pivoted = _pivots(statement)
        pending: list[tuple[Any, str, _Scope]] = [(statement, "statements", _NOTHING)]
        while pending:
            value, part, scope = pending.pop()
            if isinstance(value, dict):
                self._judge_node(value, part, scope, pending)
            elif isinstance(value, list):
                pending.extend((item, part, scope) for item in reversed(value))

    def _judge_node(
        self, node: dict[str, Any], part: str, scope: _Scope, pending: list[tuple[Any, str, _Scope]]
    ) -> None:
        class_, type_ = node.get("class"), node.get("type")
        if isinstance(class_, str):
            form = known(EXPRESSIONS, class_, node)
            scope = self._judge_expression(node, class_, part, scope)
        elif isinstance(type_, str):
            form = known(NODES, type_, node)
            self._count(type_, node)
            if type_ == "BASE_TABLE":
                self._judge_table(_path(node), scope)
            elif type_ == "SHOW_REF":
                self._judge_show(node)
                self.deterministic, self.shows = False, True
            elif "cte_map" in node:
                scope = self._with_ctes(node, scope, pending)
        else:
            form = known(UNTYPED, part, node)
        if part == "sample":
            self.deterministic = False
        pending.extend(
            (node[key], key, self._scope_of(key, node, scope)) for key in reversed(node) if key in form.parts
        )

    def _judge_expression(self, node: dict[str, Any], class_: str, part: str, scope: _Scope) -> _Scope:
        """Check an expression without its parts, and return the scope of the parts."""
        _judge_expression(node, class_, part, with_macros=self.datafusion, variant_casts=self.variant_casts)
        self.deterministic = self.deterministic and not _is_nondeterministic(node)
        self.makes_arrays = self.makes_arrays or arrays.makes_array(node)
        self._expansion += scope.copies - 1
        if class_ == "FUNCTION" and self.datafusion:
            scope = self._with_macro(node, scope)
        if self._expansion > MAX_EXPANSION:
            raise SqlSyntaxError(
                f"The DataFusion functions in the statement expand to more than {MAX_EXPANSION:,} expressions: they "
                "repeat their arguments, so planning would take too long."
            )
        if class_ != "LAMBDA":
            return scope
        if scope.lambdas == MAX_NESTED_LAMBDAS:
            raise SqlSyntaxError(
                f"More than {MAX_NESTED_LAMBDAS} nested lambda functions are not allowed: each level doubles the "
                "planning time."
            )
        return scope.inner(lambdas=scope.lambdas + 1)

    def _with_macro(self, node: dict[str, Any], scope: _Scope) -> _Scope:
        """Record a macro call, and return the scope of its arguments."""
        name = lower(node["function_name"])
        self.is_foreign = self.is_foreign or datafusion.is_foreign(name, node.get("arguments", ()))
        if (macro := macros().get(name)) is None:
            return scope
        self.macros.add(name)
        self._expansion += scope.copies * macro.size
        return scope.inner(copies=scope.copies * macro.copies)

    def _count(self, type_: str, node: dict[str, Any]) -> None:
        """Refuse a statement whose planning would take too long, because the planner cannot be interrupted."""
        costly, limit = _COSTLY.get(type_, ("", 0))
        self._costly[costly] += 5 if node.get("ranking_expression") else max(1, len(node.get("children", ())))
        if costly and self._costly[costly] > limit:
            raise SqlSyntaxError(
                f"More than {limit:,} {costly} in one statement are not allowed: planning them takes too long."
            )

    def _with_ctes(self, node: dict[str, Any], scope: _Scope, pending: list[tuple[Any, str, _Scope]]) -> _Scope:
        """Queue the common table expressions of a query node. Each of them sees the earlier ones."""
        ctes = node["cte_map"].get("map", [])
        if not ctes:
            return scope
        names = {lower(cte["key"]): index for index, cte in enumerate(ctes)}
        for name in names:
            if self.engine_tables and (name in self.engine_tables or _FILE.search(name)):
                raise StatementNotAllowedError(
                    f"{_shown([name])} cannot be the name of a common table expression in a statement with a PIVOT "
                    "without IN (...): the engine reserves that name."
                )
        # The query for a PIVOT's columns has all common table expressions in one WITH, with those of this node first.
        is_merged = any(id(value) in self._around_pivots for key, value in node.items() if key != "cte_map")
        scopes = [
            scope.inner(
                names, visible, defines=True, **({"parent": None} if is_merged and name in self._pivoted else {})
            )
            for name, visible in names.items()
        ]
        pending.extend((cte["value"], "cte", seen) for cte, seen in reversed([*zip(ctes, scopes, strict=True)]))
        return scope.inner(names, len(ctes))

    def _scope_of(self, key: str, node: dict[str, Any], scope: _Scope) -> _Scope:
        if key == "right" and node.get("type") == "RECURSIVE_CTE_NODE":
            return scope.inner({lower(node["cte_name"]): 0}, 1, defines=True)
        if key == "source" and self.engine_tables and _finds_columns(node):
            return _outside_definitions(scope)
        # The engine runs a query in the IN list of a PIVOT separately, without the surrounding statement.
        return replace(_NOTHING, copies=scope.copies) if key == "entries" else scope

    def _judge_table(self, path: tuple[str, ...], scope: _Scope) -> None:
        *qualifier, name = (lower(part) for part in path)
        if not qualifier and scope.sees(name):
            return
        # A declared name with a dot includes its schema, so one identifier that contains a dot does not match it.
        schema = qualifier[-1] if len(qualifier) == 1 or qualifier[:-1] == ["runtime"] else ""
        is_plain = tuple(qualifier) in _QUALIFIERS and "." not in name and name in self.declared
        relation = name if is_plain else f"{schema}.{name}"
        if is_plain or ("." not in schema + name and relation in self.declared):
            if qualifier[:1] == ["runtime"] and not self.names_database:
                raise StatementNotAllowedError(f"Write {_shown(path)} without the database name.")
            self.relations.add(relation)
        elif qualifier in (["information_schema"], ["runtime", "information_schema"]) and name in CATALOG_VIEWS:
            self._read_catalog("Write information_schema.tables with plain or double-quoted names.")
        elif not (self.catalog and qualifier == [CATALOG, self.catalog] and name in _HIDDEN_VIEWS) and not (
            qualifier == ["recurring"] and scope.sees(name)
        ):
            raise _unknown(path, self.declared)

    def _judge_show(self, node: dict[str, Any]) -> None:
        shows, path = node["show_type"], _path(node)
        if shows in ("SHOW", "DESCRIBE", "SUMMARY"):
            if path:
                self._judge_table(path, _NOTHING)
            elif "query" not in node:
                raise StatementNotAllowedError(_SHOW)
        elif "query" in node or (
            tuple(map(lower, path)) not in _SHOWN_SCHEMAS if shows == "SHOW_FROM" else path not in _SHOWN_LISTS
        ):
            raise StatementNotAllowedError(_SHOW)
        else:
            self._read_catalog(_SHOW)

    def _read_catalog(self, hint: str) -> None:
        """Record that the tree lists declared names. After rewriting, refuse a list, because rewriting missed it."""
        if self.catalog:
            raise StatementNotAllowedError(hint)
        self.reads_catalog = True


def catalog_schema(relations: frozenset[str], database: str = "") -> str:
    """Return the name of the hidden catalog schema whose views list only *relations* of *database*."""
    return "s" + hashlib.sha256("\0".join([database, *sorted(relations)]).encode()).hexdigest()[:32]


def decode(text: str) -> Any:
    """Read JSON of any depth. The standard library's parser fails at the recursion limit."""
    try:
        return json.loads(text)
    except RecursionError:
        return _decode_deep(text)


_STRING: Final = r'"(?:[^"\\]++|\\.)*+"'
#: An object without nested containers, a bracket, or all keys and values up to the next bracket.
_JSON_PIECE: Final = re.compile(rf'\{{(?:[^"{{}}\[\]]++|{_STRING})*+\}}|[{{}}\[\]]|(?:[^"{{}}\[\]]++|{_STRING})++')


def _decode_deep(text: str) -> Any:
    root: list[Any] = []
    containers: list[tuple[dict[str, Any] | list[Any], str]] = [(root, "")]  # with the key of the next container
    for match in _JSON_PIECE.finditer(text):
        piece = match[0]
        container, key = containers[-1]
        if piece in "}]":
            containers.pop()
        elif piece[0] in "{[":
            value = json.loads(piece) if piece[-1] == "}" else {} if piece == "{" else []
            if isinstance(container, dict):
                container[key] = value
            else:
                container.append(value)
            if piece in "{[":
                containers.append((value, ""))
        elif values := piece.strip(", \t\r\n"):
            if isinstance(container, list):
                container.extend(json.loads(f"[{values}]"))
            elif values[-1] == ":":
                found = json.loads(f"{{{values}null}}")
                container.update(found)
                containers[-1] = container, next(reversed(found))
            else:
                container.update(json.loads(f"{{{values}}}"))
    return root[0]


def _pivots(tree: Any) -> tuple[set[int], set[str]]:
    """
    Find each PIVOT in *tree* that may find its own columns.

    Returns:
        The ids of the objects and arrays around them, and the names that are read to find the columns. These names
        are read by the sources, or by common table expressions with such names, anywhere in the tree.
    """
    around: set[int] = set()
    read_by: dict[str, set[str]] = {"": set()}  # by the name of the innermost definition; "" for a source
    pending: list[tuple[Any, str, tuple[int, Any] | None]] = [(tree, " ", None)]
    while pending:
        value, owner, path = pending.pop()
        if not isinstance(value, dict | list):
            continue
        path = id(value), path
        if isinstance(value, list):
            pending.extend((item, owner, path) for item in value)
            continue
        if value.get("type") == "BASE_TABLE":
            read_by.setdefault(owner, set()).update(map(lower, _path(value)[-1:]))
        is_pivot = value.get("type") == "PIVOT" and _finds_columns(value)
        outer: tuple[int, Any] | None = path if is_pivot else None
        while outer is not None and outer[0] not in around:
            around.add(outer[0])
            outer = outer[1]
        for key, item in value.items():
            inner = "" if is_pivot and key == "source" else owner
            if key == "value" and isinstance(value.get("key"), str):
                inner = lower(value["key"])
                read_by.setdefault(owner, set()).add(inner)
            pending.append((item, inner, path))
    names, found = [""], set[str]()
    while names:
        more = read_by.get(names.pop(), set()) - found
        found |= more
        names += more
    return around, found


def _finds_columns(pivot: dict[str, Any]) -> bool:
    """Return whether a query may find the columns of *pivot*. In this case, `rewriting` has inserted `IN (0)`."""
    if "unpivot_names" in pivot:
        return False
    lists = [
        [entry.get("star_expr", {}).get("literal", {}) for entry in one.get("entries", ())] for one in pivot["pivots"]
    ]
    return any(len(one) < 2 and all(value.get("text", "0") == "0" for value in one) for one in lists)


def _outside_definitions(scope: _Scope) -> _Scope:
    """Return *scope* without the common table expressions whose definitions contain the node."""
    seen: list[_Scope] = []
    one: _Scope | None = scope
    while one is not None:
        seen += [] if one.defines else [one]
        one = one.parent
    outer = None
    for one in reversed(seen):
        outer = replace(one, parent=outer)
    return scope.inner(parent=outer)


def _judge_expression(node: dict[str, Any], class_: str, part: str, *, with_macros: bool, variant_casts: bool) -> None:
    before = [lower(name) for name in _path(node)[:-1]]
    if class_ in ("FUNCTION", "WINDOW") and any(map(_HIDDEN_NAME.fullmatch, before)):
        raise StatementNotAllowedError(f"Function {_shown(_path(node))} is not allowed: it is internal to the engine.")
    if class_ == "FUNCTION":
        name = lower(node["function_name"])
        place = Place.TABLE if part == "function" else Place.EXPRESSION
        functions.check(name, place, before=before, with_macros=with_macros)
        if name in _TAKE_AN_AGGREGATE | arrays.TAKE_A_STRUCTURE:
            _judge_named(node, name)
        elif name == "strftime":
            _judge_format(node)
    elif class_ == "WINDOW":
        functions.check(lower(node["function_name"]), Place.WINDOW, before=before, with_macros=with_macros)
    elif class_ == "COLUMN_REF" and len(node.get("column_names", ())) > MAX_NAME_PARTS:
        raise SqlSyntaxError(f"A name cannot have more than {MAX_NAME_PARTS} parts.")
    elif class_ == "TYPE":
        if len(_path(node)) > 1:
            raise StatementNotAllowedError("Write a type without a schema: only the engine's own types are available.")
        if not variant_casts and lower("".join(_path(node))) == "variant":
            raise StatementNotAllowedError(
                "A cast to VARIANT is not allowed when the engine runs in the server's process because a deeply nested "
                "value would crash it: write to_variant(x), or use the command serve."
            )


def _is_nondeterministic(node: dict[str, Any]) -> bool:
    name = lower(node.get("function_name", ""))
    return name in functions.NONDETERMINISTIC or any(
        lower(part) in functions.CALLED_BY_NAME for part in column_name(node)
    )


def _judge_named(node: dict[str, Any], function: str) -> None:
    """Check a name in a string: the aggregate in `list_aggregate(x, 'sum')`, the structure in `from_json(x, '[]')`."""
    arguments = node.get("arguments", ())
    index = arrays.second_of(node)
    literal = arguments[index].get("expression", {}).get("literal", {}) if len(arguments) > index else {}
    is_text = literal.get("kind") == "STRING"
    if function in arrays.TAKE_A_STRUCTURE:
        if not is_text:
            raise StatementNotAllowedError(f"The structure argument of {function} must be a string literal.")
        levels = accumulate((character in "[{") - (character in "]}") for character in literal.get("text", ""))
        if max(levels, default=0) > _MAX_LEVELS:
            raise SqlSyntaxError(f"The structure of {function} is nested too deeply (limit: {_MAX_LEVELS} levels).")
    elif len(arguments) > index:  # DuckDB reports a missing argument.
        if not is_text:
            raise StatementNotAllowedError(f"The aggregate argument of {function} must be a string literal.")
        functions.check_aggregate(lower(literal.get("text", "")))


def _judge_format(node: dict[str, Any]) -> None:
    """
    Check the format of `strftime`, which may be either argument.

    For `%n`, the engine reserves nine characters and writes six. The others expose memory of other statements. The
    engine accepts only a constant, but the constant may be computed or be a parameter.
    """
    is_known = False
    for argument in node.get("arguments", ()):
        expression = argument.get("expression", {})
        literal = expression.get("literal", {})
        if literal.get("kind") == "STRING":
            text = literal.get("text", "")
            if "%n" in text.replace("%%", ""):
                raise StatementNotAllowedError("strftime does not support %n here: use %f, which has six digits.")
            # A string with a percent sign is not a time, so it is the format.
            is_known |= "%" in text
        is_known |= lower(expression.get("function_name", "")) == _WITHOUT_NANOSECONDS
    if not is_known:
        raise StatementNotAllowedError("The format of strftime must be a string literal that contains a %.")


def _path(node: dict[str, Any]) -> tuple[str, ...]:
    return tuple(node.get("qualified_name", {}).get("path", ()))


def _unknown(path: tuple[str, ...], declared: Iterable[str]) -> StatementError:
    *qualifier, name = (lower(part) for part in path)
    reason = ""
    if qualifier and (_ENGINE_SCHEMAS.intersection(qualifier) or qualifier[0].startswith("_")):
        reason = "it belongs to the engine."
        if qualifier[-1] == "information_schema":
            reason = "information_schema has only tables, columns and schemata here."
    elif name.startswith(_ENGINE_TABLES):
        reason = "it belongs to the engine."
    elif _FILE.search(name):
        reason = "files cannot be read, only the declared datasets and views."
    if reason:
        return StatementNotAllowedError(f"Table {_shown(path)} is not allowed: {reason}")
    if qualifier:
        hint = (
            "write it alone, or after main. or runtime.main." if name in declared else "use unnest(...) to read a list."
        )
        return SqlError(f"Table {_shown(path)} does not exist: {hint}")
    close = difflib.get_close_matches(name[:80], declared, n=1)
    return SqlError(f"Table {_shown(path)} does not exist." + (f" Did you mean '{close[0]}'?" if close else ""))


def _shown(path: Iterable[str]) -> str:
    text = ".".join(path)
    return f"'{text[:80]}…'" if len(text) > 80 else f"'{text}'"

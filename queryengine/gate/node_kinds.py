"""The nodes of parse trees, and the allowlist: the allowed kinds of nodes, and the keys that each kind may have."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from queryengine.errors import StatementNotAllowedError


class Form(NamedTuple):
    """The keys of a kind of node. `parts` are nodes to check in turn. `options` are names and values."""

    parts: frozenset[str]
    options: frozenset[str]


def _form(parts: str = "", options: str = "") -> Form:
    return Form(frozenset(parts.split()), frozenset(options.split()))


def _expression(parts: str = "", options: str = "") -> Form:
    return _form(parts, f"{options} class type alias query_location query_location_length")


def _table(parts: str = "", options: str = "") -> Form:
    return _form(f"{parts} sample", f"{options} type alias column_name_alias query_location query_location_length")


#: Expressions, by `class`.
EXPRESSIONS: Final[Mapping[str, Form]] = {
    "BETWEEN": _expression("input lower upper"),
    "CASE": _expression("case_checks else_expr"),
    "CAST": _expression("child type_expr", "try_cast"),
    "COLLATE": _expression("child", "collation"),
    "COLUMN_REF": _expression("", "column_names"),
    "COMPARISON": _expression("left right"),
    "CONJUNCTION": _expression("children"),
    "CONSTANT": _expression("", "literal"),
    "DEFAULT": _expression(),
    "FUNCTION": _expression(
        "arguments filter order_bys", "catalog distinct function_name is_operator qualified_name schema"
    ),
    "LAMBDA": _expression("lhs expr", "syntax_type"),
    "OPERATOR": _expression("children"),
    "PARAMETER": _expression("", "identifier"),
    "POSITIONAL_REFERENCE": _expression("", "index"),
    "STAR": _expression("expr replace_list", "columns exclude_list qualified_exclude_list relation_name rename_list"),
    "SUBQUERY": _expression("child subquery", "comparison_type subquery_type"),
    "TYPE": _expression("children", "catalog qualified_name schema type_name"),
    "WINDOW": _expression(
        "arg_orders arguments default_expr end_expr filter_expr offset_expr orders partitions start_expr",
        "catalog distinct end exclude_clause function_name has_ignore_nulls ignore_nulls qualified_name schema start",
    ),
}

#: Query nodes, table references and modifiers, by `type`.
NODES: Final[Mapping[str, Form]] = {
    "SELECT_NODE": _form(
        "from_table group_expressions having modifiers qualify sample select_list where_clause",
        "type cte_map aggregate_handling group_sets",
    ),
    "SET_OPERATION_NODE": _form("children left right modifiers", "type cte_map setop_all setop_type"),
    "RECURSIVE_CTE_NODE": _form("left right modifiers key_targets", "type cte_map aliases cte_name union_all"),
    "BASE_TABLE": _table("", "catalog_name qualified_name schema_name table_name"),
    "EMPTY": _table(),
    "EXPRESSION_LIST": _table("values", "expected_names expected_types"),
    "JOIN": _table(
        "left right condition duplicate_eliminated_columns ranking_expression",
        "delim_flipped is_implicit join_type nearest_approx nearest_count nearest_order_type ref_type using_columns",
    ),
    "PIVOT": _table("aggregates pivots source", "groups include_nulls unpivot_names"),
    "SHOW_REF": _table("query", "catalog_name qualified_name schema_name show_type table_name"),
    "SUBQUERY": _table("subquery"),
    "TABLE_FUNCTION": _table("function", "with_ordinality"),
    "ORDER_MODIFIER": _form("orders", "type"),
    "ORDER_DEFAULT": _form("expression", "type null_order"),
    "ASCENDING": _form("expression", "type null_order"),
    "DESCENDING": _form("expression", "type null_order"),
    "DISTINCT_MODIFIER": _form("distinct_on_targets", "type"),
    "LIMIT_MODIFIER": _form("limit offset", "type limit_type"),
}

#: Parts without their own kind, by the key under which they occur.
UNTYPED: Final[Mapping[str, Form]] = {
    "arguments": _form("expression", "name"),
    "case_checks": _form("when_expr then_expr"),
    "cte": _form("key_targets payload_aggregates query_node", "aliases materialized"),
    "entries": _form("star_expr", "alias"),
    "pivots": _form("entries pivot_expressions", "pivot_enum unpivot_names"),
    "replace_list": _form("value", "key"),
    "sample": _form("sample_size", "is_percentage method repeatable sample_rate seed"),
    "sample_size": _form("", "is_null type value"),
    "statements": _form("node", "named_param_map"),
    "subquery": _form("node", "named_param_map"),
}

#: Options with nested values: names and types in the parser's own format.
_NESTED: Final = frozenset(
    {
        *("cte_map", "expected_types", "group_sets", "literal", "named_param_map", "qualified_exclude_list"),
        *("qualified_name", "rename_list", "type"),
    }
)

#: The engine's schemas and databases, which can stand before a function.
SCHEMAS: Final = frozenset({"main", "pg_catalog", "runtime", "system"})

#: The joins of SQL. `JOIN BY (TYPE ...)` also takes those that the engine makes from subqueries.
_JOINS: Final = frozenset({"INNER", "LEFT", "RIGHT", "FULL", "SEMI", "ANTI"})

#: Constructs that are refused with a specific reason.
_REFUSED: Final[Mapping[str, str]] = {
    **{
        f"{verb}_QUERY_NODE": f"{verb} statements are not allowed, even in a WITH clause: this endpoint is read-only."
        for verb in ("DELETE", "INSERT", "UPDATE", "MERGE", "COPY")
    },
    "at_clause": "AT (VERSION or TIMESTAMP) is not allowed: a dataset has no history.",
    "export_state": "EXPORT_STATE is not allowed: it is internal to the engine.",
}


def nodes_of(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield every node of *tree*, which is a node, or a list of nodes."""
    pending = [tree]
    while pending:
        one = pending.pop()
        if isinstance(one, dict):
            yield one
            pending.extend(one.values())
        elif isinstance(one, list):
            pending.extend(one)


def meaning(tree: Any) -> Any:
    """
    Remove from *tree* what depends on how the text is written: places, operators, names that are written twice.

    The engine takes the parameter of a lambda for a column of that name only if it has such a second name. Therefore
    `rule_names` gives parameters names that no column has.
    """
    for node in nodes_of(tree):
        for key in ("query_location", "query_location_length", "is_operator"):
            node.pop(key, None)
        if "expression" in node and node.get("name") == node["expression"].get("alias"):
            node["expression"].pop("alias", None)
    return tree


def column_name(node: Mapping[str, Any]) -> list[str]:
    """
    Return the parts of the name of a column in an expression; none if it names no column itself.

    In `a.lower()`, the parser sees a function `lower` of a schema `a`, which is a column if there is no such schema.
    """
    if node.get("class") == "COLUMN_REF":
        return list(node["column_names"])
    before = before_function(node)
    return [] if SCHEMAS.issuperset(map(str.lower, before)) else before


def before_function(node: Mapping[str, Any]) -> list[str]:
    """Return what stands before the name of a function, which is a schema or a column; nothing in other nodes."""
    if node.get("class") not in {"FUNCTION", "WINDOW"}:
        return []
    return list(node["qualified_name"]["path"][:-1])


def known(forms: Mapping[str, Form], kind: str, node: dict[str, Any]) -> Form:
    """
    Return the form of *node*, which has the given *kind*.

    Raises:
        StatementNotAllowedError: *forms* does not contain the kind, the form does not contain a key of the node, or the
            node is a join of the engine's own.
    """
    form = forms.get(kind)
    if form is None:
        raise _not_allowed(kind, kind)
    for key, value in node.items():
        if key not in form.parts and (key not in form.options or not (_is_flat(value) or key in _NESTED)):
            raise _not_allowed(key, f"{kind} with {key}")
    if kind == "JOIN" and node["join_type"] not in _JOINS:
        raise _not_allowed(kind, f"{node['join_type']} join")
    return form


def _not_allowed(construct: str, what: str) -> StatementNotAllowedError:
    what = what.replace("_", " ").lower()
    message = f"The statement has a construct that is not allowed here ({what})."
    return StatementNotAllowedError(_REFUSED.get(construct, message))


def _is_flat(value: Any) -> bool:
    return not isinstance(value, dict) and not (
        isinstance(value, list) and any(isinstance(item, dict | list) for item in value)
    )

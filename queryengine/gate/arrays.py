"""
Arrays of a fixed length (`INTEGER[3]`), which DuckDB 2.0.0 cannot join safely.

It stores an array in a hash table as a list. For a row to which an outer join adds nulls, it casts back to an array a
list that it has never set, and so returns memory that it has not written, such as pieces of rows that a key may not
see. Scalar subqueries and some lateral joins are planned as such joins, and the engine moves `st.x::INTEGER[3]` below
the joins of a view. Loads turn arrays into lists, so only a statement itself can make them.
"""

import json
import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

from queryengine.errors import StatementNotAllowedError
from queryengine.gate.lexer import lower
from queryengine.gate.node_kinds import column_name, nodes_of

TAKE_A_STRUCTURE: Final = frozenset({"from_json", "from_json_strict", "json_transform", "json_transform_strict"})
_RETURN_ARRAYS: Final = frozenset({"array_value", "array_cross_product"})
#: The length of an array in the engine's name of a type, or a quoted name, which may contain anything.
_ARRAY: Final = re.compile(r"""\[\d+\]|"(?:[^"]|"")*"|'(?:[^']|'')*'""")
#: A bracket with a length in a caller's name of a type. A comment is possible as well.
_LENGTH: Final = re.compile(r"\[(?!\s*\])")
_UNKNOWN: Final = "ANY[1]"
_JOINS: Final = frozenset({"REGULAR", "CROSS", "NATURAL"})
_JOINED: Final = frozenset({"BASE_TABLE", "JOIN"})

_NOT_BESIDE: Final = (
    "A statement that makes arrays of a fixed length, such as INTEGER[3], cannot have subqueries in expressions, "
    "PIVOT, views, or joins other than inner joins of tables, because the engine would return wrong values. Use "
    "lists (INTEGER[], list_value, list_distance)."
)
#: The reason for which SQL of the configuration is refused.
NOT_HERE: Final = (
    "Arrays of a fixed length, such as INTEGER[3], are not allowed here, because the engine returns wrong values for "
    "them after some joins: use lists (INTEGER[])."
)


def with_lists(type_: str) -> str:
    """Return *type_*, the engine's name of a type, with a list (`INTEGER[]`) for each array (`INTEGER[3]`)."""
    return _ARRAY.sub(lambda found: "[]" if found[0][0] == "[" else found[0], type_)


def has_array(type_: str) -> bool:
    """Return whether *type_*, the engine's name of a type, is or contains an array."""
    return with_lists(type_) != type_


def makes_array(node: Mapping[str, Any]) -> bool:
    """Return whether a node of a parse tree is the type of an array, or calls a function that returns one."""
    if node.get("class") == "TYPE":
        return "array" in map(lower, node.get("qualified_name", {}).get("path", ()))
    name = lower(str(node.get("function_name", "")))
    if name in TAKE_A_STRUCTURE:
        return any(_LENGTH.search(type_) for text in _structures(node) for type_ in _types_in(text))
    return name in _RETURN_ARRAYS


def refuse_joins(tree: Any) -> None:
    """
    Check the *tree* of a statement that makes arrays. It may have inner joins of tables, and no other joins.

    Raises:
        StatementNotAllowedError: The tree has something that can be planned as a join that adds nulls.
    """
    if any(map(_may_add_nulls, nodes_of(tree))):
        raise StatementNotAllowedError(_NOT_BESIDE)


def refuse_views(relations: AbstractSet[str], views: AbstractSet[str]) -> None:
    """
    Check the *relations* that a statement that makes arrays reads. The engine may make them below the joins of a view.

    Raises:
        StatementNotAllowedError: One of them is among the *views*.
    """
    if not views.isdisjoint(relations):
        raise StatementNotAllowedError(_NOT_BESIDE)


def second_of(call: Mapping[str, Any]) -> int:
    """Return the index of the second argument of *call*. In `x.from_json('[]')`, the column is not an argument."""
    return 0 if column_name(call) else 1


def _structures(call: Mapping[str, Any]) -> Iterator[str]:
    """Yield the structure of a *call* of one of `TAKE_A_STRUCTURE`; all texts if its arguments have names."""
    arguments = call.get("arguments", ())
    chosen = arguments if any(one.get("name") for one in arguments) else arguments[second_of(call) :]
    for one in chosen:
        text = one.get("expression", {}).get("literal", {}).get("text")
        if isinstance(text, str):
            yield text


def _may_add_nulls(node: Mapping[str, Any]) -> bool:
    type_ = node.get("type")
    if type_ == "JOIN":
        sides = {node[side].get("type") for side in ("left", "right")}
        return node["join_type"] != "INNER" or node["ref_type"] not in _JOINS or not sides <= _JOINED
    return node.get("class") == "SUBQUERY" or type_ == "PIVOT"


def _types_in(structure: str) -> Iterator[str]:
    """Yield the types in a *structure*, JSON whose values are names of types; an array if only DuckDB can read it."""
    try:
        # Pairs, because a name can occur twice.
        pending = [json.loads(structure, object_pairs_hook=tuple)]
    except (ValueError, RecursionError):
        pending = [_UNKNOWN]
    while pending:
        one = pending.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, tuple):
            pending.extend(value for _, value in one)
        elif isinstance(one, list):
            pending.extend(one)

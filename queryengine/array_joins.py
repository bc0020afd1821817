"""
Statements that DuckDB 2.0.0 answers with memory that it has not written, such as pieces of rows that a key may not see.

It stores an array (`INTEGER[3]`) in a hash table as a list. For a row to which an outer join adds nulls, it casts back
to an array a list that it has never set. Scalar subqueries and some lateral joins are planned as such joins.
"""

import re
from collections.abc import Iterable
from typing import Final

from queryengine.errors import StatementNotAllowedError

#: The functions that return an array, except those that get its type from a string.
FUNCTIONS: Final = frozenset({"array_value", "array_cross_product"})
_ARRAY: Final = re.compile(r"\[\s*\d+\s*\]")
_MAKES_ARRAY: Final = re.compile(rf'{_ARRAY.pattern}|"type_name":"array"|{"|".join(FUNCTIONS)}', re.IGNORECASE)
_JOIN_TYPE: Final = re.compile(r'"Join Type":\s*"([^"]*)"')
#: The joins that add no nulls.
_SAFE_JOINS: Final = frozenset({"INNER", "SEMI", "ANTI", "MARK", "RIGHT_SEMI", "RIGHT_ANTI"})


def is_array(type_: str) -> bool:
    """Return whether *type_*, the name of a type, is or contains an array."""
    return _ARRAY.search(type_) is not None


def may_make_array(tree: str) -> bool:
    """Return whether a query may make an array, by its *tree* from `json_serialize_sql`."""
    return _MAKES_ARRAY.search(tree) is not None


def refuse(plan: str) -> None:
    """
    Check the *plan* of a statement that reads or makes arrays, as EXPLAIN prints it in JSON.

    Raises:
        StatementNotAllowedError: The plan has a join that adds nulls.
    """
    if joins := _nulling(_JOIN_TYPE.findall(plan)):
        raise StatementNotAllowedError(
            f"A {joins} join, or a subquery that is planned as one, is not allowed in a statement that reads or makes "
            "arrays of a fixed length, such as INTEGER[3], because the engine would return wrong values. Use lists "
            "(INTEGER[]), for a dataset by its refresh_sql."
        )


def _nulling(joins: Iterable[str]) -> str:
    return next((join for join in joins if join not in _SAFE_JOINS), "")

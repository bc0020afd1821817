"""
Statements that DuckDB 2.0.0 answers with memory that it has not written, such as pieces of rows that a key may not see.

It stores an array (`INTEGER[3]`) in a hash table as a list. For a row to which an outer join adds nulls, it casts back
to an array a list that it has never set. Scalar subqueries and some lateral joins are planned as such joins.
"""

import re
from typing import Final

from queryengine.errors import StatementNotAllowedError

_ARRAY: Final = re.compile(r"\[\s*\d+\s*\]")
_JOIN_TYPE: Final = re.compile(r'"Join Type":\s*"([^"]*)"')
#: The joins that add no nulls.
_SAFE_JOINS: Final = frozenset({"INNER", "SEMI", "ANTI", "MARK", "RIGHT_SEMI", "RIGHT_ANTI"})


def is_array(type_: str) -> bool:
    """Return whether *type_*, the name of a type, is or contains an array."""
    return _ARRAY.search(type_) is not None


def refuse(plan: str) -> None:
    """
    Check the *plan* of a statement that reads or makes arrays, as EXPLAIN prints it in JSON.

    Raises:
        StatementNotAllowedError: The plan has a join that adds nulls.
    """
    if join := next((join for join in _JOIN_TYPE.findall(plan) if join not in _SAFE_JOINS), ""):
        raise StatementNotAllowedError(
            f"A {join} join, or a subquery that is planned as one, is not allowed in a statement that reads or makes "
            "arrays of a fixed length, such as INTEGER[3], because the engine would return wrong values. Use lists "
            "(INTEGER[]), for a dataset by its refresh_sql."
        )

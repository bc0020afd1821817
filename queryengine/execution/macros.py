"""
Macros that replace functions of DuckDB, and a cast, which fail on deeply nested values.

Some of these functions use stack space for each level: a text of 200,000 brackets would end the process, and nothing
could stop that. Computing the depth of a value is slow, so a bound is counted instead: the arrays and objects that the
value opens. Others refuse such a value, but DuckDB treats their error about a JSON value, unlike one about a text, as a
failure of its own, which invalidates the instance.
"""

from __future__ import annotations

from typing import Final

#: The most arrays and objects in a value that is searched: that many levels take an eighth of a stack of 8 MiB.
MOST_SEARCHED: Final = 10_000

#: The same for a value that becomes a VARIANT, which takes 1 KiB for each level, and far more time beyond this depth.
MOST_IN_VARIANT: Final = 1_000

#: The names that DuckDB does not have, and those that replace DuckDB's functions.
NAMES: Final = frozenset({"to_variant"})
NAMES_OF_DUCKDB: Final = frozenset({"json_contains", "json_group_structure", "json_structure", "variant_group_array"})


def _bounded(value: str, most: int) -> str:
    text = f"CAST({value} AS VARCHAR)"
    opened = f"length({text}) - length(replace(replace({text}, '[', ''), '{{', ''))"
    fault = f"A value with more than {most:,} arrays and objects in it is not taken here."
    return f"CASE WHEN {opened} > {most} THEN error('{fault}') ELSE {value} END"


def _structure(value: str) -> str:
    return f"system.main.json_structure(CAST({value} AS VARCHAR))"


def definitions() -> tuple[str, ...]:
    """Return the statements that define the macros, in the schema that statements search first."""
    searched = f"{_bounded('haystack', MOST_SEARCHED)}, {_bounded('needle', MOST_SEARCHED)}"
    taken = _bounded("value", MOST_IN_VARIANT)
    return (
        f"CREATE MACRO runtime.main.json_contains(haystack, needle) AS system.main.json_contains({searched})",
        f"CREATE MACRO runtime.main.json_structure(value) AS {_structure('CAST(value AS JSON)')}",
        f"CREATE MACRO runtime.main.json_group_structure(value) AS {_structure('json_group_array(value)')} -> 0",
        f"CREATE MACRO runtime.main.to_variant(value) AS CAST({taken} AS VARIANT)",
        f"CREATE MACRO runtime.main.variant_group_array(value) AS CAST(list({taken}) AS VARIANT)",
    )

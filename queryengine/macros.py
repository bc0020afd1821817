"""
Functions of ours that stand before a function and a cast of DuckDB which take a piece of the stack a level of a value.

A text of 200,000 brackets would end the process there, and nothing could stop that. How deep a value is takes long to
find out; how many arrays and objects it opens is a bound that is quickly counted.
"""

from __future__ import annotations

from typing import Final

#: The most arrays and objects in a value that is searched: so many levels take an eighth of a stack of 8 MiB.
MOST_SEARCHED: Final = 10_000

#: And in one that becomes a VARIANT, which takes a KiB a level, and far more time beyond this depth.
MOST_IN_VARIANT: Final = 1_000

#: The names that DuckDB does not have, and those that stand for its own functions here.
NAMES: Final = frozenset({"to_variant"})
NAMES_OF_DUCKDB: Final = frozenset({"json_contains", "variant_group_array"})


def _bounded(value: str, most: int) -> str:
    text = f"CAST({value} AS VARCHAR)"
    opened = f"length({text}) - length(replace(replace({text}, '[', ''), '{{', ''))"
    fault = f"A value with more than {most:,} arrays and objects in it is not taken here."
    return f"CASE WHEN {opened} > {most} THEN error('{fault}') ELSE {value} END"


def definitions() -> tuple[str, ...]:
    """Return what defines them, in the schema that statements look into first."""
    searched = f"{_bounded('haystack', MOST_SEARCHED)}, {_bounded('needle', MOST_SEARCHED)}"
    taken = _bounded("value", MOST_IN_VARIANT)
    return (
        f"CREATE MACRO runtime.main.json_contains(haystack, needle) AS system.main.json_contains({searched})",
        f"CREATE MACRO runtime.main.to_variant(value) AS CAST({taken} AS VARIANT)",
        f"CREATE MACRO runtime.main.variant_group_array(value) AS CAST(list({taken}) AS VARIANT)",
    )

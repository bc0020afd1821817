"""
Functions of ours that stand before those of DuckDB, and a cast, which a value that is nested deep would break.

Some take a piece of the stack a level: a text of 200,000 brackets would end the process there, and nothing could stop
that. How deep a value is takes long to find out; how many arrays and objects it opens is a bound that is quickly
counted. Others refuse such a value, but DuckDB takes what they say of JSON, though not of a text, for a failure of its
own, and is invalid from then on.
"""

from __future__ import annotations

from typing import Final

#: The most arrays and objects in a value that is searched: so many levels take an eighth of a stack of 8 MiB.
MOST_SEARCHED: Final = 10_000

#: And in one that becomes a VARIANT, which takes a KiB a level, and far more time beyond this depth.
MOST_IN_VARIANT: Final = 1_000

#: The names that DuckDB does not have, and those that stand for its own functions here.
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
    """Return what defines them, in the schema that statements look into first."""
    searched = f"{_bounded('haystack', MOST_SEARCHED)}, {_bounded('needle', MOST_SEARCHED)}"
    taken = _bounded("value", MOST_IN_VARIANT)
    return (
        f"CREATE MACRO runtime.main.json_contains(haystack, needle) AS system.main.json_contains({searched})",
        f"CREATE MACRO runtime.main.json_structure(value) AS {_structure('CAST(value AS JSON)')}",
        f"CREATE MACRO runtime.main.json_group_structure(value) AS {_structure('json_group_array(value)')} -> 0",
        f"CREATE MACRO runtime.main.to_variant(value) AS CAST({taken} AS VARIANT)",
        f"CREATE MACRO runtime.main.variant_group_array(value) AS CAST(list({taken}) AS VARIANT)",
    )

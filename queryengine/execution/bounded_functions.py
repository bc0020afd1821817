"""The definitions of functions that DuckDB itself would compute with unbounded stack space."""

from typing import Final

#: The maximum number of arrays and objects in a value that is searched. That many levels use 1/8 of an 8 MiB stack.
_MOST_SEARCHED: Final = 10_000

#: The maximum for a value that becomes a VARIANT. It uses 1 KiB per level, and far more time beyond this depth.
_MOST_IN_VARIANT: Final = 1_000


def _bounded(value: str, most: int) -> str:
    text = f"CAST({value} AS VARCHAR)"
    opened = f"length({text}) - length(replace(replace({text}, '[', ''), '{{', ''))"
    fault = f"A value with more than {most:,} arrays and objects is not supported here."
    return f"CASE WHEN {opened} > {most} THEN error('{fault}') ELSE {value} END"


_HAYSTACK, _NEEDLE = _bounded("haystack", _MOST_SEARCHED), _bounded("needle", _MOST_SEARCHED)
_TAKEN = _bounded("value", _MOST_IN_VARIANT)

#: Macros that replace DuckDB functions and a cast that fail on deeply nested values. Some functions use stack space for
#: each level, so a string of 200,000 brackets would crash the process. Computing the depth of a value is slow, so an
#: upper bound is counted instead: the number of arrays and objects that the value opens. Other functions refuse such a
#: value. But if the value is JSON rather than text, DuckDB treats their error as an internal failure, which invalidates
#: the instance. Statements search the schema of the macros first. DuckDB itself has no `to_variant`.
MACROS: Final = (
    f"json_contains(haystack, needle) AS system.main.json_contains({_HAYSTACK}, {_NEEDLE})",
    "json_structure(value) AS system.main.json_structure(CAST(CAST(value AS JSON) AS VARCHAR))",
    "json_group_structure(value) AS system.main.json_structure(CAST(json_group_array(value) AS VARCHAR)) -> 0",
    f"to_variant(value) AS CAST({_TAKEN} AS VARIANT)",
    f"variant_group_array(value) AS CAST(list({_TAKEN}) AS VARIANT)",
)

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
_MOST_SEARCHED: Final = 10_000

#: The same for a value that becomes a VARIANT, which takes 1 KiB for each level, and far more time beyond this depth.
_MOST_IN_VARIANT: Final = 1_000


def _bounded(value: str, most: int) -> str:
    text = f"CAST({value} AS VARCHAR)"
    opened = f"length({text}) - length(replace(replace({text}, '[', ''), '{{', ''))"
    fault = f"A value with more than {most:,} arrays and objects in it is not taken here."
    return f"CASE WHEN {opened} > {most} THEN error('{fault}') ELSE {value} END"


_HAYSTACK, _NEEDLE = _bounded("haystack", _MOST_SEARCHED), _bounded("needle", _MOST_SEARCHED)
_TAKEN = _bounded("value", _MOST_IN_VARIANT)

#: The macros, in the schema that statements search first; DuckDB has no `to_variant`.
MACROS: Final = (
    f"json_contains(haystack, needle) AS system.main.json_contains({_HAYSTACK}, {_NEEDLE})",
    "json_structure(value) AS system.main.json_structure(CAST(CAST(value AS JSON) AS VARCHAR))",
    "json_group_structure(value) AS system.main.json_structure(CAST(json_group_array(value) AS VARCHAR)) -> 0",
    f"to_variant(value) AS CAST({_TAKEN} AS VARIANT)",
    f"variant_group_array(value) AS CAST(list({_TAKEN}) AS VARIANT)",
)

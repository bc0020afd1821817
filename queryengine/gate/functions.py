"""
The functions that a statement may call: the judgements of `function_list.txt`, looked up by name and position.

The list is an allowlist. A function that is not in it does not exist for a caller, even if the engine has it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from enum import Enum
from functools import cache
from importlib.resources import files

from queryengine.errors import SqlError, StatementError, StatementNotAllowedError


class Place(Enum):
    """The position of a call, and the kinds of function (in DuckDB's terms) that are possible there."""

    EXPRESSION = ("scalar", "aggregate", "macro", "window")
    WINDOW = ("window", "aggregate")
    TABLE = ("table", "table_macro")


#: Names without brackets that the binder takes for a call if no such column exists.
CALLED_BY_NAME = frozenset(
    {
        *("current_catalog", "current_date", "current_role", "current_schema", "current_time", "current_timestamp"),
        *("current_user", "localtime", "localtimestamp", "session_user", "user"),
    }
)

#: The allowed functions whose result does not depend on their arguments alone: time, random numbers, session state.
#: DuckDB does not mark all of them: not `age`, whose second argument defaults to today, not the table of time zones,
#: and not `timezone` (AT TIME ZONE), which shifts a TIMETZ by today's offset; the gate knows no argument types.
NONDETERMINISTIC = CALLED_BY_NAME | {
    *("age", "ago", "get_current_time", "get_current_timestamp", "now", "today", "transaction_timestamp"),
    *("current_localtime", "current_localtimestamp", "pg_timezone_names", "timezone"),
    *("gen_random_uuid", "random", "setseed", "uuid", "uuidv4", "uuidv7"),
    *("current_database", "current_schemas"),
}

#: Function calls to the parser, but not functions of DuckDB: the binder expands `unnest` in a select list.
_EXPANDED_BY_THE_BINDER = {("scalar", "unnest"): None}


@cache
def judgements() -> Mapping[tuple[str, str], str | None]:
    """
    Return for each (kind, name in lower case) None if it is allowed, otherwise the reason why it is not.

    Raises:
        ValueError: `function_list.txt` does not have its format.
    """
    found: dict[tuple[str, str], str | None] = {}
    reason: str | None = None
    kind = ""
    for line in files("queryengine.gate").joinpath("function_list.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("[") and line.endswith("]"):
            _, _, text = line[1:-1].partition(": ")
            reason = text or None
        elif line and not line.startswith("#"):
            head, colon, names = line.partition(": ")
            kind, names = (head, names) if colon and not line.startswith(" ") else (kind, line)
            for name in names.split():
                key = (kind, _without_underscores(name).lower())
                if key in found:
                    raise ValueError(f"{kind} {name} is judged twice")
                found[key] = reason
    return found


def check(name: str, place: Place) -> None:
    """
    Check that the function *name* (lower-case, without its schema) may be called at *place*.

    Raises:
        StatementNotAllowedError: It is refused.
        SqlError: It does not exist.
    """
    if fault := _faults().get((name, place)):
        raise fault[0](fault[1])
    if (name, place) not in _faults():
        raise SqlError(f"Function '{name[:80]}' does not exist.{_suggestion(name, place)}")


def refusal(name: str) -> str | None:
    """Return the reason why the function *name* (lower-case) is refused at any position; None if it is not."""
    return next((reason for (_, known), reason in judgements().items() if known == name and reason), None)


@cache
def _faults() -> Mapping[tuple[str, Place], tuple[type[StatementError], str] | None]:
    """Return for each name and place None if it may be called, otherwise the error."""
    judged = {**judgements(), **_EXPANDED_BY_THE_BINDER}
    found: dict[tuple[str, Place], tuple[type[StatementError], str] | None] = {}
    for name in {name for _, name in judged}:
        kinds = {kind: reason for (kind, known), reason in judged.items() if known == name}
        refused = next((reason for reason in kinds.values() if reason), None)
        for place in Place:
            here = {kind: kinds[kind] for kind in place.value if kind in kinds}
            reason = next((reason for reason in here.values() if reason), None)
            if here and reason is None:
                found[name, place] = None
            elif reason or refused:
                found[name, place] = (
                    StatementNotAllowedError,
                    f"Function '{name}' is not allowed: {reason or refused}.",
                )
            else:
                found[name, place] = (SqlError, f"Function '{name}' {_MISPLACED[place]}.")
    return found


_MISPLACED = {
    Place.EXPRESSION: "gives a table: call it after FROM",
    Place.WINDOW: "is not a window function",
    Place.TABLE: "gives a value, not a table: call it after SELECT",
}


def _suggestion(name: str, place: Place) -> str:
    names = [known for (known, where), fault in _faults().items() if where is place and fault is None]
    close = difflib.get_close_matches(name[:80], names, n=1)
    return f" Did you mean '{close[0]}'?" if close else ""


def _without_underscores(name: str) -> str:
    return name.replace("_", " ") if name.startswith("IS_") else name

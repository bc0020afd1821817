"""
The functions that a statement may call, as listed in `function_list.txt` by name and position.

The list is an allowlist. For callers, a function that is not listed does not exist, even if the engine has it.
"""

import difflib
from collections.abc import Container, Mapping, Sequence
from enum import Enum
from functools import cache
from importlib.resources import files

from queryengine.errors import SqlError, StatementNotAllowedError
from queryengine.gate import datafusion
from queryengine.gate.macros import INTERNAL, macros


class Place(Enum):
    """The position of a call, and the kinds of functions (in DuckDB's terms) that are possible there."""

    EXPRESSION = ("scalar", "aggregate", "macro", "window")
    WINDOW = ("window", "aggregate")
    TABLE = ("table", "table_macro")


#: Names without parentheses that the binder treats as a call if no such column exists.
CALLED_BY_NAME = frozenset(
    {
        *("current_catalog", "current_date", "current_role", "current_schema", "current_time", "current_timestamp"),
        *("current_user", "localtime", "localtimestamp", "session_user", "user"),
    }
)

#: The functions that `queryengine.execution.definitions` replaces with macros of the same name, because they can end
#: the process or show the engine's own names.
REPLACED = frozenset(
    {
        *("json_contains", "json_structure", "json_group_structure", "to_variant", "variant_group_array"),
        *("current_catalog", "current_database", "current_schemas"),
    }
)
_ENGINE_NAMES = frozenset({"information_schema", "main", "pg_catalog", "runtime", "system", "temp"})

#: The allowed functions whose result does not depend only on their arguments: time, random numbers, session state.
#: DuckDB does not mark all of them. It does not mark `age`, whose second argument defaults to today, the table of time
#: zones, `timezone` (AT TIME ZONE), which shifts a TIMETZ by today's offset, or `reservoir_quantile`, which takes a
#: sample. The gate does not know argument types.
NONDETERMINISTIC = CALLED_BY_NAME | {
    *("age", "ago", "get_current_time", "get_current_timestamp", "now", "today", "transaction_timestamp"),
    *("current_localtime", "current_localtimestamp", "pg_timezone_names", "timezone"),
    *("gen_random_uuid", "rand", "random", "reservoir_quantile", "setseed", "uuid", "uuidv4", "uuidv7"),
    *("current_database", "current_schemas"),
}


@cache
def judgements() -> Mapping[str, Mapping[str, str | None]]:
    """
    Return, by lower-case name and kind, None if a function is allowed, or the reason why it is not allowed.

    Raises:
        ValueError: `function_list.txt` is malformed.
    """
    found = read_judgements("queryengine.gate")
    # The parser sees a function call, but DuckDB has no such function. The binder expands `unnest` in a select list.
    found["unnest"]["scalar"] = None
    return found


def read_judgements(package: str) -> dict[str, dict[str, str | None]]:
    """
    Return the content of `function_list.txt` in *package*, in the form of `judgements`.

    Raises:
        ValueError: The file is malformed.
    """
    found: dict[str, dict[str, str | None]] = {}
    reason: str | None = None
    kind = ""
    for line in files(package).joinpath("function_list.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("[") and line.endswith("]"):
            reason = line[1:-1].partition(": ")[2] or None
        elif line and not line.startswith("#"):
            head, colon, names = line.partition(": ")
            kind, names = (head, names) if colon and not line.startswith(" ") else (kind, line)
            for written in names.split():
                name = (written.replace("_", " ") if written.startswith("IS_") else written).lower()
                if kind in found.setdefault(name, {}):
                    raise ValueError(f"{kind} {written} is judged twice")
                found[name][kind] = reason
    return found


def check_aggregate(name: str) -> None:
    """
    Check that the aggregate *name*, in lower case, may be named in a string, as in `list_aggregate(x, 'sum')`.

    Raises:
        StatementNotAllowedError: The function is refused.
        SqlError: The function does not exist, or is not an aggregate.
    """
    check(name, Place.WINDOW)
    if name in NONDETERMINISTIC:
        raise StatementNotAllowedError(f"'{name}' takes a sample, so it cannot be named in a string: call it.")


def check(name: str, place: Place, *, before: Sequence[str] = (), with_macros: bool = False) -> None:
    """
    Check that the function *name* may be called at *place*. It is lower-case, as are the names *before* it.

    With *with_macros*, the session has the macros of `macros.macros()`.

    Raises:
        StatementNotAllowedError: The function is refused.
        SqlError: The function does not exist, or is not possible at *place*.
    """
    if name in REPLACED and before and before[0] in _ENGINE_NAMES:
        raise StatementNotAllowedError(f"Write {name} without a schema: the engine's own is not safe.")
    if with_macros and name in macros():
        if place is not Place.EXPRESSION:
            raise SqlError(f"Function '{name}' {_MISPLACED[place]}.")
        return
    if name not in judgements():
        if with_macros and name in datafusion.REWRITTEN:  # Looking for similar names would be slow.
            raise SqlError(f"Function '{name}' does not take these arguments.")
        possible = [known for known in judgements() if _is_allowed(known, place)]
        if with_macros and place is Place.EXPRESSION:
            possible += [known for known in macros() if not known.startswith(INTERNAL)]
        close = difflib.get_close_matches(name[:80], possible, n=1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        raise SqlError(f"Function '{name[:80]}' does not exist.{hint}")
    if not _is_allowed(name, place):
        if reason := refusal(name, place.value) or refusal(name):
            raise StatementNotAllowedError(f"Function '{name}' is not allowed: {reason}.")
        raise SqlError(f"Function '{name}' {_MISPLACED[place]}.")


def refusal(name: str, kinds: Container[str] | None = None) -> str | None:
    """Return why a function *name* (lower-case) of any kind, or of *kinds*, is refused; None if it is not refused."""
    judged = judgements().get(name, {})
    return next((reason for kind, reason in judged.items() if reason and (kinds is None or kind in kinds)), None)


@cache
def _is_allowed(name: str, place: Place) -> bool:
    kinds = judgements()[name].keys() & set(place.value)
    return bool(kinds) and refusal(name, kinds) is None


_MISPLACED = {
    Place.EXPRESSION: "returns a table: call it after FROM",
    Place.WINDOW: "is not a window function",
    Place.TABLE: "returns a value, not a table: call it after SELECT",
}

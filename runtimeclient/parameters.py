"""Values for the parameters of statements, as `--param` gives them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from runtimeclient.errors import UsageError
from runtimeclient.json_stream import JsonValue, Number, parse_json
from runtimeclient.statements import parameter_names

# RFC 8259, 6.
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORDS: Mapping[str, JsonValue] = {"true": True, "false": False, "null": None}


def parse_parameters(arguments: Iterable[str]) -> dict[str, JsonValue]:
    """
    Read `NAME=VALUE` and `NAME:=JSON` arguments.

    VALUE is a number when it reads like one in JSON, a truth value or null when it is `true`, `false` or `null`, else
    text. `NAME:=JSON` says it exactly: `NAME:="1"` is a text, `NAME:=[1,2]` a list.

    Raises:
        UsageError: An argument is not of either form, or a name comes twice.
    """
    values: dict[str, JsonValue] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        is_json = name.endswith(":")
        name = name.removesuffix(":").removeprefix("$")
        if not equals or not name:
            raise UsageError("A parameter has the form NAME=VALUE or NAME:=JSON.")
        if name in values:
            raise UsageError(f"The parameter {name} is given twice.")
        values[name] = _from_json(name, text) if is_json else _guess(text)
    return values


def parameters_of(statement: str, values: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Give those of *values* that the statement names; case does not count."""
    names = {name.casefold() for name in parameter_names(statement)}
    return {name: value for name, value in values.items() if name.casefold() in names}


def _guess(text: str) -> JsonValue:
    return Number(text) if _NUMBER.fullmatch(text) else _WORDS.get(text, text)


def _from_json(name: str, text: str) -> JsonValue:
    try:
        return parse_json(text)
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"The value of the parameter {name} is not JSON: NAME=VALUE takes plain text.") from exc

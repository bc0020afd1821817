"""Values for statement parameters, from `--param`."""

import re
from collections.abc import Iterable, Mapping

from runtimeclient.errors import UsageError
from runtimeclient.http.json_stream import JsonValue, Number, parse_json
from runtimeclient.sql.statements import parameter_names

# RFC 8259, 6.
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORDS: Mapping[str, JsonValue] = {"true": True, "false": False, "null": None}


def parse_parameters(arguments: Iterable[str]) -> dict[str, JsonValue]:
    """
    Parse `NAME=VALUE` and `NAME:=JSON` arguments.

    VALUE is a number if it is one in JSON, a boolean or null if it is `true`, `false` or `null`, else text.
    `NAME:=JSON` gives an exact value: `NAME:="1"` is text, `NAME:=[1,2]` a list.

    Raises:
        UsageError: An argument has neither form, or a name is repeated.
    """
    values: dict[str, JsonValue] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        is_json = name.endswith(":")
        name = name.removesuffix(":").lstrip("$:")
        if not equals or not name:
            raise UsageError("A parameter has the form NAME=VALUE or NAME:=JSON.")
        if name in values:
            raise UsageError(f"The parameter {name} is given twice.")
        try:
            guessed = Number(text) if _NUMBER.fullmatch(text) else _WORDS.get(text, text)
            values[name] = parse_json(text) if is_json else guessed
        except (ValueError, RecursionError) as exc:
            raise UsageError(f"The value of the parameter {name} is not JSON: use NAME=VALUE for plain text.") from exc
    return values


def parameters_of(statement: str, values: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the *values* that the statement uses; names are case-insensitive."""
    names = {name.casefold() for name in parameter_names(statement)}
    return {name: value for name, value in values.items() if name.casefold() in names}

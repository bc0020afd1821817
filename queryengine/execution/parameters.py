"""Checks parameter values against their statement before the engine sees them."""

from collections.abc import Collection, Iterable, Mapping
from decimal import Decimal
from itertools import chain
from typing import Any

from queryengine.engine import JsonParameters
from queryengine.errors import ParameterError

MAX_PARAMETERS = 10_000

#: The maximum depth of lists and mappings in one value. DuckDB converts them recursively.
MAX_DEPTH = 64

#: The range of the engine's integer types.
LEAST_INTEGER, GREATEST_INTEGER = -(2**127), 2**128 - 1

#: The largest width of the engine's DECIMAL. It would convert a wider value to DOUBLE.
MAX_DIGITS = 38

#: Types of which one list may have several.
_KINDS: Mapping[type, type] = {int: float, Decimal: float}

#: The message for a value that fits no type of the engine.
UNKNOWN_TYPE = "A parameter value has a type that the engine does not support."

#: The maximum length of names in messages. They come from the caller.
_SHOWN_CHARACTERS = 40


def bind(taken: Collection[str], given: JsonParameters | None) -> list[Any] | dict[str, Any] | None:
    """
    Return *given* as DuckDB accepts it; None if the statement has no parameters.

    *taken* are the parameter names in the statement: "1", "2" for `?` and `$1`, otherwise the word after `$`. Case is
    ignored.

    Raises:
        ParameterError: The number of values or a name does not match, there are too many values, or `check_values`
            refuses a value.
    """
    if not taken and not given:
        return None
    given = [] if given is None else given
    if len(given) > MAX_PARAMETERS:
        raise ParameterError(f"A statement takes {MAX_PARAMETERS:,} parameters at most, but {len(given):,} were sent.")
    names = {name.casefold(): name for name in taken}
    bound = _by_name(names, given) if isinstance(given, Mapping) else _by_position(names, list(given))
    check_values(bound)
    return bound or None


def ordered(taken: Collection[str]) -> tuple[str, ...]:
    """Return parameter names in order: numbers by value, others alphabetically."""
    return tuple(sorted(taken, key=lambda name: (int(name) if name.isdecimal() else 0, name)))


def nulls(taken: Collection[str]) -> list[Any] | dict[str, Any]:
    """
    Return NULL for each of the parameters *taken*.

    Raises:
        ParameterError: The number of a parameter is too high.
    """
    if all(name.isdecimal() for name in taken):
        highest = max(map(int, taken))
        if highest > MAX_PARAMETERS:
            raise ParameterError(
                f"A statement takes {MAX_PARAMETERS:,} parameters at most, but this one uses ${highest}."
            )
        return [None] * highest
    return dict.fromkeys(taken)


def check_values(given: JsonParameters | None) -> None:
    """
    Check each value separately.

    Raises:
        ParameterError: A value is nested too deeply, or contains too large a number, text that is not Unicode, or a
            list of values that the engine would convert to one type.
    """
    if isinstance(given, Mapping):
        named = [(str(name).casefold(), value) for name, value in given.items()]
    else:
        named = [(str(number), value) for number, value in enumerate(given or (), start=1)]
    for name, value in named:
        _check_value(f"${name[:_SHOWN_CHARACTERS]}", value)


def _by_position(names: Mapping[str, str], values: list[Any]) -> list[Any]:
    if not all(name.isdecimal() for name in names):
        raise ParameterError(
            f"The statement uses named parameters ({_shown(names.values())}): send the values as an object."
        )
    highest = max(map(int, names), default=0)
    if len(names) < highest:
        unused = next(number for number in range(1, highest) if str(number) not in names)
        raise ParameterError(f"The statement uses ${highest} but not ${unused}: number the parameters without gaps.")
    if len(values) != highest or len(names) != highest:
        taken = f"{len(names)} parameter{'' if len(names) == 1 else 's'}"
        raise ParameterError(
            f"The statement takes {taken}, and {len(values)} {'is' if len(values) == 1 else 'are'} given."
        )
    return values


def _by_name(names: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, Any]:
    given = {str(name).casefold(): value for name, value in values.items()}
    if len(given) != len(values):
        raise ParameterError("A parameter is set twice: parameter names are not case-sensitive.")
    if missing := [name for key, name in names.items() if key not in given]:
        raise ParameterError(f"The statement takes {_shown(missing)}, and no value is given for it.")
    if unknown := [name for name in values if str(name).casefold() not in names]:
        raise ParameterError(f"The statement has no parameter {_shown(map(str, unknown))}.")
    return given


def _check_value(name: str, value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        for single in level:
            if isinstance(single, int) and not LEAST_INTEGER <= single <= GREATEST_INTEGER:
                raise ParameterError(f"The value of {name} contains an integer larger than 128 bits.")
            if isinstance(single, Decimal) and _width(single) > MAX_DIGITS:
                raise ParameterError(f"The value of {name} contains a decimal with more than {MAX_DIGITS} digits.")
            if isinstance(single, str):
                try:
                    single.encode()
                except UnicodeEncodeError:
                    raise ParameterError(f"The value of {name} contains invalid Unicode: a lone surrogate.") from None
        level = [
            inner
            for outer in level
            if isinstance(outer, Mapping | list | tuple)
            for inner in (outer.values() if isinstance(outer, Mapping) else outer)
        ]
        if not level:
            _check_alike(name, [value])
            return
    raise ParameterError(f"The value of {name} is nested more than {MAX_DEPTH} levels deep.")


def _check_alike(name: str, values: list[Any]) -> None:
    """Refuse different types of *values*, which are in one list or at the same place in the items of one."""
    values = [value for value in values if value is not None]
    kinds = {_KINDS.get(type(value), type(value)) for value in values}
    if len(kinds) > 1:
        raise ParameterError(f"The value of {name} contains a list with values of different types.")
    if kinds == {float}:
        integers = [value for value in values if isinstance(value, int)]
        # The engine converts HUGEINT and UHUGEINT in one list to DOUBLE.
        if max(integers, default=0) >= 2**127 and any(
            not -(2**63) <= value < 2**64 for value in integers if value < 2**127
        ):
            raise ParameterError(f"The value of {name} contains a list with integers that would be rounded.")
        if len(integers) < len(values) and any(int(float(value)) != value for value in integers):
            raise ParameterError(
                f"The value of {name} contains a list with a decimal and an integer that would be rounded."
            )
    elif kinds == {list}:
        _check_alike(name, [item for value in values for item in value])
    elif kinds == {dict}:
        for key in dict.fromkeys(chain.from_iterable(values)):
            _check_alike(name, [value[key] for value in values if key in value])


def _width(value: Decimal) -> int:
    """Return the width of the DECIMAL to which DuckDB converts *value*. A zero before the decimal point counts."""
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return 0
    return len(digits) + exponent if exponent >= 0 else len(digits) if -exponent <= len(digits) else 1 - exponent


def _shown(names: Iterable[str]) -> str:
    return ", ".join(f"${name[:_SHOWN_CHARACTERS]}" for name in list(names)[:5])

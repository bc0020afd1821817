"""The values of a statement's parameters as Spark Connect literals."""

import datetime as dt
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from cluster.protocol import messages
from queryengine.errors import ParameterError
from queryengine.execution.parameters import UNKNOWN_TYPE

_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - for times without a zone
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_MAX_DIGITS: Final = 38


def arguments(values: list[Any] | dict[str, Any] | None) -> dict[str, Any]:
    """
    Return *values* by the names that the gate writes: the name after an underscore, or the position from 1.

    Raises:
        ParameterError: A value has a type that a cluster does not accept.
    """
    named = values if isinstance(values, Mapping) else {str(at): value for at, value in enumerate(values or (), 1)}
    return {f"_{name}": messages.Expression(literal=_literal(name, value)) for name, value in named.items()}


def _literal(name: str, value: Any) -> Any:
    if value is None:
        return messages.Expression.Literal(null=messages.DataType(null=messages.DataType.NULL()))
    for kind, converted in _CONVERTERS.items():
        if isinstance(value, kind):
            return messages.Expression.Literal(**converted(name, value))
    raise ParameterError(UNKNOWN_TYPE)


def _integer(name: str, value: int) -> dict[str, Any]:
    if -(2**31) <= value < 2**31:
        return {"integer": value}
    return {"long": value} if -(2**63) <= value < 2**63 else {"decimal": _decimal(name, Decimal(value))}


def _timestamp(_name: str, value: dt.datetime) -> dict[str, Any]:
    if value.tzinfo is None:
        return {"timestamp_ntz": (value - _EPOCH) // _MICROSECOND}
    return {"timestamp": (value.astimezone(dt.UTC).replace(tzinfo=None) - _EPOCH) // _MICROSECOND}


def _decimal(name: str, value: Decimal) -> Any:
    _, digits, exponent = value.as_tuple()
    scale = max(0, -exponent) if isinstance(exponent, int) else _MAX_DIGITS + 1
    precision = max(len(digits) + max(0, exponent if isinstance(exponent, int) else 0), scale)
    if precision > _MAX_DIGITS:
        raise ParameterError(f"The value of ${name[:40]} has more than {_MAX_DIGITS} digits.")
    return messages.Expression.Literal.Decimal(value=f"{value:f}", precision=precision, scale=scale)


#: The literal's field and its content by value type. A type comes before the types that include it.
_CONVERTERS: Final[Mapping[type, Callable[[str, Any], dict[str, Any]]]] = {
    bool: lambda _, value: {"boolean": value},
    int: _integer,
    float: lambda _, value: {"double": value},
    Decimal: lambda name, value: {"decimal": _decimal(name, value)},
    str: lambda _, value: {"string": value},
    bytes: lambda _, value: {"binary": value},
    dt.datetime: _timestamp,
    dt.date: lambda _, value: {"date": (value - _EPOCH.date()).days},
}

"""Strict and unambiguous JSON: RFC 8259 without extensions, limited to I-JSON (RFC 7493)."""

import json
import math
from typing import Any

from sqlapi.errors import BodyError, InvalidJsonError


def decode_utf8(body: bytes) -> str:
    """
    Return *body* as text without a leading byte order mark.

    Raises:
        BodyError: It is not UTF-8.
    """
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BodyError(f"The body is not UTF-8: byte {error.start} cannot be decoded.") from error


def parse_object(text: str, fields: frozenset[str]) -> dict[str, Any]:
    """
    Return the JSON object in *text*.

    Raises:
        InvalidJsonError: It is not a JSON object, has a duplicate name or one not in *fields*, contains NaN, an
            infinity, a lone surrogate or a number beyond the limits, or is nested too deeply.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite)
        # An escape may produce a lone surrogate, which UTF-8 cannot encode: encoding the value finds it.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except InvalidJsonError:
        raise
    except json.JSONDecodeError as error:
        position = f"line {error.lineno} column {error.colno}"
        raise InvalidJsonError(f"The body is not valid JSON: {error.msg} at {position}.") from error
    except UnicodeEncodeError as error:
        raise InvalidJsonError("The body is not valid JSON: a string holds a lone surrogate.") from error
    except RecursionError as error:
        raise InvalidJsonError("The JSON of the body is nested too deep.") from error
    except ValueError as error:
        raise InvalidJsonError("The JSON of the body holds a number with too many digits.") from error
    if not isinstance(value, dict):
        raise InvalidJsonError(f"The JSON of the body must be an object with {_names(fields)}.")
    unknown = sorted(value.keys() - fields)
    if unknown:
        raise InvalidJsonError(f"Unknown field {json.dumps(unknown[0])[:80]}: the fields are {_names(fields)}.")
    return value


def _names(fields: frozenset[str]) -> str:
    *first, last = (f'"{name}"' for name in sorted(fields, reverse=True))
    return f"{', '.join(first)} and {last}" if first else last


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise InvalidJsonError("An object in the JSON of the body has one name twice.")
    return value


def _refuse_constant(name: str) -> None:
    raise InvalidJsonError(f"The body is not valid JSON: {name} is not a JSON number.")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise InvalidJsonError("The JSON of the body holds a number that is too large.")
    return number

"""JSON as the API takes it: RFC 8259 and nothing beyond, with one meaning only (I-JSON, RFC 7493)."""

from __future__ import annotations

import json
import math
from typing import Any

from sqlapi.errors import BodyError, InvalidJsonError


def decode_utf8(body: bytes) -> str:
    """
    Return *body* as text; a byte order mark at its start is dropped.

    Raises:
        BodyError: It is not UTF-8.
    """
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BodyError(f"The body is not UTF-8: byte {error.start} cannot be decoded.") from error


def parse_object(text: str, fields: frozenset[str]) -> dict[str, Any]:
    """
    Return the JSON object that *text* holds.

    Raises:
        InvalidJsonError: It is no JSON object, has a name twice or one that is not in *fields*, holds NaN, an infinity
            or a lone surrogate, a number beyond the limits, or is nested too deep.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite)
        # An escape may make a lone surrogate, which no UTF-8 text has: writing the value out finds it.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except InvalidJsonError:
        raise
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise InvalidJsonError(f"The body is not valid JSON: {error.msg} at {place}.") from error
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

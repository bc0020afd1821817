"""
The bodies of `POST /v1/sql` and `POST /v1/datasets/{name}/acceleration/refresh`.

JSON is strict and unambiguous: RFC 8259 without extensions, limited to I-JSON (RFC 7493).
"""

import json
import math
import re
from dataclasses import dataclass
from typing import Any, get_args

from queryengine.engine import Parameters
from runtimeconf.fields import DurationField, InvalidValueError
from runtimeconf.model import RefreshMode
from sqlapi.body import Environ, read_body
from sqlapi.errors import BodyError, CharsetError, InvalidJsonError
from sqlapi.media_types import parse_media_type

#: Key of the WSGI environ where `sqlapi.wsgi_handler` hides the Content-Type from Django.
CONTENT_TYPE = "runtime.content_type"

_CHARSETS = frozenset({"utf-8", "utf8", "us-ascii", "ascii"})
#: A field of a form, or text that was encoded for one: no statement begins like this.
_FORM_FIELD = re.compile(r"\s*[A-Za-z_][\w.-]*(?:=|%[0-9A-Fa-f]{2})")
#: Text that begins as a statement: no JSON does.
_SQL = re.compile(r"\s*(?:--|/\*|\(|[A-Za-z]+(?<!true)(?<!false)(?<!null)[\s(*])")
_HOW_TO_SEND = (
    "Send the SQL itself as the body, with Content-Type: text/plain: curl --data-binary 'SELECT 1', or --data-binary "
    '@query.sql for a file. Or send {"sql": "SELECT 1"} with Content-Type: application/json.'
)
_JITTER = DurationField("0s", "365d")


def read_sql_request(environ: Environ, max_bytes: int, key: str = "") -> tuple[str, Parameters | None]:
    """
    Return a statement and its parameters: JSON if the Content-Type is `application/json`, otherwise SQL text.

    Raises:
        BodyError: The body cannot be read, is too large, is not UTF-8, or is not valid JSON for this route.
    """
    content_type = environ.get(CONTENT_TYPE) or environ.get("CONTENT_TYPE", "")
    media_type, parameters = (content_type and parse_media_type(content_type)) or ("", {})
    if parameters.get("charset", "utf-8").lower() not in _CHARSETS:
        raise CharsetError
    text = _text(environ, max_bytes, key)
    if media_type == "application/json":
        try:
            return _statement(_parsed_object(text, "sql", "parameters"))
        except InvalidJsonError as error:
            if not _SQL.match(text):
                raise
            # HTTPie declares whatever it reads from standard input as JSON.
            raise InvalidJsonError(f"{error} {_HOW_TO_SEND}") from error
    if text.lstrip().startswith("{"):  # No statement does.
        raise BodyError("The body looks like JSON: send it with Content-Type: application/json, or send the SQL alone.")
    if _FORM_FIELD.match(text) or (media_type == "multipart/form-data" and text.startswith("--")):
        raise BodyError(f"The body is a form. {_HOW_TO_SEND}")
    return text, None


def _statement(value: dict[str, Any]) -> tuple[str, Parameters | None]:
    sql, parameters = value.get("sql"), value.get("parameters")
    if not isinstance(sql, str):
        raise InvalidJsonError('The JSON of the body needs "sql", a string.')
    if parameters is not None and not isinstance(parameters, list | dict):
        raise InvalidJsonError('"parameters" must be a list, an object or null.')
    return sql, parameters


@dataclass(frozen=True, slots=True)
class RefreshRequest:
    """The settings of one refresh that override those of the YAML; None keeps them."""

    refresh_sql: str | None = None
    refresh_mode: RefreshMode | None = None
    refresh_jitter_max_s: float = 0.0


def read_refresh_request(environ: Environ, max_bytes: int, key: str = "") -> RefreshRequest:
    """
    Read the request, whatever its Content-Type. A missing body, null or a null field overrides nothing.

    Raises:
        BodyError: The body cannot be read, is too large, is not UTF-8, or is not valid JSON for this route.
    """
    text = _text(environ, max_bytes, key)
    if text.strip() in {"", "null"}:
        return RefreshRequest()
    fields = ("refresh_sql", "refresh_mode", "refresh_jitter_max")
    value = _parsed_object(text, *fields)
    sql, mode, jitter_max = map(value.get, fields)
    if sql is not None and not isinstance(sql, str):
        raise InvalidJsonError('"refresh_sql" must be a string or null.')
    if mode is not None and mode not in get_args(RefreshMode):
        raise InvalidJsonError('"refresh_mode" must be "full", "append" or null.')
    return RefreshRequest(sql, mode, 0.0 if jitter_max is None else _seconds(jitter_max))


def _seconds(value: object) -> float:
    try:
        if isinstance(value, str):
            return _JITTER.parse(value)
    except InvalidValueError:
        pass
    raise InvalidJsonError(f'"refresh_jitter_max" must be {_JITTER.expected}, or null.')


def _text(environ: Environ, max_bytes: int, key: str) -> str:
    """Return the body as text without a leading byte order mark."""
    try:
        return read_body(environ, max_bytes, key).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BodyError(f"The body is not UTF-8: byte {error.start} cannot be decoded.") from error


def _parsed_object(text: str, *fields: str) -> dict[str, Any]:
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
    *first, last = (f'"{name}"' for name in fields)
    names = f"{', '.join(first)} and {last}"
    if not isinstance(value, dict):
        raise InvalidJsonError(f"The JSON of the body must be an object with {names}.")
    unknown = sorted(value.keys() - {*fields})
    if unknown:
        raise InvalidJsonError(f"Unknown field {json.dumps(unknown[0])[:80]}: the fields are {names}.")
    return value


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

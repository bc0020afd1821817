"""
Reads request bodies as bytes directly from the server's input, and parses them for each route.

Django and DRF read only Content-Length bytes, so a chunked body would be empty, and their parsers respond to hostile
JSON with a 500. No body is read before the caller is authenticated. JSON is strict and unambiguous: RFC 8259 without
extensions, restricted to I-JSON (RFC 7493).
"""

import errno
import json
import math
import re
import threading
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any, get_args

from msgspec import Struct

from queryengine.engine import Parameters
from queryengine.errors import EngineBusyError
from runtimeconf.fields import DurationField, InvalidValueError
from runtimeconf.model import MIB, RefreshMode
from sqlapi.errors import (
    BodyError,
    BodyTooLargeError,
    CharsetError,
    ContentEncodingError,
    InvalidJsonError,
    LengthRequiredError,
    RequestTimeoutError,
)
from sqlapi.negotiation import parse_media_type

#: The WSGI environ key under which `sqlapi.wsgi_handler` hides the Content-Type from Django.
CONTENT_TYPE = "runtime.content_type"

#: The server skips unread bodies up to this size and reuses the connection.
MAX_SKIPPED_BYTES = 64 * 1024

#: The limit on one key's incomplete bodies in the memory of a process.
MAX_BYTES_OF_KEY = 64 * MIB

#: The maximum depth of a JSON body. How deep Python itself reads depends on its version: 3.14 reads 50,000 levels.
MAX_LEVELS = 500
_TOO_DEEP = f"The JSON body is nested too deeply (limit: {MAX_LEVELS} levels)."

_STATE = "runtime.body_state"
_BLOCK_BYTES = 64 * 1024
_LENGTH = re.compile(r"[0-9]{1,18}")

_CHARSETS = frozenset({"utf-8", "utf8", "us-ascii", "ascii"})
#: A form field, or text encoded as a form. No statement begins like this.
_FORM_FIELD = re.compile(r"\s*[A-Za-z_][\w.-]*(?:=|%[0-9A-Fa-f]{2})")
#: Text that begins like a statement. No JSON begins like this.
_SQL = re.compile(r"\s*(?:--|/\*|\(|[A-Za-z]+(?<!true)(?<!false)(?<!null)[\s(*])")
_HOW_TO_SEND = (
    "Send the SQL itself as the body, with Content-Type: text/plain: curl --data-binary 'SELECT 1', or --data-binary "
    '@query.sql for a file. Or send {"sql": "SELECT 1"} with Content-Type: application/json.'
)
_JITTER = DurationField("0s", "365d")

Environ = MutableMapping[str, Any]


class _Held:
    """The bytes of incomplete bodies that this process holds for each key. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes: dict[str, int] = {}

    def add(self, key: str, count: int, most: int) -> None:
        """Add *count* bytes. Raises EngineBusyError if the total then exceeds *most*."""
        with self._lock:
            held = self._bytes.get(key, 0) + count
            if held > most:
                raise EngineBusyError(reason="This API key is sending too many large bodies at once")
            self._bytes[key] = held

    def remove(self, key: str, count: int) -> None:
        """Subtract *count* bytes of a body that is complete or was abandoned."""
        with self._lock:
            self._bytes[key] -= count
            if not self._bytes[key]:
                del self._bytes[key]


_held = _Held()


def read_body(environ: Environ, max_bytes: int, key: str = "") -> bytes:
    """
    Read the whole body, which is chunked or has a `Content-Length`.

    *key* is a fingerprint. The incomplete bodies of one key may take `MAX_BYTES_OF_KEY` in this process, or two bodies
    of *max_bytes* if that is more. There is no such limit without a key, because there are no other keys to protect.

    Raises:
        EngineBusyError: The incomplete bodies of *key* exceed the limit.
        ContentEncodingError: The body is compressed, or has a transfer coding other than chunked.
        BodyTooLargeError: The body is longer than *max_bytes*. Reading stops as soon as Content-Length or a chunk size
            shows this.
        LengthRequiredError: The body is chunked, which this server does not decode.
        BodyError: The length is malformed, or the body ends early or has invalid framing.
        RequestTimeoutError: The body did not arrive within the server's time limit.
    """
    coding = environ.get("HTTP_TRANSFER_ENCODING")
    if environ.get("HTTP_CONTENT_ENCODING", "").strip().lower() not in {"", "identity"}:
        raise ContentEncodingError
    if coding is not None:
        if coding.strip().lower() != "chunked":
            raise ContentEncodingError
        if not environ.get("wsgi.input_terminated"):
            raise LengthRequiredError
        body = _read_up_to(environ, max_bytes + 1, max_bytes, key)
        if len(body) > max_bytes:
            raise BodyTooLargeError(max_bytes)
    else:
        length = _content_length(environ)
        if length is None:
            raise BodyError("Content-Length is not a number.")
        if length > max_bytes:
            raise BodyTooLargeError(max_bytes)
        body = _read_up_to(environ, length, max_bytes, key)
        if len(body) < length:
            raise BodyError("The body is shorter than its Content-Length.")
    environ[_STATE] = "read"
    return body


def must_close(environ: Mapping[str, Any]) -> bool:
    """
    Return True if the server must close the connection after its response.

    Otherwise the rest of a body that was not read, and is too long to skip, would be parsed as the next request.
    """
    state = environ.get(_STATE)
    if state == "read":
        return False
    length = _content_length(environ)
    chunked = "HTTP_TRANSFER_ENCODING" in environ
    return state == "begun" or chunked or length is None or length > MAX_SKIPPED_BYTES


def _content_length(environ: Mapping[str, Any]) -> int | None:
    text = environ.get("CONTENT_LENGTH") or "0"
    return int(text) if _LENGTH.fullmatch(text) else None


def _read_up_to(environ: Environ, count: int, max_bytes: int, key: str) -> bytes:
    environ[_STATE] = "begun"
    blocks = []
    held = 0
    try:
        while count > 0 and (block := environ["wsgi.input"].read(min(count, _BLOCK_BYTES))):
            blocks.append(block)
            count -= len(block)
            if key and count:
                _held.add(key, len(block), max(MAX_BYTES_OF_KEY, 2 * max_bytes))
                held += len(block)
    except EngineBusyError:
        raise
    except TimeoutError as error:
        raise RequestTimeoutError from error
    except Exception as error:
        if getattr(error, "errno", None) == errno.EMSGSIZE:  # The server has read a chunk size beyond the limit.
            raise BodyTooLargeError(max_bytes) from error
        # Servers raise different exceptions if a chunk is malformed or the client stops sending.
        raise BodyError("The body cannot be read: its framing is invalid or it ends early.") from error
    finally:
        if held:
            _held.remove(key, held)
    return b"".join(blocks)


def read_sql_request(environ: Environ, max_bytes: int, key: str = "") -> tuple[str, Parameters | None]:
    """
    Return a statement and its parameters. The body is JSON if the Content-Type is `application/json`, otherwise SQL.

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
            # HTTPie labels everything from standard input as JSON.
            raise InvalidJsonError(f"{error} {_HOW_TO_SEND}") from error
    if text.lstrip().startswith("{"):  # No statement begins with a brace.
        raise BodyError("The body looks like JSON: send it with Content-Type: application/json, or send the SQL alone.")
    if _FORM_FIELD.match(text) or (media_type == "multipart/form-data" and text.startswith("--")):
        raise BodyError(f"The body is a form, not SQL. {_HOW_TO_SEND}")
    return text, None


def _statement(value: dict[str, Any]) -> tuple[str, Parameters | None]:
    sql, parameters = value.get("sql"), value.get("parameters")
    if not isinstance(sql, str):
        raise InvalidJsonError('The JSON body must have the field "sql", a string.')
    if parameters is not None and not isinstance(parameters, list | dict):
        raise InvalidJsonError('"parameters" must be a list, an object or null.')
    return sql, parameters


class RefreshRequest(Struct, frozen=True):
    """Settings that override the configuration for one refresh. None means no override."""

    refresh_sql: str | None = None
    refresh_mode: RefreshMode | None = None
    refresh_jitter_max_s: float = 0.0


def read_refresh_request(environ: Environ, max_bytes: int, key: str = "") -> RefreshRequest:
    """
    Read the request, with any Content-Type. A missing body, null, or a null field overrides nothing.

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
    """Return the body as text, without a leading byte order mark."""
    try:
        return read_body(environ, max_bytes, key).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BodyError(f"The body is not UTF-8: byte {error.start} cannot be decoded.") from error


def _parsed_object(text: str, *fields: str) -> dict[str, Any]:
    """
    Return the JSON object in *text*.

    Raises:
        InvalidJsonError: *text* is not a JSON object, has a duplicate name or a name that is not in *fields*, contains
            NaN, an infinity, a lone surrogate or a number beyond the limits, or is nested too deeply.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_exact)
        # An escape can produce a lone surrogate, which UTF-8 cannot encode. Encoding the value detects it.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except InvalidJsonError:
        raise
    except json.JSONDecodeError as error:
        position = f"line {error.lineno} column {error.colno}"
        raise InvalidJsonError(f"The body is not valid JSON: {error.msg} at {position}.") from error
    except UnicodeEncodeError as error:
        raise InvalidJsonError("The body is not valid JSON: a string contains a lone surrogate.") from error
    except RecursionError as error:
        raise InvalidJsonError(_TOO_DEEP) from error
    except ValueError as error:
        raise InvalidJsonError("The JSON body contains a number with too many digits.") from error
    if _is_deep(value):
        raise InvalidJsonError(_TOO_DEEP)
    *first, last = (f'"{name}"' for name in fields)
    names = f"{', '.join(first)} and {last}"
    if not isinstance(value, dict):
        raise InvalidJsonError(f"The JSON body must be an object with {names}.")
    unknown = sorted(value.keys() - {*fields})
    if unknown:
        raise InvalidJsonError(f"Unknown field {json.dumps(unknown[0])[:80]}: the fields are {names}.")
    return value


def _is_deep(value: Any) -> bool:
    """Return whether *value* has more than `MAX_LEVELS` levels of lists and objects."""
    level = [value]
    for _ in range(MAX_LEVELS + 1):
        level = [
            item
            for one in level
            if isinstance(one, list | dict)
            for item in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return False
    return True


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise InvalidJsonError("An object in the JSON body has a duplicate name.")
    return value


def _refuse_constant(name: str) -> None:
    raise InvalidJsonError(f"The body is not valid JSON: {name} is not a JSON number.")


def _exact(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise InvalidJsonError("The JSON body contains a number that is too large.")
    with suppress(InvalidOperation):  # an exponent of more digits than any double needs
        written = Decimal(text)
        # Many writers give 17 digits, such as 0.10000000000000001. That is the double, rounded to as many digits.
        if Decimal(f"{number:.{len(written.as_tuple().digits) - 1}e}") == written:
            return number
    raise InvalidJsonError("The JSON body contains a number with more digits than a double holds: send it as text.")

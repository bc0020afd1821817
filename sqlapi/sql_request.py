"""The body of `POST /v1/sql`."""

from dataclasses import dataclass

from queryengine.engine import Parameters
from sqlapi.body import Environ, read_body
from sqlapi.errors import BodyError, CharsetError, InvalidJsonError
from sqlapi.json_text import decode_utf8, parse_object
from sqlapi.media_types import parse_media_type

#: Key of the WSGI environ where `sqlapi.wsgi_handler` hides the Content-Type from Django.
CONTENT_TYPE = "runtime.content_type"

_FIELDS = frozenset({"sql", "parameters"})
_CHARSETS = frozenset({"utf-8", "utf8", "us-ascii", "ascii"})


@dataclass(frozen=True, slots=True)
class SqlRequest:
    """A statement and the values of its parameters."""

    sql: str
    parameters: Parameters | None = None


def read_sql_request(environ: Environ, max_bytes: int) -> SqlRequest:
    """
    Read the statement: JSON if the Content-Type is `application/json`, otherwise SQL text.

    Raises:
        BodyError: The body cannot be read, is too large, is not UTF-8, or is not valid JSON for this route.
    """
    content_type = environ.get(CONTENT_TYPE) or environ.get("CONTENT_TYPE", "")
    media_type, parameters = (content_type and parse_media_type(content_type)) or ("", {})
    if parameters.get("charset", "utf-8").lower() not in _CHARSETS:
        raise CharsetError
    text = decode_utf8(read_body(environ, max_bytes))
    if media_type == "application/json":
        return _from_json(text)
    if text.lstrip().startswith("{"):  # No statement does.
        raise BodyError("The body looks like JSON: send it with Content-Type: application/json, or send the SQL alone.")
    return SqlRequest(text)


def _from_json(text: str) -> SqlRequest:
    value = parse_object(text, _FIELDS)
    sql, parameters = value.get("sql"), value.get("parameters")
    if not isinstance(sql, str):
        raise InvalidJsonError('The JSON of the body needs "sql", a string.')
    if parameters is not None and not isinstance(parameters, list | dict):
        raise InvalidJsonError('"parameters" must be a list, an object or null.')
    return SqlRequest(sql, parameters)

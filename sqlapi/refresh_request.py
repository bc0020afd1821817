"""The body of `POST /v1/datasets/{name}/acceleration/refresh`."""

from dataclasses import dataclass
from typing import get_args

from runtimeconf.fields import DurationField, InvalidValueError
from runtimeconf.model import RefreshMode
from sqlapi.body import Environ, read_body
from sqlapi.errors import InvalidJsonError
from sqlapi.json_text import decode_utf8, parse_object

_FIELDS = frozenset({"refresh_sql", "refresh_mode", "refresh_jitter_max"})
_JITTER = DurationField("0s", "365d")


@dataclass(frozen=True, slots=True)
class RefreshRequest:
    """The settings of one refresh that override those of the YAML; None keeps them."""

    refresh_sql: str | None = None
    refresh_mode: RefreshMode | None = None
    refresh_jitter_max_s: float = 0.0


def read_refresh_request(environ: Environ, max_bytes: int) -> RefreshRequest:
    """
    Read the request, whatever its Content-Type. A missing body or a null field overrides nothing.

    Raises:
        BodyError: The body cannot be read, is too large, is not UTF-8, or is not valid JSON for this route.
    """
    text = decode_utf8(read_body(environ, max_bytes))
    if not text.strip():
        return RefreshRequest()
    value = parse_object(text, _FIELDS)
    sql, mode, jitter_max = (value.get(name) for name in ("refresh_sql", "refresh_mode", "refresh_jitter_max"))
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

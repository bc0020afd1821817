"""
Read the body of a request, as bytes, straight from the server's input.

Django and DRF read only Content-Length bytes, so a chunked body would be empty, and their parsers answer hostile JSON
with a 500. No body is read before the caller is authenticated.
"""

import errno
import re
from collections.abc import Mapping, MutableMapping
from typing import Any

from sqlapi.errors import (
    BodyError,
    BodyTooLargeError,
    ContentEncodingError,
    LengthRequiredError,
    RequestTimeoutError,
)

#: The server skips an unread body up to this size and reuses the connection.
MAX_SKIPPED_BYTES = 64 * 1024

_STATE = "runtime.body_state"
_BLOCK_BYTES = 64 * 1024
_LENGTH = re.compile(r"[0-9]{1,18}")

Environ = MutableMapping[str, Any]


def read_body(environ: Environ, max_bytes: int) -> bytes:
    """
    Read the whole body, with `Content-Length` or chunked.

    Raises:
        ContentEncodingError: It is compressed, or in a transfer coding other than chunked.
        BodyTooLargeError: It is longer than *max_bytes*. Nothing is read after a Content-Length or chunk size says so.
        LengthRequiredError: It is chunked, which this server does not decode.
        BodyError: The length is malformed, or the body ends early or is badly framed.
        RequestTimeoutError: It was not complete within the server's time limit.
    """
    coding = environ.get("HTTP_TRANSFER_ENCODING")
    if environ.get("HTTP_CONTENT_ENCODING", "").strip().lower() not in {"", "identity"}:
        raise ContentEncodingError
    if coding is not None:
        if coding.strip().lower() != "chunked":
            raise ContentEncodingError
        if not environ.get("wsgi.input_terminated"):
            raise LengthRequiredError
        body = _read_up_to(environ, max_bytes + 1, max_bytes)
        if len(body) > max_bytes:
            raise BodyTooLargeError(max_bytes)
    else:
        length = _content_length(environ)
        if length is None:
            raise BodyError("Content-Length is not a number.")
        if length > max_bytes:
            raise BodyTooLargeError(max_bytes)
        body = _read_up_to(environ, length, max_bytes)
        if len(body) < length:
            raise BodyError("The body is shorter than its Content-Length.")
    environ[_STATE] = "read"
    return body


def must_close(environ: Mapping[str, Any]) -> bool:
    """
    Return whether the server must close the connection after its response.

    The rest of a body must not be parsed as the next request: it was read, or is short enough for the server to skip.
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


def _read_up_to(environ: Environ, count: int, max_bytes: int) -> bytes:
    environ[_STATE] = "begun"
    blocks = []
    try:
        while count > 0 and (block := environ["wsgi.input"].read(min(count, _BLOCK_BYTES))):
            blocks.append(block)
            count -= len(block)
    except TimeoutError as error:
        raise RequestTimeoutError from error
    except Exception as error:
        if getattr(error, "errno", None) == errno.EMSGSIZE:  # The server has read the size of a chunk.
            raise BodyTooLargeError(max_bytes) from error
        # Servers raise different exceptions for a malformed chunk or a client that stopped sending.
        raise BodyError("The body cannot be read: it is badly framed or ends early.") from error
    return b"".join(blocks)

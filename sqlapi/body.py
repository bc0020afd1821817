"""
Read the body of a request, as bytes, straight from the server's input.

Django and DRF read only Content-Length bytes, so a chunked body would be empty, and their parsers answer hostile JSON
with a 500. No body is read before the caller is authenticated.
"""

import errno
import re
import threading
from collections.abc import Mapping, MutableMapping
from typing import Any

from queryengine.errors import EngineBusyError
from runtimeconf.model import MIB
from sqlapi.errors import (
    BodyError,
    BodyTooLargeError,
    ContentEncodingError,
    LengthRequiredError,
    RequestTimeoutError,
)

#: The server skips an unread body up to this size and reuses the connection.
MAX_SKIPPED_BYTES = 64 * 1024

#: How much of the incomplete bodies of one key a process holds.
MAX_BYTES_OF_KEY = 64 * MIB

_STATE = "runtime.body_state"
_BLOCK_BYTES = 64 * 1024
_LENGTH = re.compile(r"[0-9]{1,18}")

Environ = MutableMapping[str, Any]


class _Held:
    """How many bytes of incomplete bodies this process holds for each key. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes: dict[str, int] = {}

    def add(self, key: str, count: int, most: int) -> None:
        """Count more bytes; raises EngineBusyError if there are more than *most* then."""
        with self._lock:
            held = self._bytes.get(key, 0) + count
            if held > most:
                raise EngineBusyError(reason="This API key sends too many large bodies at once")
            self._bytes[key] = held

    def remove(self, key: str, count: int) -> None:
        """Count fewer bytes: a body is complete, or given up."""
        with self._lock:
            self._bytes[key] -= count
            if not self._bytes[key]:
                del self._bytes[key]


_held = _Held()


def read_body(environ: Environ, max_bytes: int, key: str = "") -> bytes:
    """
    Read the whole body, with `Content-Length` or chunked.

    The incomplete bodies of one *key*, a fingerprint, may take `MAX_BYTES_OF_KEY` in this process, and always two
    bodies of *max_bytes*. Without a key there is nobody to protect.

    Raises:
        EngineBusyError: The incomplete bodies of *key* take more.
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
        if getattr(error, "errno", None) == errno.EMSGSIZE:  # The server has read the size of a chunk.
            raise BodyTooLargeError(max_bytes) from error
        # Servers raise different exceptions for a malformed chunk or a client that stopped sending.
        raise BodyError("The body cannot be read: it is badly framed or ends early.") from error
    finally:
        if held:
            _held.remove(key, held)
    return b"".join(blocks)

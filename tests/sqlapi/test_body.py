from __future__ import annotations

import io
from typing import Any

import pytest

from sqlapi.body import CLOSE_CONNECTION, MAX_SKIPPED_BYTES, close_if_unread, read_body
from sqlapi.errors import BodyError, BodyTooLargeError, ContentEncodingError, LengthRequiredError


class Input:
    """An input that counts the bytes read, and may fail like that of a server."""

    def __init__(self, content: bytes, error: Exception | None = None) -> None:
        self._content = io.BytesIO(content)
        self._error = error
        self.read_bytes = 0

    def read(self, size: int) -> bytes:
        block = self._content.read(min(size, 1000))
        if not block and self._error:
            raise self._error
        self.read_bytes += len(block)
        return block


def environ_of(content: bytes, error: Exception | None = None, /, **more: Any) -> dict[str, Any]:
    return {"wsgi.input": Input(content, error), **more}


def closes(environ: dict[str, Any]) -> bool:
    close_if_unread(environ)
    return bool(environ.get(CLOSE_CONNECTION))


def test_content_length() -> None:
    environ = environ_of(b"SELECT 1;next request", CONTENT_LENGTH="8")

    assert read_body(environ, 8) == b"SELECT 1"
    assert environ["wsgi.input"].read_bytes == 8
    assert not closes(environ)


@pytest.mark.parametrize("more", [{}, {"CONTENT_LENGTH": ""}, {"CONTENT_LENGTH": "0"}])
def test_no_body(more: dict[str, str]) -> None:
    environ = environ_of(b"next request", **more)

    assert read_body(environ, 8) == b""
    assert not closes(environ)


CHUNKED = {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True}


@pytest.mark.parametrize("content", [b"", b"SELECT 1", b"x" * 5000])
def test_h04_chunked(content: bytes) -> None:
    environ = environ_of(content, **CHUNKED)

    assert read_body(environ, 5000) == content
    assert not closes(environ)


def test_h04_chunked_is_411_if_the_server_does_not_decode_it() -> None:
    environ = environ_of(b"8\r\nSELECT 1\r\n0\r\n\r\n", HTTP_TRANSFER_ENCODING="Chunked")

    with pytest.raises(LengthRequiredError):
        read_body(environ, 5000)
    assert closes(environ)


def test_h06_too_large_by_length_is_refused_unread() -> None:
    environ = environ_of(b"x" * 100_000, CONTENT_LENGTH="100000")

    with pytest.raises(BodyTooLargeError, match="larger than 99999 bytes"):
        read_body(environ, 99_999)
    assert environ["wsgi.input"].read_bytes == 0
    assert closes(environ)


def test_h06_too_large_chunked_is_read_up_to_the_limit_only() -> None:
    environ = environ_of(b"x" * 100_000, **CHUNKED)

    with pytest.raises(BodyTooLargeError):
        read_body(environ, 5000)
    assert environ["wsgi.input"].read_bytes == 5001
    assert closes(environ)


@pytest.mark.parametrize("length", ["-1", "+3", "0x3", "3, 4", "1e3", " 3", "3.0", "٣", "9" * 20, "x"])
def test_h03_malformed_length(length: str) -> None:
    environ = environ_of(b"abc", CONTENT_LENGTH=length)

    with pytest.raises(BodyError, match="Content-Length is not a number"):
        read_body(environ, 5000)
    assert closes(environ)


def test_short_body() -> None:
    environ = environ_of(b"SELECT", CONTENT_LENGTH="8")

    with pytest.raises(BodyError, match="shorter than its Content-Length"):
        read_body(environ, 5000)
    assert closes(environ)


@pytest.mark.parametrize("more", [CHUNKED, {"CONTENT_LENGTH": "8"}])
@pytest.mark.parametrize("error", [OSError("gone"), ValueError("bad chunk"), StopIteration()])
def test_any_exception_of_the_server_is_a_body_error(more: dict[str, Any], error: Exception) -> None:
    environ = environ_of(b"SEL", error, **more)

    with pytest.raises(BodyError, match="badly framed or ends early"):
        read_body(environ, 5000)
    assert closes(environ)


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "br", "identity, gzip", "deflate", "utf-8"])
def test_a41_content_encoding(coding: str) -> None:
    environ = environ_of(b"\x1f\x8b", CONTENT_LENGTH="2", HTTP_CONTENT_ENCODING=coding)

    with pytest.raises(ContentEncodingError):
        read_body(environ, 5000)
    assert environ["wsgi.input"].read_bytes == 0


@pytest.mark.parametrize("coding", ["", " ", "identity", "Identity "])
def test_no_content_encoding(coding: str) -> None:
    environ = environ_of(b"SELECT 1", CONTENT_LENGTH="8", HTTP_CONTENT_ENCODING=coding)

    assert read_body(environ, 8) == b"SELECT 1"


@pytest.mark.parametrize("coding", ["gzip, chunked", "gzip", "identity", ""])
def test_other_transfer_codings(coding: str) -> None:
    environ = environ_of(b"\x1f\x8b", **{**CHUNKED, "HTTP_TRANSFER_ENCODING": coding})

    with pytest.raises(ContentEncodingError):
        read_body(environ, 5000)
    assert closes(environ)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        pytest.param({}, False, id="none"),
        pytest.param({"CONTENT_LENGTH": str(MAX_SKIPPED_BYTES)}, False, id="short"),
        pytest.param({"CONTENT_LENGTH": str(MAX_SKIPPED_BYTES + 1)}, True, id="long"),
        pytest.param({"CONTENT_LENGTH": "10000000000"}, True, id="A43 very long"),
        pytest.param({"CONTENT_LENGTH": "x"}, True, id="malformed"),
        pytest.param(CHUNKED, True, id="chunked"),
    ],
)
def test_which_unread_bodies_close_the_connection(more: dict[str, Any], expected: bool) -> None:
    assert closes(environ_of(b"", **more)) is expected

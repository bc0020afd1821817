import errno
import io
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from queryengine.errors import EngineBusyError
from sqlapi import body
from sqlapi.body import MAX_SKIPPED_BYTES, must_close, read_body
from sqlapi.errors import BodyError, BodyTooLargeError, ContentEncodingError, LengthRequiredError
from tests.queryengine.publishing import wait_until


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


LIMIT = 70_000  # More than the server skips.
CHUNKED = {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True}


@pytest.mark.parametrize(
    ("content", "more", "body"),
    [
        *((b"next request", more, b"") for more in ({}, {"CONTENT_LENGTH": ""}, {"CONTENT_LENGTH": "0"})),
        (b"x" * 80_000, {"CONTENT_LENGTH": "70000"}, b"x" * 70_000),
        *((content, CHUNKED, content) for content in (b"", b"SELECT 1", b"x" * 70_000)),
        *(
            (b"SELECT 1;next request", {"CONTENT_LENGTH": "8", "HTTP_CONTENT_ENCODING": coding}, b"SELECT 1")
            for coding in ("", " ", "identity", "Identity ")
        ),
    ],
)
def test_a_body_is_read_up_to_its_end(content: bytes, more: dict[str, Any], body: bytes) -> None:
    environ = environ_of(content, **more)

    assert read_body(environ, LIMIT) == body
    assert environ["wsgi.input"].read_bytes == len(body)
    assert not must_close(environ)


@pytest.mark.parametrize(
    ("content", "more", "error", "read_bytes"),
    [
        pytest.param(b"8\r\nSELECT 1", {"HTTP_TRANSFER_ENCODING": "Chunked"}, LengthRequiredError(), 0, id="H04 raw"),
        pytest.param(b"x" * 70_001, {"CONTENT_LENGTH": "70001"}, BodyTooLargeError(LIMIT), 0, id="H06 long"),
        pytest.param(b"x" * 100_000, CHUNKED, BodyTooLargeError(LIMIT), 70_001, id="H06 long chunks"),
        *(
            (b"abc", {"CONTENT_LENGTH": text}, BodyError("Content-Length is not a number."), 0)
            for text in ("-1", "+3", "0x3", "3, 4", "1e3", " 3", "3.0", "٣", "9" * 20, "x")
        ),
        (b"SELECT", {"CONTENT_LENGTH": "8"}, BodyError("The body is shorter than its Content-Length."), 6),
        *(
            (b"\x1f\x8b", {"CONTENT_LENGTH": "70000", "HTTP_CONTENT_ENCODING": coding}, ContentEncodingError(), 0)
            for coding in ("gzip", "GZIP", "br", "identity, gzip", "deflate", "utf-8")
        ),
        *(
            (b"\x1f\x8b", CHUNKED | {"HTTP_TRANSFER_ENCODING": coding}, ContentEncodingError(), 0)
            for coding in ("gzip, chunked", "gzip", "identity", "")
        ),
    ],
)
def test_a_refused_body_is_not_read_on_and_closes_the_connection(
    content: bytes, more: dict[str, Any], error: BodyError, read_bytes: int
) -> None:
    environ = environ_of(content, **more)

    with pytest.raises(type(error)) as raised:
        read_body(environ, LIMIT)

    assert str(raised.value) == str(error)
    assert environ["wsgi.input"].read_bytes == read_bytes
    assert must_close(environ)


@pytest.mark.parametrize("more", [CHUNKED, {"CONTENT_LENGTH": "8"}])
@pytest.mark.parametrize("error", [OSError("gone"), ValueError("bad chunk"), StopIteration()])
def test_any_exception_of_the_server_is_a_body_error(more: dict[str, Any], error: Exception) -> None:
    environ = environ_of(b"SEL", error, **more)

    with pytest.raises(BodyError, match="badly framed or ends early"):
        read_body(environ, LIMIT)
    assert must_close(environ)


def test_a_chunk_that_the_server_finds_too_large_is_a_body_that_is_too_large() -> None:
    environ = environ_of(b"SEL", OSError(errno.EMSGSIZE, "the chunk is too large"), **CHUNKED)

    with pytest.raises(BodyTooLargeError, match=str(LIMIT)):
        read_body(environ, LIMIT)
    assert must_close(environ)


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
    assert must_close(environ_of(b"", **more)) is expected


def test_the_incomplete_bodies_of_one_key_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "MAX_BYTES_OF_KEY", 3000)
    sent = threading.Event()

    class Slow(Input):
        def read(self, size: int) -> bytes:
            assert not self.read_bytes or sent.wait(30)
            return super().read(min(size, 600))

    def read(key: str) -> bytes:
        return read_body({"wsgi.input": Slow(b"x" * 1000), "CONTENT_LENGTH": "1000"}, 1000, key)

    with ThreadPoolExecutor(20) as threads:
        begun = [threads.submit(read, key) for key in 5 * ["flood"] + ["other"] + 7 * [""]]
        wait_until(lambda: body._held._bytes == {"flood": 3000, "other": 600})

        with pytest.raises(EngineBusyError, match="too many large bodies at once: try again in 1 s"):
            read("flood")

        sent.set()
        assert [one.result(30) for one in begun] == [b"x" * 1000] * len(begun)
    assert body._held._bytes == {}

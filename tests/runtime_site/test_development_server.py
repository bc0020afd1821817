"""The chunked coding as the development server reads it (RFC 9112, 7.1)."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_site.development_server import ChunkedBody


def coded(chunks: list[bytes], trailers: bytes = b"") -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in chunks if c) + b"0\r\n" + trailers + b"\r\n"


@given(st.lists(st.binary(max_size=50)), st.integers(1, 100))
def test_any_chunks_read_in_any_sizes_give_the_body(chunks: list[bytes], size: int) -> None:
    stream = io.BytesIO(coded(chunks) + b"next request")
    body = ChunkedBody(stream, 1000)

    parts = []
    while part := body.read(size):
        assert len(part) <= size
        parts.append(part)

    assert b"".join(parts) == b"".join(chunks)
    assert body.read(1) == b""
    assert stream.read() == b"next request"


def test_extensions_and_trailers_are_passed_over() -> None:
    body = ChunkedBody(io.BytesIO(b"3;name=value\r\nabc\r\n0\r\nTrailer: x\r\n\r\n"), 1000)

    assert body.readable()
    assert body.read() == b"abc"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"3",
        b"3\r\n",
        b"3\r\nab",
        b"3\r\nabcd\r\n",
        b"zz\r\n",
        b"-3\r\nabc\r\n",
        b"+3\r\nabc\r\n",
        b"0x3\r\nabc\r\n",
        b"3\nabc\n",
        b" \r\n",
        b"\r\n",
        b"3\r\nabc\r\n0\r\nTrailer",
        b"f" * 5000,
    ],
)
def test_a_malformed_coding_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="chunk"):
        ChunkedBody(io.BytesIO(data), 1000).read()


@given(st.binary(max_size=200))
def test_any_bytes_give_a_body_or_a_value_error(data: bytes) -> None:
    try:
        ChunkedBody(io.BytesIO(data), 16**200).read()
    except ValueError as error:
        assert str(error)  # noqa: PT017 (either outcome is right)

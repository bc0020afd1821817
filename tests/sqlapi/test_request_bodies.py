import errno
import io
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryengine.errors import EngineBusyError
from sqlapi import request_bodies
from sqlapi.errors import (
    BodyError,
    BodyTooLargeError,
    CharsetError,
    ContentEncodingError,
    InvalidJsonError,
    LengthRequiredError,
)
from sqlapi.request_bodies import (
    CONTENT_TYPE,
    MAX_SKIPPED_BYTES,
    RefreshRequest,
    must_close,
    read_body,
    read_refresh_request,
    read_sql_request,
)
from tests.corpus import each
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


def incoming(content: bytes, error: Exception | None = None, /, **more: Any) -> dict[str, Any]:
    return {"wsgi.input": Input(content, error), **more}


SMALL = 70_000  # More than the server skips.
CHUNKED = {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True}


@each(
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
    environ = incoming(content, **more)

    assert read_body(environ, SMALL) == body
    assert environ["wsgi.input"].read_bytes == len(body)
    assert not must_close(environ)


@each(
    ("content", "more", "error", "read_bytes"),
    [
        pytest.param(b"8\r\nSELECT 1", {"HTTP_TRANSFER_ENCODING": "Chunked"}, LengthRequiredError(), 0, id="H04 raw"),
        pytest.param(b"x" * 70_001, {"CONTENT_LENGTH": "70001"}, BodyTooLargeError(SMALL), 0, id="H06 long"),
        pytest.param(b"x" * 100_000, CHUNKED, BodyTooLargeError(SMALL), 70_001, id="H06 long chunks"),
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
    environ = incoming(content, **more)

    with pytest.raises(type(error)) as raised:
        read_body(environ, SMALL)

    assert str(raised.value) == str(error)
    assert environ["wsgi.input"].read_bytes == read_bytes
    assert must_close(environ)


@each("more", [CHUNKED, {"CONTENT_LENGTH": "8"}])
@each("error", [OSError("gone"), ValueError("bad chunk"), StopIteration()])
def test_any_exception_of_the_server_is_a_body_error(more: dict[str, Any], error: Exception) -> None:
    environ = incoming(b"SEL", error, **more)

    with pytest.raises(BodyError, match="its framing is invalid or it ends early"):
        read_body(environ, SMALL)
    assert must_close(environ)


def test_a_chunk_that_the_server_finds_too_large_is_a_body_that_is_too_large() -> None:
    environ = incoming(b"SEL", OSError(errno.EMSGSIZE, "the chunk is too large"), **CHUNKED)

    with pytest.raises(BodyTooLargeError, match=str(SMALL)):
        read_body(environ, SMALL)
    assert must_close(environ)


@each(
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
    assert must_close(incoming(b"", **more)) is expected


LIMIT = 1024 * 1024


def environ_of(body: bytes, **more: str) -> dict[str, Any]:
    return {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body)), **more}


def read(body: bytes, content_type: str = "") -> tuple[str, object]:
    return read_sql_request(environ_of(body, **{CONTENT_TYPE: content_type}), LIMIT)


@each(
    "content_type",
    [
        *("", "text/plain", "text/plain; charset=utf-8", 'text/plain; charset="UTF-8"', "text/plain;charset=us-ascii"),
        *("application/sql", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"),
        *("application/octet-stream", "application/json-patch+json", "text/json", "application/jsonx"),
        *("nonsense", "text/plain; charset", ";;;"),
    ],
)
def test_h17_any_type_but_json_is_sql_text(content_type: str) -> None:
    assert read("SELECT 'é'".encode(), content_type) == ("SELECT 'é'", None)


@each("content_type", ["", "text/plain", "application/x-www-form-urlencoded", "text/json"])
@each("body", [b'{"sql": "SELECT 1"}', b' \n{"query": "SELECT 1"}', b'\xef\xbb\xbf{"sql"'])
def test_json_under_another_type_names_the_right_type(content_type: str, body: bytes) -> None:
    with pytest.raises(BodyError, match=r"looks like JSON: send it with Content-Type: application/json"):
        read(body, content_type)


FORM = "application/x-www-form-urlencoded"
JSON = "application/json"


@each(
    ("content_type", "body"),
    [
        pytest.param(
            "multipart/form-data; boundary=----X",
            '------X\r\nContent-Disposition: form-data; name="sql"\r\n\r\nSELECT 1\r\n------X--\r\n',
            id="curl -F sql=...",
        ),
        pytest.param(
            "multipart/form-data; boundary=BoUnDaRyStRiNg",
            '--BoUnDaRyStRiNg\r\nContent-Disposition: form-data; name="sql"\r\n\r\nSELECT 1\r\n--BoUnDaRyStRiNg--\r\n',
            id="APIClient.post(path, {'sql': ...})",
        ),
        pytest.param(FORM, "sql=SELECT%201", id="curl --data-urlencode sql=..."),
        pytest.param(FORM, "sql=SELECT 1", id="curl -d sql=..."),
        pytest.param(FORM, "SELECT%20%2A%20FROM%20t", id="curl --data-urlencode SELECT..."),
        pytest.param("", "query=SELECT+1&format=csv", id="a form without a type"),
        pytest.param(JSON, "SELECT 1", id="HTTPie with standard input"),
        pytest.param(JSON, "-- about\nSELECT 1", id="the same with a comment"),
        pytest.param(JSON, "FROM t", id="the same without SELECT"),
    ],
)
def test_a_statement_in_a_form_or_under_the_type_of_json_is_told_how_to_send_it(content_type: str, body: str) -> None:
    with pytest.raises(BodyError, match=r"--data-binary .*@query\.sql .*\{\"sql\": \"SELECT 1\"\}"):
        read(body.encode(), content_type)


@each(
    "body",
    ["SELECT 1=1", "select+1", "WITH a AS (SELECT 1) FROM a", "-- sql=1\nSELECT 1", "SELECT '%20'", "FROM a WHERE b=1",
     "SELECT\n%20", "--BoUnDaRy\nSELECT 1", "(SELECT 1)", "x"],
)  # fmt: skip
def test_a_statement_is_not_taken_for_a_form(body: str) -> None:
    assert read(body.encode(), FORM) == (body, None)


@each("body", ["", "true", "null", "[1]", '"SELECT 1"', "12", "{", "tru", "{}"])
def test_json_that_is_none_gets_the_error_of_json(body: str) -> None:
    with pytest.raises(InvalidJsonError, match="JSON"):
        read(body.encode(), JSON)


def test_a_body_without_a_content_type_is_sql_text() -> None:
    assert read_sql_request(environ_of(b"FROM t"), LIMIT) == ("FROM t", None)


@each(
    "content_type",
    [
        *("application/json", "Application/JSON", "application/json ;", "application/json; profile=x"),
        *("application/json; charset=utf-8", "application/json;charset=UTF8", 'application/json; charset="us-ascii"'),
    ],
)
def test_h17_json_with_or_without_parameters(content_type: str) -> None:
    assert read(b'{"sql":"SELECT 1"}', content_type) == ("SELECT 1", None)


@each("charset", ["utf-16", "utf-99", "iso-8859-1", "latin1", "utf-7", "x" * 1000, '"\x00"', ".."])
@each("media_type", ["application/json", "text/plain"])
def test_a41_h17_other_charsets(charset: str, media_type: str) -> None:
    with pytest.raises(CharsetError):
        read(b'{"sql":"SELECT 1"}', f"{media_type}; charset={charset}")


@each("content_type", ["", "application/json"])
@each("body", ["SELECT 1".encode("utf-16"), b"SELECT '\xe9'", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80"])
def test_s32_not_utf8(body: bytes, content_type: str) -> None:
    with pytest.raises(BodyError, match=r"not UTF-8: byte \d+"):
        read(body, content_type)


def test_a_byte_order_mark_is_dropped_and_a_large_body_refused() -> None:
    assert read(b"\xef\xbb\xbfSELECT 1") == ("SELECT 1", None)
    assert read(b'\xef\xbb\xbf{"sql":"SELECT 1"}', "application/json") == ("SELECT 1", None)
    with pytest.raises(BodyTooLargeError):
        read(b" " * (LIMIT + 1))


@each(
    ("parameters", "expected"),
    [
        ("null", None),
        ("[]", []),
        ("{}", {}),
        ('[1, 2.5, "x", null, true]', [1, 2.5, "x", None, True]),
        ('{"a": 1}', {"a": 1}),
        ("[[1]]", [[1]]),
        (f"[{10**38}]", [10**38]),
        ('["\\ud83d\\ude00"]', ["😀"]),
        ("[-0.0, 1e-300]", [-0.0, 1e-300]),
        ("[0.10000000000000001, 4.9E-324, 2.50, 1e23]", [0.1, 5e-324, 2.5, 1e23]),
        ("[0.1000000000000000055511151231257827]", [0.1]),
    ],
)
def test_parameters(parameters: str, expected: object) -> None:
    body = f'{{"sql":"SELECT ?","parameters":{parameters}}}'

    assert read(body.encode(), "application/json") == ("SELECT ?", expected)


@each(
    ("body", "message"),
    [
        pytest.param(b"", "not valid JSON", id="A41 empty"),
        pytest.param(b"SELECT 1", "not valid JSON: .* at line 1 column 1", id="A41 SQL"),
        pytest.param(b"[" * 100_000, "nested too deep", id="A41 100,000 brackets"),
        pytest.param(b'{"a":' * 100_000, "nested too deep", id="A41 100,000 braces"),
        pytest.param(
            b'{"sql":"SELECT ?","parameters":[' + b"[" * 50_000 + b"]" * 50_000 + b"]}",
            "nested too deep",
            id="A41 balanced",
        ),
        pytest.param(
            b'{"sql":"SELECT ?","parameters":[' + b"[" * 499 + b"1" + b"]" * 499 + b"]}",
            "nested too deep",
            id="A41 501",
        ),
        pytest.param(b'{"sql":"SELECT ?","parameters":[' + b"9" * 5000 + b"]}", "too many digits", id="A41 long int"),
        pytest.param(b'{"sql":"SELECT ?","parameters":[NaN]}', "NaN is not a JSON number", id="A41 NaN"),
        pytest.param(b'{"sql":"SELECT ?","parameters":[-Infinity]}', "-Infinity is not", id="A41 infinity"),
        pytest.param(b'{"sql":"SELECT ?","parameters":[1e999]}', "number that is too large", id="A41 overflow"),
        *(
            pytest.param(
                b'{"sql":"SELECT ?","parameters":[%b]}' % text, "more digits than a double", id=f"A41 {text!r}"
            )
            for text in (b"12345678901234567.89", b"-1e-400", b"0.12345678901234567890", b"1E-99999999999999999999")
        ),
        pytest.param(b'{"sql":"SELECT \\ud800"}', "lone surrogate", id="A41 lone surrogate"),
        pytest.param(b'{"sql":"SELECT 1","\\udfff":1}', "lone surrogate", id="A41 lone surrogate in a name"),
        pytest.param(b'{"sql":"?","parameters":{"a":["\\udc00x"]}}', "lone surrogate", id="A41 lone surrogate below"),
        pytest.param(b'{"sql":"SELECT 1","sql":"SELECT 2"}', "a duplicate name", id="A41 duplicate name"),
        pytest.param(b'{"sql":"?","parameters":{"a":1,"a":2}}', "a duplicate name", id="A41 duplicate name below"),
        pytest.param(
            b'{"sql":"SELECT 1","x":1}', 'Unknown field "x": the fields are "sql" and "parameters"', id="field"
        ),
        pytest.param(b'{"sql":1}', 'must have the field "sql"', id="sql is no string"),
        pytest.param(b"{}", 'must have the field "sql"', id="no sql"),
        pytest.param(b'{"sql":null}', 'must have the field "sql"', id="sql is null"),
        pytest.param(b'"SELECT 1"', "must be an object", id="a string"),
        pytest.param(b"[]", "must be an object", id="a list"),
        pytest.param(b'{"sql":"?","parameters":1}', '"parameters" must be a list', id="parameters is a number"),
        pytest.param(b'{"sql":"?","parameters":"x"}', '"parameters" must be a list', id="parameters is a string"),
        pytest.param(b'{"sql":"SELECT 1"} x', "Extra data", id="text behind"),
        pytest.param(b'{"sql":"SELECT\n1"}', "control character", id="a bare line feed"),
        pytest.param(b"{'sql':'SELECT 1'}", "not valid JSON", id="apostrophes"),
        pytest.param(b'{"sql":"SELECT 1",}', "not valid JSON", id="a trailing comma"),
    ],
)
def test_a41_invalid_json(body: bytes, message: str) -> None:
    with pytest.raises(InvalidJsonError, match=message):
        read(body, "application/json")


def test_a_deep_value_is_read() -> None:
    body = b'{"sql":"SELECT ?","parameters":[' + b"[" * 498 + b"1" + b"]" * 498 + b"]}"

    assert read(body, "application/json")[0] == "SELECT ?"


def test_a_long_field_name_is_truncated_in_the_error() -> None:
    with pytest.raises(InvalidJsonError) as raised:
        read(json.dumps({"sql": "", "x" * 100_000: 1}).encode(), "application/json")

    assert len(str(raised.value)) < 200


@given(st.binary(), st.text())
def test_any_bytes_and_any_content_type_are_sql_json_or_refused(body: bytes, content_type: str) -> None:
    for sent, kind in ((body, ""), (body, "application/json"), (b'{"sql":"SELECT 1"}', content_type)):
        try:
            statement, _ = read(sent, kind)
        except BodyError:
            continue
        statement.encode()


def read_refresh(body: str) -> RefreshRequest:
    return read_refresh_request(environ_of(body.encode()), LIMIT)


@each(
    ("body", "expected"),
    [
        ("", RefreshRequest()),
        (" \n", RefreshRequest()),
        ("{}", RefreshRequest()),
        (" null\n", RefreshRequest()),  # gospice sends it for a refresh without options
        ('{"refresh_sql": null, "refresh_mode": null, "refresh_jitter_max": null}', RefreshRequest()),
        ('{"refresh_sql": "FROM a"}', RefreshRequest("FROM a")),
        ('{"refresh_mode": "append"}', RefreshRequest(None, "append")),
        ('{"refresh_mode": "full", "refresh_jitter_max": "1.5m"}', RefreshRequest(None, "full", 90.0)),
        ('{"refresh_jitter_max": "0s"}', RefreshRequest()),
    ],
)
def test_bodies_of_a_refresh(body: str, expected: RefreshRequest) -> None:
    assert read_refresh(body) == expected


@each(
    ("field", "value"),
    [
        *product(("refresh_sql", "refresh_mode", "refresh_jitter_max"), (1, True, [], {})),
        *(("refresh_mode", value) for value in ("changes", "Full", "")),
        *(("refresh_jitter_max", value) for value in ("", "10", "-1s", "1 week", "366d")),
    ],
)
def test_a_wrong_type_or_value_names_the_field(field: str, value: object) -> None:
    with pytest.raises(InvalidJsonError, match=f'^"{field}" must be .* null'):
        read_refresh(json.dumps({field: value}))


def test_an_unknown_field_of_a_refresh_lists_the_known_ones() -> None:
    with pytest.raises(InvalidJsonError, match='"refresh_sql", "refresh_mode" and "refresh_jitter_max"'):
        read_refresh('{"refresh_data_window": "1d"}')


def test_the_incomplete_bodies_of_one_key_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_bodies, "MAX_BYTES_OF_KEY", 3000)
    sent = threading.Event()

    class Slow(Input):
        def read(self, size: int) -> bytes:
            assert not self.read_bytes or sent.wait(30)
            return super().read(min(size, 600))

    def read(key: str) -> bytes:
        return read_body({"wsgi.input": Slow(b"x" * 1000), "CONTENT_LENGTH": "1000"}, 1000, key)

    with ThreadPoolExecutor(20) as threads:
        begun = [threads.submit(read, key) for key in 5 * ["flood"] + ["other"] + 7 * [""]]
        wait_until(lambda: request_bodies._held._bytes == {"flood": 3000, "other": 600})

        with pytest.raises(EngineBusyError, match="too many large bodies at once: try again in 1 s"):
            read("flood")

        sent.set()
        assert [one.result(30) for one in begun] == [b"x" * 1000] * len(begun)
    assert request_bodies._held._bytes == {}

"""Hostile servers: an error in one line, an exit status, bounded memory, and a key that is not shown."""

import gzip
import json
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from urllib.parse import quote

import httpcore
import pytest

from runtimeclient.client import RuntimeClient
from runtimeclient.errors import ConnectionFailedError, IncompleteResultError
from runtimeclient.http import endpoint
from runtimeclient.http.results import ARROW, JSON
from runtimeclient.http.timeouts import Timeouts
from tests.runtimeclient.conftest import run_measured
from tests.runtimeclient.http.raw_server import CHUNKED, answer, chunk, speaking
from tests.runtimeclient.remote import API_KEY, VND, Remote, Reply, problem, with_schema

_MEGABYTE = b"x" * (1 << 20)
SQL = ("sql", "SELECT 1")
FILE = ("sql", "SELECT 1", "--output", "a.parquet")
_BOMB = chunk(gzip.compress(_MEGABYTE * 50)) + b"0\r\n\r\n"
ROWS = b'{"schema":{"fields":[]},"data":['


@pytest.mark.parametrize(
    ("arguments", "head", "again", "said"),
    [
        pytest.param(
            SQL,
            answer(VND) + chunk(ROWS + b'{"a":"'),
            chunk(_MEGABYTE),
            "A row of the result is longer than 64 MiB",
            id="a row without an end",
        ),
        pytest.param(("status",), answer("application/json"), chunk(b"[" * 65536), "is not a runtime", id="status"),
        pytest.param(
            SQL,
            answer("application/problem+json", status="400 Bad Request"),
            chunk(_MEGABYTE),
            "is not a runtime",
            id="an error without an end",
        ),
        pytest.param(
            SQL, b"HTTP/1.1 200 OK\r\n", b"X-A: " + b"a" * 65536 + b"\r\n", "before a complete response", id="headers"
        ),
        pytest.param(
            SQL,
            answer(VND, b"Content-Encoding: gzip\r\n" + CHUNKED) + _BOMB,
            b"",
            "is not a runtime",
            id="a gzip bomb",
        ),
        pytest.param(FILE, answer(ARROW), chunk(b"\xff" * 65536), "not a valid Arrow stream", id="Arrow"),
        pytest.param(FILE, answer(VND) + b"0\r\n\r\n", b"", "is not a runtime", id="no Arrow"),
    ],
)
def test_a_hostile_answer_is_an_error_in_one_line(
    tmp_path: Path, arguments: tuple[str, ...], head: bytes, again: bytes, said: str
) -> None:
    with speaking(head, again) as url:
        environ = {"RUNTIME_HTTP_ENDPOINT": url, "RUNTIME_API_KEY": API_KEY}
        done, peak_kib = run_measured(*arguments, cwd=tmp_path, **environ)

    assert done.status == 3
    assert done.err.startswith("Error: ")
    assert done.err.count("\n") == 1
    assert said in done.err
    assert API_KEY not in done.out + done.err
    # A row of 64 MiB is held once, and twice while it grows.
    assert peak_kib < 260_000
    assert list(tmp_path.iterdir()) == []


IMPATIENT = Timeouts(connect_s=0.3, silence_s=0.3)
_NO_ANSWER = r"accepted the connection, but did not respond within 0\.3 s"
# Long enough for a busy machine to schedule the server.
PATIENT = Timeouts(connect_s=60, silence_s=2.0)
_CUT = r"nothing arrived for 2 s, or less than 100 bytes per second"


def ask(client: RuntimeClient) -> object:
    return client.sql("SELECT 1")


_REFUSED = answer("application/problem+json", status="400 Bad Request")


@pytest.mark.parametrize(
    ("calls", "head", "again", "pause_s"),
    [
        pytest.param([ask, RuntimeClient.status], b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0, id="endless 100 Continue"),
        pytest.param([ask, RuntimeClient.status], b"", b"HTTP/1.1 103 Early Hints\r\n\r\n", 0.1, id="repeated hints"),
        pytest.param([ask, RuntimeClient.status], b"HTTP/1.1 200 OK\r\nX-A: ", b"a", 0.1, id="a trickling header"),
        pytest.param([ask, RuntimeClient.status], _REFUSED, chunk(b" "), 0.1, id="a trickling error"),
        pytest.param([RuntimeClient.datasets], answer(JSON) + chunk(b"["), chunk(b" "), 0.1, id="a trickling list"),
    ],
)
def test_a_response_that_trickles_times_out(
    calls: list[Callable[[RuntimeClient], object]], head: bytes, again: bytes, pause_s: float
) -> None:
    with speaking(head, again, pause_s) as url, RuntimeClient(url, API_KEY, timeouts=IMPATIENT) as client:
        for call_ in calls:
            with pytest.raises(ConnectionFailedError, match=_NO_ANSWER):
                call_(client)


@pytest.mark.parametrize(
    ("begin", "again", "pause_s"),
    [
        pytest.param(chunk(b"["), chunk(b" "), 0.1, id="rows"),
        pytest.param(b"1;", b"a", 0.1, id="chunk extensions"),
        pytest.param(chunk(b"["), chunk(b" "), 3600, id="silence"),
    ],
)
def test_rows_that_trickle_are_cut(begin: bytes, again: bytes, pause_s: float) -> None:
    with (
        speaking(answer(JSON) + begin, again, pause_s) as url,
        RuntimeClient(url, API_KEY, timeouts=PATIENT) as client,
        client.sql("SELECT 1") as rows,
        pytest.raises(IncompleteResultError, match=_CUT),
    ):
        list(rows.rows())


def test_closing_an_answer_early_ends_the_connection() -> None:
    is_left = threading.Event()
    with speaking(answer(JSON) + chunk(b"["), chunk(b'{"a":1},' * 100_000), is_left=is_left) as url:
        with RuntimeClient(url) as client, client.sql("SELECT") as rows:
            assert next(rows.rows()).values == {"a": "1"}

        assert is_left.wait(60)


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Line(httpcore.NetworkStream):
    """A fake connection; each read takes some seconds and returns some bytes."""

    def __init__(self, clock: Clock, *comes: tuple[float, int]) -> None:
        self._clock = clock
        self._comes = [*comes]

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        after_s, size = self._comes.pop(0)
        assert timeout is not None
        self._clock.now += min(after_s, timeout)
        if after_s >= timeout:
            self._comes.insert(0, (after_s - timeout, size))
            raise httpcore.ReadTimeout
        return b"x" * size

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        pass


@pytest.mark.parametrize(
    ("comes", "taken_s", "is_cut"),
    [
        pytest.param([(9.0, 1000)] * 500, 0, False, id="slow but sufficient"),
        pytest.param([(0.0, 10)] * 500, 3600, False, id="a slow consumer"),
        pytest.param([(9.0, 999), (0.5, 1)] * 500, 0, False, id="exactly sufficient"),
        pytest.param([(10.0, 1000)], 0, True, id="silence"),
        pytest.param([(1.0, 99)] * 11, 0, True, id="slightly too little"),
        pytest.param([(1.0, 100)] * 10 + [(1.0, 1)] * 11, 0, True, id="too little at the end"),
    ],
)
def test_rows_may_take_any_time_above_the_minimum_rate(
    monkeypatch: pytest.MonkeyPatch, comes: list[tuple[float, int]], taken_s: float, is_cut: bool
) -> None:
    clock = Clock()
    monkeypatch.setattr("runtimeclient.http.endpoint.time", clock)
    stream = endpoint._Stream(Line(clock, *comes), endpoint.Connections())
    stream.write(b"")
    stream.allow_streaming()

    with pytest.raises(httpcore.ReadTimeout) if is_cut else nullcontext():
        for _ in comes:
            stream.read(4096, 10)
            clock.now += taken_s


def test_each_request_has_its_own_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("runtimeclient.http.endpoint.time", clock)
    stream = endpoint._Stream(Line(clock, *[(6.0, 1)] * 4), endpoint.Connections())

    for _ in range(3):
        stream.write(b"")
        stream.read(4096, 10)
        clock.now += 100
    stream.write(b"")
    stream.read(4096, 10)
    clock.now += 4

    with pytest.raises(httpcore.ReadTimeout):
        stream.read(4096, 10)


# A server that echoes the key

KEY = 'a"/b c'
_ECHO = f"It was {KEY}, or {json.dumps(KEY)}, or {quote(KEY, safe='')}."
_MASKED = 'It was <secret>, or "<secret>", or <secret>.'
_REFRESHED = {"id": "7", "dataset": "d", "status": "failed", "error": _ECHO}


@pytest.mark.parametrize(
    ("arguments", "path", "reply", "shown"),
    [
        (SQL, "/v1/sql", problem(400, "sql_error", _ECHO), f"{_MASKED} [sql_error]"),
        (SQL, "/v1/sql", problem(500, KEY, "No.", KEY), "No. [<secret>, request <secret>]"),
        (SQL, "/v1/sql", Reply(403, _ECHO.encode(), "text/plain"), f"{_MASKED} [http_403]"),
        (("status",), "/v1/status", problem(403, "forbidden", _ECHO), f"{_MASKED} [forbidden]"),
        (("cancel", "7"), "/v1/sql/7/cancel", problem(404, "not_found", _ECHO), f"{_MASKED} [not_found]"),
        (("refresh", "d"), "/v1/datasets/d/acceleration/refresh", problem(409, "no", _ECHO), f"{_MASKED} [no]"),
        (
            (*SQL, "--chart", "bar", "--x", "absent"),
            "/v1/sql",
            with_schema(json.dumps([{KEY: 1}]), KEY),
            "The result has no column absent. Its columns are <secret>.",
        ),
    ],
)
def test_a_key_that_an_error_echoes_is_not_shown(
    remote: Remote, arguments: tuple[str, ...], path: str, reply: Reply, shown: str
) -> None:
    remote.on("GET" if path == "/v1/status" else "POST", path, reply)

    done = remote.call(*arguments, "--api-key", KEY)

    assert done.err == f"Error: {shown}\n"
    assert done.out == ""


def test_a_key_that_lists_and_refreshes_echo_is_not_shown(remote: Remote) -> None:
    remote.on_refreshes("d", _REFRESHED)
    remote.on("POST", "/v1/sql/7/cancel", Reply(body=json.dumps({"message": _ECHO}).encode()))
    dataset = {"from": "f", "name": "d", "acceleration_enabled": True, "status": "Error", "error": _ECHO}
    remote.on("GET", "/v1/datasets", Reply(body=json.dumps([dataset]).encode()))

    assert remote.call("cancel", "7", "--api-key", KEY).out == f"{_MASKED}\n"
    assert _MASKED in remote.call("datasets", "--api-key", KEY).out
    assert _MASKED in remote.call("refresh", "d", "--wait", "--api-key", KEY).err


def test_a_key_in_a_reason_phrase_or_a_redirect_is_not_shown() -> None:
    for status in ("404", "307"):
        head = f"HTTP/1.1 {status} {API_KEY}\r\nLocation: /{API_KEY}\r\nContent-Length: 0\r\n\r\n".encode()
        with (
            speaking(head) as url,
            RuntimeClient(url, API_KEY) as client,
            pytest.raises(ConnectionFailedError, match=rf"{status} <secret>") as error,
        ):
            client.status()

        assert API_KEY not in str(error.value)

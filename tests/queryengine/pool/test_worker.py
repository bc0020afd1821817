"""A worker as a client sees it: frames in, frames out, under gunicorn's own arbiter."""

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from queryengine.engine import Query
from queryengine.pool.frames import FrameDecoder, Kind, encode, encode_data
from queryengine.pool.messages import Request
from queryengine.pool.worker import limited
from runtimeconf.model import MIB
from tests.queryengine.bare_engine import GRACE_S, Answer, Engine, receive, request, running, still_works
from tests.queryengine.conftest import FLIGHTS
from tests.queryengine.heartbeats import state_of, ticks
from tests.queryengine.publishing import ENDLESS, ENDLESS_AFTER_ROWS, Publisher, wait_until

#: DuckDB does not look at its interrupt flag before this is done, which takes minutes.
DEAF = "SELECT levenshtein(repeat('a',200000), repeat('b',200000))"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    directory = tmp_path_factory.mktemp("worker")
    Publisher(directory).publish(flights=FLIGHTS)
    with running(directory, memory_limit_bytes=256 * MIB) as started:
        yield started


@pytest.fixture
def worker(engine: Engine) -> Iterator[int]:
    """The worker of `engine`, which outlives the test and works after it."""
    before = engine.worker()
    yield before
    still_works(engine)
    assert engine.worker() == before


@pytest.fixture
def victim(mortal: Engine) -> Iterator[int]:
    """The worker of `mortal`, which the test costs it; another one works after it."""
    before = mortal.worker()
    yield before
    still_works(mortal)
    assert mortal.worker() != before


def until_busy(worker: int) -> None:
    wait_until(lambda: state_of(worker).phase == "busy")


def given_up(connection: socket.socket) -> Answer:
    """Close the sending side, as a client does that wants no answer any more, and receive what comes."""
    with connection:
        connection.shutdown(socket.SHUT_WR)
        return receive(connection)


@pytest.mark.parametrize("earlier", [0, 1], ids=["the first statement", "a later one"])
def test_a_worker_reports_its_statement_which_a_client_that_half_closes_cancels(
    engine: Engine, worker: int, earlier: int
) -> None:
    connection = engine.connect()
    for _ in range(earlier):
        connection.sendall(request("SELECT 1 AS a"))
        assert receive(connection).data == b'[{"a":1}]'
    before = time.monotonic()
    connection.sendall(request(ENDLESS, timeout_s=7.0, query_id="0123456789abcdef" * 2))
    wait_until(lambda: state_of(worker).runs("0123456789abcdef" * 2))
    state = state_of(worker)

    assert given_up(connection).code == "query_cancelled"
    assert before + 7.0 + GRACE_S <= state.deadline <= time.monotonic() + 7.0 + GRACE_S
    wait_until(lambda: state_of(worker).phase == "idle")


@pytest.mark.exhaustive
def test_a_client_that_hangs_up_on_a_deaf_statement_costs_the_worker(mortal: Engine, victim: int) -> None:
    connection = mortal.send(DEAF, timeout_s=30.0)
    before = ticks(victim)
    wait_until(lambda: ticks(victim) > before + os.sysconf("SC_CLK_TCK") // 2)  # it is in the middle of it
    began = time.monotonic()

    answer = given_up(connection)

    assert answer.is_cut
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("sql", [ENDLESS, ENDLESS_AFTER_ROWS])
def test_a_statement_ends_when_its_time_is_up_or_its_client_closes(engine: Engine, worker: int, sql: str) -> None:
    answer = engine.ask(sql, timeout_s=0.3)

    assert answer.code == "query_timeout"
    assert answer.error is not None
    assert answer.error["arguments"] == {"limit_s": 30.0}
    with engine.send(sql, query_id="next"):
        wait_until(lambda: state_of(worker).runs("next"))


@pytest.mark.parametrize(("asked_s", "allowed_s"), [(1000.0, 0.5), (None, 0.5), (0.2, 0.2), (-1.0, 0.0)])
def test_a_request_cannot_ask_for_more_than_the_limit(asked_s: float | None, allowed_s: float) -> None:
    request = Request(call="run", query=Query(sql="SELECT 1", timeout_s=asked_s))

    assert limited(request, 0.5).query.timeout_s == allowed_s


def test_the_alarm_ends_a_deaf_statement_and_the_next_one_works(mortal: Engine, victim: int) -> None:
    began = time.monotonic()

    answer = mortal.ask(DEAF, timeout_s=3.0)

    assert answer.is_cut
    # Due after 4 s. Its limit on CPU time would end the worker after 10 s at the earliest.
    assert 3.9 < time.monotonic() - began < 9.5


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGABRT", "SIGQUIT"])
def test_a_worker_that_dies_costs_its_own_statement_only(mortal: Engine, victim: int, name: str) -> None:
    with mortal.send(ENDLESS) as connection:
        until_busy(victim)

        os.kill(victim, signal.Signals[name])

        assert receive(connection).is_cut


def test_a_client_that_does_not_read_is_given_up_and_the_worker_lives(engine: Engine, worker: int) -> None:
    with engine.send("SELECT * FROM range(100000000)", timeout_s=1.0):
        until_busy(worker)

        still_works(engine)


@pytest.mark.parametrize("earlier", [0, 1], ids=["at first", "later"])
@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="HTTP"),
        pytest.param(b"\x01\x00", id="cut"),
        pytest.param(b"".join(encode_data(b"x")), id="data"),
        pytest.param(encode(Kind.REQUEST, {}), id="empty"),
        pytest.param(request("", call="stop"), id="call"),
        pytest.param(request(1), id="no text"),  # type: ignore[arg-type]
        pytest.param(request("", timeout_s="x"), id="no time"),
        pytest.param(request("", encoding="xml"), id="encoding"),
        pytest.param(request("", scope="all"), id="scope"),
        pytest.param(request("", parameters="$1"), id="parameters"),
    ],
)
def test_an_invalid_request_gets_no_answer(engine: Engine, worker: int, sent: bytes, earlier: int) -> None:
    with engine.connect() as connection:
        for _ in range(earlier):
            connection.sendall(request("SELECT 1 AS a"))
            receive(connection)
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)

        assert [kind for kind, _ in conversation(connection)] == ([] if sent else [Kind.CLOSING])


def trickle(connection: socket.socket, data: bytes) -> None:
    for byte in data:
        connection.sendall(bytes([byte]))
        time.sleep(0.001)


def test_a_client_that_sends_no_whole_request_is_given_up(state_dir: Path) -> None:
    with running(state_dir, constants={"REQUEST_S": 0.2}) as engine:
        worker = engine.worker()
        with engine.connect():
            still_works(engine)
        with engine.connect() as connection:
            begun = request("x" * 1_000_000)
            with pytest.raises(OSError, match=r"Broken pipe|reset"):
                trickle(connection, begun)
        still_works(engine)
        assert engine.worker() == worker


@pytest.mark.exhaustive
def test_a_request_beyond_the_memory_of_a_worker_gets_a_typed_error(mortal: Engine) -> None:
    answer = mortal.ask("SELECT 1", parameters=["x" * 200 * MIB])

    assert answer.code == "resource_limit"
    still_works(mortal)


@pytest.mark.exhaustive
def test_a_worker_without_an_engine_reports_that_and_is_replaced(state_dir: Path) -> None:
    in_the_way = state_dir / "tmp"
    in_the_way.write_text("not a directory")
    with running(state_dir, constants={"RETRY_S": 0.5}) as engine:
        first = engine.worker()
        assert engine.ask("SELECT 1 AS a").code == "engine_unavailable"
        assert engine.ask("SELECT 1 AS a", call="admit", relations=[]).code == "engine_unavailable"
        wait_until(lambda: engine.worker() != first)
        assert state_of(engine.worker()).phase == "unfit"

        in_the_way.unlink()

        wait_until(lambda: state_of(engine.worker()).phase == "idle")
        worker = engine.worker()
        still_works(engine)
        assert engine.worker() == worker


def test_a_worker_with_an_unexpected_error_is_replaced(state_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with running(state_dir, constants={"_admitted": "not a function"}) as engine:
        worker = engine.worker()

        answer = engine.ask("SELECT 1 AS a", call="admit", relations=[], query_id="q1", fingerprint="f1", trace_id="t1")

        assert answer.error == {"code": "query_error", "message": "The statement could not be run."}
        assert "engine worker failed query_id=q1 fingerprint=f1 trace_id=t1" in capfd.readouterr().err
        wait_until(lambda: worker not in engine.workers())
        still_works(engine)


@pytest.mark.exhaustive
def test_statements_leave_nothing_behind(engine: Engine) -> None:
    worker = engine.worker()

    def held() -> tuple[int, int]:
        return len(list(Path(f"/proc/{worker}/fd").iterdir())), len(list(Path(f"/proc/{worker}/task").iterdir()))

    def some() -> None:
        for number in range(100):
            assert json.loads(engine.ask(f"SELECT {number} AS a").data) == [{"a": number}]
            assert engine.ask("SELECT * FROM absent").code == "sql_error"
            engine.send("SELECT * FROM range(100000)").close()

    some()
    still_works(engine)
    before = held()
    some()
    still_works(engine)

    assert engine.worker() == worker
    wait_until(lambda: held() <= before)


# More than one statement on a connection.


def conversation(connection: socket.socket) -> Iterator[tuple[Kind, bytes]]:
    """Give the frames that come, until the worker ends the connection."""
    decoder = FrameDecoder()
    while data := connection.recv(65536):
        yield from decoder.feed(data)


def test_a_connection_serves_one_statement_after_the_other(engine: Engine) -> None:
    with engine.connect() as connection:
        for number in range(10):
            connection.sendall(request(f"SELECT {number} AS a"))
            assert receive(connection).data == b'[{"a":%d}]' % number
            connection.sendall(request("SELECT * FROM absent"))
            assert receive(connection).code == "sql_error"
            connection.sendall(request(ENDLESS, timeout_s=0.02))
            assert receive(connection).code == "query_timeout", "each has its own time"
            connection.sendall(request("SELECT 1", call="admit", relations=[]))
            assert receive(connection).end is not None


def test_a_worker_announces_that_it_closes_an_idle_connection(engine: Engine, worker: int) -> None:
    with engine.send("SELECT 1 AS a") as connection:
        kinds = [kind for kind, _ in conversation(connection)]

    assert kinds == [Kind.HEADER, Kind.DATA, Kind.END, Kind.CLOSING]


def test_sigterm_lets_the_statement_finish_and_the_worker_announces_its_end(state_dir: Path) -> None:
    with running(state_dir) as engine:
        worker = engine.worker()
        with engine.send("SELECT count(*) AS n FROM range(300000000) t(i) WHERE hash(i) = 1") as connection:
            until_busy(worker)
            os.kill(worker, signal.SIGTERM)
            kinds = [kind for kind, _ in conversation(connection)]
        assert kinds == [Kind.HEADER, Kind.DATA, Kind.END, Kind.CLOSING]
        wait_until(lambda: worker not in engine.workers())
        still_works(engine)

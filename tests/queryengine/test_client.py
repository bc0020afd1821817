from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from queryengine import errors
from queryengine.cancellation import CancelSource
from queryengine.engine import EngineStatus, GatedStatement, Query, QueryEngine
from queryengine.errors import (
    EngineBusyError,
    EngineUnavailableError,
    EngineWorkerDiedError,
    ParameterError,
    QueryCancelledError,
    QueryError,
    QueryTimeoutError,
    SqlError,
)
from queryengine.pool import broker_client, client_result
from queryengine.pool.client import EngineClient
from queryengine.pool.client_result import ClientResult, State
from queryengine.pool.error_frames import ERRORS
from queryengine.pool.exchange import Exchange
from queryengine.pool.frames import Kind, encode_json
from runtimeconf.model import QueryConfig, RuntimeConfig
from tests.queryengine.publishing import wait_until
from tests.queryengine.scripted_engine import END, HEADER, Peer, ScriptedEngine, data, error, one_row

LONG_S = 30.0


class Setup:
    """A state directory with an engine in it, which can be restarted, and clients."""

    def __init__(self, state_dir: Path, **limits: Any) -> None:
        self.config = RuntimeConfig(
            file=state_dir / "runtime.yaml",
            state_dir=state_dir,
            query=QueryConfig(**{"workers": 2, "max_queued": 8, "queue_timeout_s": LONG_S, **limits}),
        )
        self.clients: list[EngineClient] = []
        self.engine = ScriptedEngine(state_dir, self.config.query)

    def client(self) -> EngineClient:
        made = EngineClient(self.config)
        self.clients.append(made)
        wait_until(made.is_alive, within_s=LONG_S)
        return made

    def restart(self) -> None:
        self.engine.close()
        self.engine = ScriptedEngine(self.config.state_dir, self.config.query)

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Have the broker do nothing for the length of the block."""
        begun, go_on = threading.Event(), threading.Event()

        def stall() -> None:
            begun.set()
            go_on.wait(LONG_S)

        stalls = threading.Thread(target=self.engine.call, args=[stall])
        stalls.start()
        assert begun.wait(LONG_S)
        try:
            yield
        finally:
            go_on.set()
            stalls.join()

    def close(self) -> None:
        for made in self.clients:
            made.close()
        self.engine.close()

    def wait_until_idle(self) -> None:
        wait_until(lambda: self.engine.broker.is_idle, within_s=LONG_S)


@pytest.fixture
def make_setup() -> Iterator[Callable[..., Setup]]:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as setups:

        def make(**limits: Any) -> Setup:
            setup = Setup(Path(directory), **limits)
            setups.callback(setup.close)
            return setup

        yield make


@pytest.fixture
def setup(make_setup: Callable[..., Setup]) -> Setup:
    return make_setup()


@pytest.fixture
def engine(setup: Setup) -> EngineClient:
    return setup.client()


def until_stopped(peer: Peer) -> None:
    peer.wait_for_stop()


def endless(peer: Peer) -> None:
    """Give a row, then nothing until somebody stops it."""
    peer.send(HEADER, data(b"first"))
    peer.wait_for_stop()
    peer.send(error("query_cancelled"))


def stubborn(peer: Peer) -> None:
    """Answer nothing, and do not obey either."""
    peer.wait_for_stop()
    threading.Event().wait(LONG_S)


def in_thread(function: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Run *function* in a thread; its answer, or what it raised, is in the list when the thread ends."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(function())
        except BaseException as exc:  # noqa: BLE001 - it is looked at by the test
            outcome.append(exc)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def finished(thread: threading.Thread) -> bool:
    thread.join(LONG_S)
    return not thread.is_alive()


def run(engine: EngineClient, sql: str, **query: Any) -> ClientResult:
    return engine.run(Query(sql=sql, **query))


# Answers.


def test_a_short_answer_is_whole_when_run_returns(setup: Setup, engine: EngineClient) -> None:
    protocol: QueryEngine = engine
    query = Query(sql="SELECT 1", encoding="csv", parameters=[1, "x"], query_id="q1", fingerprint="abc")

    result = protocol.run(query)

    setup.wait_until_idle()
    assert list(result) == [b'[{"a":1}]']
    assert list(result) == []
    result.close()
    (request,) = setup.engine.requests
    assert 0 < request.pop("timeout_s") <= 30
    assert request == {
        "call": "run",
        "sql": "SELECT 1",
        "encoding": "csv",
        "parameters": [1, "x"],
        "query_id": "q1",
        "fingerprint": "abc",
    }
    timings = result.timings
    assert (timings.rows, timings.bytes) == (1, 9)
    assert (timings.parse_ms, timings.run_ms, timings.encode_ms) == (0.25, 0.5, 0.125)
    assert timings.queued_ms > 0


def test_an_answer_comes_in_any_pieces(setup: Setup, engine: EngineClient) -> None:
    answer = HEADER + b"".join(data(str(number).encode()) for number in range(50)) + END

    def dribble(peer: Peer) -> None:
        for byte in answer:
            peer.send(bytes([byte]))

    setup.engine.scripts["dribble"] = dribble

    assert b"".join(run(engine, "dribble")) == b"".join(str(number).encode() for number in range(50))


def test_a_long_answer_is_held_back_by_a_slow_reader(setup: Setup, engine: EngineClient) -> None:
    sent: list[int] = []

    def long(peer: Peer) -> None:
        peer.send(HEADER)
        for number in range(64):
            peer.send(data(bytes(2**20)))
            sent.append(number)
        peer.send(END)

    setup.engine.scripts["long"] = long

    result = run(engine, "long")
    for _ in range(20):
        threading.Event().wait(0.01)
    assert len(sent) < 5

    assert sum(len(chunk) for chunk in result) == 64 * 2**20
    setup.wait_until_idle()


def test_an_empty_answer_is_an_answer(setup: Setup, engine: EngineClient) -> None:
    setup.engine.scripts["empty"] = lambda peer: peer.send(HEADER, END)

    assert list(run(engine, "empty")) == []


def test_a_large_statement_reaches_the_worker(setup: Setup, engine: EngineClient) -> None:
    sql = "SELECT '" + "x" * 3_000_000 + "'"
    setup.engine.scripts[sql] = one_row

    assert list(run(engine, sql)) == [b'[{"a":1}]']
    assert setup.engine.requests[0]["sql"] == sql


def test_a_statement_that_fits_no_frame_is_refused(
    setup: Setup, engine: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queryengine.pool.frames.MAX_JSON_BYTES", 5000)

    with pytest.raises(ParameterError):
        run(engine, "SELECT 1", parameters=["x" * 6000])

    setup.wait_until_idle()


_CIRCLE: list[Any] = []
_CIRCLE.append(_CIRCLE)


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        pytest.param([object()], "of a type that the engine does not take", id="no JSON"),
        pytest.param([{(1,): 2}], "of a type that the engine does not take", id="a name that is no JSON"),
        pytest.param([1, 10**5000], r"\$2 holds an integer of more than 128 bits", id="a huge integer"),
        pytest.param({"A": -(10**5000)}, r"\$a holds an integer of more than 128 bits", id="a huge integer by name"),
        pytest.param([_CIRCLE], r"\$1 is nested more than 64", id="no end"),
    ],
)
def test_values_that_cannot_be_sent_are_refused(
    setup: Setup, engine: EngineClient, parameters: Any, complaint: str
) -> None:
    with pytest.raises(ParameterError, match=complaint):
        run(engine, "SELECT 1", parameters=parameters)

    assert setup.engine.requests == []
    setup.wait_until_idle()


def test_admit_gives_what_the_gate_said(setup: Setup, engine: EngineClient) -> None:
    fields = {"sql": "SELECT 1", "kind": "select", "relations": ["t"], "parameters": ["1"]}
    setup.engine.scripts["SELECT 1;"] = lambda peer: peer.send(encode_json(Kind.END, {"statement": fields}))
    setup.engine.scripts["broken"] = lambda peer: peer.send(encode_json(Kind.END, {"statement": {}}))
    setup.engine.scripts["bad"] = lambda peer: peer.send(error("sql_error", "There is no such thing."))

    assert engine.admit("SELECT 1;", frozenset({"t", "s"})) == GatedStatement(
        "SELECT 1", "select", frozenset({"t"}), frozenset({"1"})
    )

    request = setup.engine.requests[0]
    assert (request["call"], request["relations"]) == ("admit", ["s", "t"])
    with pytest.raises(EngineUnavailableError):
        engine.admit("broken", frozenset())
    with pytest.raises(SqlError, match="no such thing"):
        engine.admit("bad", frozenset())
    setup.wait_until_idle()


def test_what_admit_has_judged_is_not_listed(setup: Setup, engine: EngineClient) -> None:
    setup.engine.scripts["SELECT 2"] = until_stopped
    thread, _ = in_thread(lambda: engine.admit("SELECT 2", frozenset()))
    wait_until(lambda: len(setup.engine.requests) == 1, within_s=LONG_S)

    assert engine.active("") == ()
    assert not engine.cancel(setup.engine.requests[0]["query_id"], "")

    engine.close()
    assert finished(thread)


# Errors.


def _tree(kind: type[QueryError]) -> list[type[QueryError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in _tree(child))]


def test_every_error_can_be_made_again() -> None:
    kinds = {kind for kind in _tree(QueryError) if kind.__module__ == errors.__name__}

    made = {type(make({"message": "m", "limit_s": 3, "retry_after_s": 9})) for make in ERRORS.values()}

    assert made == kinds
    assert set(ERRORS) == {kind.code for kind in kinds}


@pytest.mark.parametrize("rows_first", [False, True])
@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        pytest.param(error("sql_error", "There is no table."), SqlError("There is no table."), id="a sentence"),
        pytest.param(error("query_timeout", limit_s=29.9), QueryTimeoutError(30.0), id="the whole limit"),
        pytest.param(error("engine_busy", retry_after_s=7), EngineBusyError(7), id="a number"),
        pytest.param(error("query_cancelled"), QueryCancelledError(), id="nothing"),
        pytest.param(error("new_in_2030"), QueryError("The statement failed."), id="unknown"),
        pytest.param(error("engine_busy"), QueryError("The statement failed."), id="incomplete"),
        pytest.param(b"GET / HTTP/1.1", QueryError("The engine's answer cannot be read."), id="no frame"),
        pytest.param(encode_json(Kind.MESSAGE, {}), QueryError("The engine's answer cannot be read."), id="wrong"),
        pytest.param(b"", EngineWorkerDiedError(), id="nothing more"),
        pytest.param(b"\x04\0\0", EngineWorkerDiedError(), id="half a frame"),
    ],
)
def test_what_a_worker_says_last_is_what_is_raised(
    setup: Setup, engine: EngineClient, frame: bytes, expected: QueryError, rows_first: bool
) -> None:
    def fail(peer: Peer) -> None:
        if rows_first:
            peer.send(HEADER, data(b"[1,"))
            go_on.wait(LONG_S)
        peer.send(frame)

    go_on = threading.Event()
    setup.engine.scripts["fail"] = fail

    if rows_first:
        result = run(engine, "fail")
        assert next(result) == b"[1,"
        go_on.set()
    with pytest.raises(QueryError) as caught:
        next(result) if rows_first else run(engine, "fail")

    assert type(caught.value) is type(expected)
    assert str(caught.value) == str(expected)
    assert vars(caught.value) == vars(expected)
    setup.wait_until_idle()
    if rows_first:
        with pytest.raises(QueryCancelledError):
            next(result)
        result.close()


def test_data_before_the_header_is_no_answer(setup: Setup, engine: EngineClient) -> None:
    setup.engine.scripts["wrong"] = lambda peer: peer.send(data(b"x"), HEADER, END)

    with pytest.raises(QueryError, match="cannot be read"):
        run(engine, "wrong")


def test_a_worker_that_is_gone_before_it_has_read_is_a_dead_one(setup: Setup, engine: EngineClient) -> None:
    sql = "SELECT '" + "x" * 3_000_000 + "'"

    def reset(_: ScriptedEngine, connection: socket.socket) -> None:
        connection.close()

    setup.engine._serve = reset.__get__(setup.engine)  # type: ignore[method-assign]

    with pytest.raises(EngineWorkerDiedError):
        run(engine, sql)
    setup.wait_until_idle()


# Cancelling and closing.


def test_cancel_ends_a_statement_while_another_thread_reads(setup: Setup, engine: EngineClient) -> None:
    setup.engine.scripts["endless"] = endless
    result = run(engine, "endless")
    assert next(result) == b"first"
    thread, outcome = in_thread(lambda: next(result))
    wait_until(lambda: result._state is State.ACTIVE)

    result.cancel()
    result.cancel()

    assert finished(thread)
    assert [type(one) for one in outcome] == [QueryCancelledError]
    setup.wait_until_idle()
    assert setup.engine.killed == []


def test_a_statement_that_is_cancelled_before_its_worker_has_read_it_is_cancelled(
    setup: Setup, engine: EngineClient
) -> None:
    def closing(peer: Peer) -> None:
        """Do as a worker does whose connection ends before a statement came."""
        peer.wait_for_stop()
        peer.send(encode_json(Kind.CLOSING, {}))

    setup.engine.scripts["unread"] = closing
    cancel = CancelSource()
    thread, outcome = in_thread(lambda: engine.run(Query(sql="unread"), cancel))
    wait_until(lambda: [request["sql"] for request in setup.engine.requests] == ["unread"])

    cancel.cancel()

    assert finished(thread)
    assert [type(one) for one in outcome] == [QueryCancelledError]
    setup.wait_until_idle()


def test_cancel_ends_a_statement_between_two_chunks(setup: Setup, engine: EngineClient) -> None:
    setup.engine.scripts["endless"] = endless
    result = run(engine, "endless")

    result.cancel()

    with pytest.raises(QueryCancelledError):
        next(result)
    setup.wait_until_idle()


def test_a_token_cancels_before_the_start_in_the_queue_and_under_way(setup: Setup, engine: EngineClient) -> None:
    setup.engine.scripts["wait"] = until_stopped
    before = CancelSource()
    before.cancel()
    with pytest.raises(QueryCancelledError):
        engine.run(Query(sql="wait"), before)
    assert setup.engine.requests == []

    runs = [CancelSource() for _ in range(3)]
    started = []
    for number, token in enumerate(runs):
        started.append(in_thread(lambda token=token: engine.run(Query(sql="wait"), token)))  # type: ignore[misc]
        wait_until(lambda number=number: len(engine.active("")) == number + 1, within_s=LONG_S)  # type: ignore[misc]
    assert [one.state for one in engine.active("")] == ["running", "running", "queued"]
    # Who has a place has yet to reach a worker, and does not when it is cancelled before.
    wait_until(lambda: len(setup.engine.requests) == 2, within_s=LONG_S)
    for token in reversed(runs):
        token.cancel()

    for thread, outcome in started:
        assert finished(thread)
        assert [type(one) for one in outcome] == [QueryCancelledError]
    assert len(setup.engine.requests) == 2
    assert all(not token._callbacks for token in runs)
    setup.wait_until_idle()


def test_close_gives_the_place_back_when_the_worker_has_ended(setup: Setup, engine: EngineClient) -> None:
    let_go = threading.Event()

    def slow_to_end(peer: Peer) -> None:
        peer.send(HEADER, data(b"first"))
        peer.wait_for_stop()
        let_go.wait(LONG_S)

    setup.engine.scripts["slow"] = slow_to_end
    result = run(engine, "slow")

    result.close()
    result.close()

    assert not setup.engine.broker.is_idle
    let_go.set()
    setup.wait_until_idle()
    assert setup.engine.killed == []
    with pytest.raises(QueryCancelledError):
        next(result)


def test_close_ends_a_statement_that_another_thread_reads(setup: Setup, engine: EngineClient) -> None:
    setup.engine.scripts["endless"] = endless
    result = run(engine, "endless")
    next(result)
    thread, outcome = in_thread(lambda: next(result))
    wait_until(lambda: result._state is State.ACTIVE)

    result.close()

    assert finished(thread)
    assert [type(one) for one in outcome] == [QueryCancelledError]
    setup.wait_until_idle()


def test_close_ends_a_statement_whose_next_chunk_is_under_way(
    setup: Setup, engine: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_result, "STOP_S", LONG_S)
    has_read = threading.Event()

    def in_the_middle(peer: Peer) -> None:
        peer.send(HEADER, data(b"first"))
        peer.wait_for_stop()
        peer.send(data(b"second"))
        assert has_read.wait(LONG_S)
        peer.send(error("query_cancelled"))

    setup.engine.scripts["SELECT 2"] = in_the_middle
    result = run(engine, "SELECT 2")
    assert next(result) == b"first"
    reader, outcome = in_thread(lambda: next(result))
    wait_until(lambda: result._state is State.ACTIVE, within_s=LONG_S)

    result.close()  # and nobody asks for another chunk

    assert finished(reader)
    assert isinstance(outcome[0], QueryCancelledError)
    has_read.set()
    setup.wait_until_idle()
    assert setup.engine.killed == []


def test_a_worker_that_does_not_obey_is_killed(
    setup: Setup, engine: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_result, "STOP_S", 0.05)
    setup.engine.scripts["stubborn"] = stubborn
    token = CancelSource()
    thread, outcome = in_thread(lambda: engine.run(Query(sql="stubborn", query_id="q"), token))
    wait_until(lambda: len(setup.engine.requests) == 1, within_s=LONG_S)

    token.cancel()

    assert finished(thread)
    assert [type(one) for one in outcome] == [QueryCancelledError]
    wait_until(lambda: setup.engine.killed == ["q"], within_s=LONG_S)
    setup.wait_until_idle()


def test_a_worker_that_goes_on_after_close_is_killed(
    setup: Setup, engine: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_result, "STOP_S", 0.05)

    def deaf(peer: Peer) -> None:
        peer.send(HEADER, data(b"x"))
        stubborn(peer)

    setup.engine.scripts["deaf"] = deaf

    run(engine, "deaf", query_id="q").close()

    wait_until(lambda: setup.engine.killed == ["q"], within_s=LONG_S)
    setup.wait_until_idle()


def test_a_process_without_threads_left_has_the_worker_killed(
    setup: Setup, engine: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.engine.scripts["endless"] = endless
    result = run(engine, "endless", query_id="q")

    def no_thread(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr("threading.Thread.start", no_thread)
        result.close()

    wait_until(lambda: setup.engine.killed == ["q"], within_s=LONG_S)
    setup.wait_until_idle()


# Time.


def test_the_time_limit_holds_in_the_queue(make_setup: Callable[..., Setup]) -> None:
    setup = make_setup(workers=1, timeout_s=7.0)
    setup.engine.scripts["endless"] = endless
    engine = setup.client()
    running = run(engine, "endless")

    with pytest.raises(QueryTimeoutError, match="7 s"):
        run(engine, "SELECT 1", timeout_s=0.05)

    assert len(setup.engine.requests) == 1
    running.close()
    setup.wait_until_idle()


def test_a_worker_that_ends_after_the_limit_ran_out_of_time(setup: Setup, engine: EngineClient) -> None:
    def alarmed(peer: Peer) -> None:
        limits.append(peer.request["timeout_s"])
        time.sleep(peer.request["timeout_s"] + 0.05)

    limits: list[float] = []
    setup.engine.scripts["alarmed"] = alarmed

    with pytest.raises(QueryTimeoutError, match="30 s"):
        run(engine, "alarmed", timeout_s=0.1)

    assert 0 < limits[0] <= 0.1


def test_a_worker_that_answers_nothing_long_after_the_limit_is_killed(
    setup: Setup, engine: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_result, "CLIENT_KILL_S", 0.1)
    setup.engine.scripts["stubborn"] = stubborn

    with pytest.raises(QueryTimeoutError):
        run(engine, "stubborn", query_id="q", timeout_s=0.05)

    wait_until(lambda: setup.engine.killed == ["q"], within_s=LONG_S)
    setup.wait_until_idle()


def test_a_worker_that_does_not_take_the_statement_is_killed_too(
    setup: Setup, engine: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_result, "CLIENT_KILL_S", 0.1)

    def idle(_: ScriptedEngine, connection: socket.socket) -> None:
        with connection:
            threading.Event().wait(5)

    setup.engine._serve = idle.__get__(setup.engine)  # type: ignore[method-assign]

    with pytest.raises(QueryTimeoutError):
        run(engine, "SELECT '" + "x" * 3_000_000 + "'", query_id="q", timeout_s=0.05)

    wait_until(lambda: setup.engine.killed == ["q"], within_s=LONG_S)


def test_a_full_queue_and_a_long_wait_are_busy(make_setup: Callable[..., Setup]) -> None:
    setup = make_setup(workers=1, max_queued=1, queue_timeout_s=0.2)
    setup.engine.scripts["endless"] = endless
    engine = setup.client()
    running = run(engine, "endless")
    started = [in_thread(lambda: run(engine, "SELECT 1")) for _ in range(2)]

    for thread, outcome in started:
        assert finished(thread)
        assert [type(one) for one in outcome] == [EngineBusyError]
        assert vars(outcome[0])["retry_after_s"] == 1
    assert len(setup.engine.requests) == 1
    running.close()
    setup.wait_until_idle()


# Exceptions of others.


def test_what_is_thrown_into_a_waiting_statement_gives_all_back(
    setup: Setup, engine: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Exit(BaseException):
        pass

    def throw(*_: object) -> None:
        raise Exit

    for owner, name in (
        (ClientResult, "_wait_for_slot"),
        (client_result, "connect"),
        (Exchange, "send"),
        (Exchange, "receive"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, throw)
            with pytest.raises(Exit):
                run(engine, "SELECT 1")
        setup.wait_until_idle()

    assert list(run(engine, "SELECT 1")) == [b'[{"a":1}]']
    assert engine._pool._statements == {}


def test_statements_with_the_same_id_do_not_meet(setup: Setup, engine: EngineClient) -> None:
    setup.engine.scripts["endless"] = endless
    first, second = (run(engine, "endless", query_id="same") for _ in range(2))

    assert first.query_id == "same"
    assert second.query_id not in ("", "same")
    first.close()
    second.close()
    setup.wait_until_idle()


def test_who_never_entered_takes_no_place_of_another_with_the_same_id(setup: Setup, engine: EngineClient) -> None:
    setup.engine.scripts["endless"] = endless
    first = run(engine, "endless", query_id="same")
    cancelled = CancelSource()
    cancelled.cancel()

    with pytest.raises(QueryCancelledError):
        engine.run(Query(sql="SELECT 1", query_id="same"), cancelled)

    assert [one.query_id for one in engine.active("")] == ["same"]
    assert engine.cancel("same", ""), "it is still told what the broker says"
    with pytest.raises(QueryCancelledError):
        list(first)
    setup.wait_until_idle()


# What runs, for everybody.


def test_any_process_lists_and_cancels_the_statements_of_its_key(setup: Setup) -> None:
    one, other = setup.client(), setup.client()
    setup.engine.scripts["wait"] = until_stopped
    thread, outcome = in_thread(lambda: run(one, "wait", query_id="q", fingerprint="k"))
    wait_until(lambda: len(other.active("k")) == 1, within_s=LONG_S)

    (active,) = other.active("k")
    assert (active.query_id, active.sql, active.state) == ("q", "wait", "running")
    assert active.started.endswith("Z")
    assert other.active("x") == ()
    assert not other.cancel("q", "x")
    assert not other.cancel("p", "k")
    assert thread.is_alive()
    assert other.cancel("q", "k")

    assert finished(thread)
    assert [type(each) for each in outcome] == [QueryCancelledError]
    setup.wait_until_idle()


@pytest.mark.parametrize(
    ("character", "listed"),
    [
        pytest.param("x", 1000, id="ASCII"),
        pytest.param("\N{GRINNING FACE}", 1000, id="outside the first plane"),
        pytest.param("\x01", 341, id="control characters"),
        pytest.param("\ud800", 341, id="no characters"),
    ],
)
def test_what_is_listed_of_a_statement_is_short(
    setup: Setup, engine: EngineClient, character: str, listed: int
) -> None:
    sql = character * 2000
    setup.engine.scripts[sql] = endless

    running = run(engine, sql, fingerprint="k")

    (active,) = engine.active("k")
    assert active.sql == character * listed
    running.close()


def test_the_status_is_what_the_engine_says(setup: Setup, engine: EngineClient) -> None:
    assert engine.is_alive()
    assert engine.status() == EngineStatus(workers_alive=2, workers_killed=3)

    setup.engine.alive = 0
    wait_until(lambda: not engine.is_alive(), within_s=LONG_S)
    assert engine.status() == EngineStatus(workers_alive=0, workers_killed=3)


def test_a_silent_engine_is_a_dead_one(setup: Setup, engine: EngineClient, monkeypatch: pytest.MonkeyPatch) -> None:
    setup.engine.scripts["endless"] = endless
    held = [run(engine, "endless") for _ in range(2)]
    setup.engine.reports = False
    monkeypatch.setattr(broker_client, "SILENCE_S", 0.1)

    wait_until(lambda: not engine.is_alive(), within_s=LONG_S)

    assert engine.status() == EngineStatus(workers_alive=0, workers_killed=3)
    with pytest.raises(EngineUnavailableError):
        run(engine, "SELECT 1")
    for result in held:
        result.close()


# Engines that stop, and come again.


def test_a_draining_engine_refuses_new_statements(setup: Setup, engine: EngineClient) -> None:
    setup.engine.scripts["endless"] = endless
    running = run(engine, "endless")
    next(running)

    setup.engine.call(setup.engine.broker.drain)

    wait_until(lambda: not engine.is_alive(), within_s=LONG_S)
    with pytest.raises(EngineUnavailableError, match="stopping"):
        run(engine, "SELECT 1")
    setup.engine.call(setup.engine.broker.end_statements)
    with pytest.raises(EngineUnavailableError, match="stopping"):
        next(running)
    setup.wait_until_idle()


def test_without_an_engine_a_statement_fails_soon(make_setup: Callable[..., Setup]) -> None:
    setup = make_setup()
    setup.engine.close()
    engine = EngineClient(setup.config)
    setup.clients.append(engine)

    for _ in range(2):
        with pytest.raises(EngineUnavailableError):
            run(engine, "SELECT 1")

    with pytest.raises(EngineUnavailableError):
        engine.active("k")
    assert not engine.is_alive()
    assert engine.status() == EngineStatus(workers_alive=0, workers_killed=0, is_starting=True)


def test_an_engine_starts_until_it_first_has_a_worker(make_setup: Callable[..., Setup]) -> None:
    setup = make_setup()
    setup.engine.alive = 0
    setup.engine.call(lambda: setup.engine.broker.report(alive=0, killed=3))
    engine = EngineClient(setup.config)
    setup.clients.append(engine)
    wait_until(lambda: engine.status().workers_killed == 3, within_s=LONG_S)
    assert engine.status().is_starting

    setup.engine.alive = 1
    wait_until(engine.is_alive, within_s=LONG_S)
    assert not engine.status().is_starting
    setup.engine.close()

    wait_until(lambda: not engine.is_alive(), within_s=LONG_S)
    assert engine.status() == EngineStatus(workers_alive=0, workers_killed=3)


def test_without_a_worker_socket_a_statement_fails_and_gives_its_place_back(setup: Setup, engine: EngineClient) -> None:
    (setup.config.state_dir / "engine.sock").unlink()

    for _ in range(3):
        with pytest.raises(EngineUnavailableError):
            run(engine, "SELECT 1")

    setup.wait_until_idle()


def test_without_descriptors_a_statement_fails_and_the_client_goes_on(
    setup: Setup, engine: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is of the whole process: it is hit in the place where it would be."""
    refused = threading.Event()

    def no_descriptor(*_: object) -> None:
        refused.set()
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr("socket.socket", no_descriptor)
        with pytest.raises(EngineUnavailableError):
            run(engine, "SELECT 1")
        refused.clear()
        connection = engine._pool.link._connection
        assert connection is not None
        connection.hang_up()
        assert refused.wait(LONG_S)

    wait_until(engine.is_alive, within_s=LONG_S)
    assert list(run(engine, "SELECT 1")) == [b'[{"a":1}]']
    setup.wait_until_idle()


@pytest.mark.parametrize(
    "data", [pytest.param(b"HTTP/1.1 400", id="no frame"), pytest.param(encode_json(Kind.MESSAGE, {}), id="no message")]
)
def test_a_broker_that_talks_nonsense_is_left_for_the_next(setup: Setup, engine: EngineClient, data: bytes) -> None:
    def talk() -> None:
        for other in setup.engine.broker._clients:
            other.out += data
            setup.engine.broker._unsent.add(other)

    before = engine._pool.link._connection

    setup.engine.call(talk)

    wait_until(lambda: engine._pool.link._connection not in (before, None) and engine.is_alive(), within_s=LONG_S)
    assert list(run(engine, "SELECT 1")) == [b'[{"a":1}]']


def test_a_client_lives_through_a_restart_of_the_engine(setup: Setup, engine: EngineClient) -> None:
    finish = threading.Event()

    def finishes(peer: Peer) -> None:
        peer.send(HEADER, data(b"a"))
        finish.wait(LONG_S)
        peer.send(data(b"b"), END)

    setup.engine.scripts["finishes"] = finishes
    setup.engine.scripts["endless"] = endless
    goes_on, held = run(engine, "finishes"), run(engine, "endless")
    thread, outcome = in_thread(lambda: run(engine, "SELECT 1"))
    wait_until(lambda: len(engine.active("")) == 3, within_s=LONG_S)

    setup.restart()

    assert finished(thread)
    assert [type(one) for one in outcome] == [EngineUnavailableError]
    assert list(run(engine, "SELECT 1")) == [b'[{"a":1}]'], "the next statement waits for the new engine"
    finish.set()
    assert list(goes_on) == [b"a", b"b"], "a statement whose worker answers is not lost"
    held.close()
    wait_until(engine.is_alive, within_s=LONG_S)
    setup.wait_until_idle()


def test_a_question_to_an_engine_that_goes_is_answered(setup: Setup, engine: EngineClient) -> None:
    with setup.stalled():
        thread, outcome = in_thread(lambda: engine.active("k"))
        wait_until(lambda: bool(engine._pool.link._questions), within_s=LONG_S)

        connection = engine._pool.link._connection
        assert connection is not None
        connection.hang_up()

        assert finished(thread)
    assert [type(one) for one in outcome] == [EngineUnavailableError]


def test_a_broker_that_pauses_gets_everything_when_it_goes_on(
    make_setup: Callable[..., Setup], monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = make_setup(workers=1, max_queued=10_000)
    monkeypatch.setattr(broker_client, "SILENCE_S", LONG_S)
    setup.engine.scripts["SELECT 1" + " " * 992] = one_row
    engine = setup.client()
    with setup.stalled():
        threads = [in_thread(lambda: run(engine, "SELECT 1" + " " * 992)) for _ in range(400)]
        wait_until(lambda: len(engine._pool._statements) == 400 and is_full(engine), within_s=LONG_S)

    for thread, outcome in threads:
        assert finished(thread)
        assert [type(one) for one in outcome] == [ClientResult]
    setup.wait_until_idle()


def is_full(engine: EngineClient) -> bool:
    """Whether more was said to the broker than the kernel takes."""
    connection = engine._pool.link._connection
    return connection is not None and bool(connection._unsent)


def test_a_broker_that_stops_reading_costs_no_statement_its_time_limit(
    make_setup: Callable[..., Setup], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither those that wait for it nor those that are read, whose end is to be told to it, wait for ever."""
    monkeypatch.setattr(client_result, "CLIENT_KILL_S", 0.1)
    setup = make_setup(timeout_s=1.0)
    setup.engine.scripts["stubborn"] = stubborn
    setup.engine.scripts["endless"] = endless
    engine = setup.client()
    reading = in_thread(lambda: run(engine, "stubborn"))
    slowly_read = run(engine, "endless")
    wait_until(lambda: len(setup.engine.requests) == 2, within_s=LONG_S)

    with setup.stalled():
        filled = [in_thread(lambda: run(engine, "x" * 1000)) for _ in range(400)]
        for thread, _ in [reading, *filled]:
            assert finished(thread)
        with pytest.raises(QueryTimeoutError):
            list(slowly_read)

    assert [type(one) for one in reading[1]] == [QueryTimeoutError]
    assert {type(one) for _, outcome in filled for one in outcome} <= {QueryTimeoutError, EngineUnavailableError}
    wait_until(engine.is_alive, within_s=LONG_S)
    assert list(run(engine, "SELECT 1")) == [b'[{"a":1}]']
    setup.wait_until_idle()


def test_a_broker_that_speaks_but_does_not_read_is_given_up(
    setup: Setup, engine: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = engine._pool.link._connection
    assert before is not None
    monkeypatch.setattr(broker_client, "_ANSWER_TIMEOUT_S", 0.0)

    def ask_too_much() -> bool:
        with pytest.raises(EngineUnavailableError):
            engine.active("k" * 10_000)
        return is_full(engine)

    with setup.stalled():
        wait_until(ask_too_much, within_s=LONG_S)
        monkeypatch.setattr(broker_client, "SILENCE_S", 0.5)
        monkeypatch.setattr(broker_client.BrokerLink, "is_heard", True)
        engine._pool.link._status_at = time.monotonic() + LONG_S

        wait_until(lambda: engine._pool.link._connection is not before, within_s=LONG_S)

    monkeypatch.undo()
    wait_until(engine.is_alive, within_s=LONG_S)
    assert list(run(engine, "SELECT 1")) == [b'[{"a":1}]']


def test_a_silent_broker_that_reads_is_given_up_too(
    setup: Setup, engine: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = engine._pool.link._connection
    setup.engine.reports = False
    monkeypatch.setattr(broker_client, "SILENCE_S", 0.2)

    wait_until(lambda: engine._pool.link._connection is not before, within_s=LONG_S)


def test_a_fault_of_our_own_ends_no_thread_of_the_link(
    setup: Setup, engine: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_result, "CLIENT_KILL_S", 0.1)
    faults = []

    def fail(*_: object) -> None:
        faults.append(1)
        raise ZeroDivisionError

    for owner, name in (
        (broker_client.BrokerLink, "_take"),
        (ClientResult, "check_time"),
        (broker_client.BrokerLink, "_tick"),
    ):
        faults.clear()
        setup.engine.scripts["endless"] = endless
        held = run(engine, "endless", timeout_s=0.1)
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, fail)
            wait_until(lambda: len(faults) > 1, within_s=LONG_S)
        with pytest.raises(QueryTimeoutError):
            list(held)
        wait_until(engine.is_alive, within_s=LONG_S)

    setup.wait_until_idle()


def test_close_ends_everything(setup: Setup, engine: EngineClient) -> None:
    setup.engine.scripts["endless"] = endless
    running = run(engine, "endless")
    next(running)
    thread, outcome = in_thread(lambda: next(running))
    wait_until(lambda: running._state is State.ACTIVE)

    engine.close()
    engine.close()

    assert finished(thread)
    assert [type(one) for one in outcome] == [EngineUnavailableError]
    with pytest.raises(EngineUnavailableError, match="stopping"):
        run(engine, "SELECT 1")
    assert not engine.is_alive()
    setup.wait_until_idle()

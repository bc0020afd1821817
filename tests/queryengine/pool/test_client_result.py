"""Statements from their arrival to their end, against a scripted engine."""

import gc
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from queryengine.cancellation import CancelSource
from queryengine.engine import Query, QueryEngine
from queryengine.errors import EngineBusyError, QueryCancelledError, QueryError, QueryTimeoutError
from queryengine.pool import arbiter, client_result, statement_queue, worker
from queryengine.pool.client import EngineClient
from queryengine.pool.client_result import ClientResult, State
from queryengine.pool.exchange import Exchange
from queryengine.pool.frames import Kind, encode
from tests.queryengine.asking import begin, error_of
from tests.queryengine.publishing import wait_until
from tests.queryengine.scripted_engine import (
    END,
    HEADER,
    LONG_S,
    MakeTier,
    Peer,
    ScriptedEngine,
    Tier,
    data,
    error,
    one_row,
    run,
    stubborn,
)


def test_a_small_answer_is_complete_when_run_returns(tier: Tier, engine: EngineClient) -> None:
    protocol: QueryEngine = engine
    query = Query(sql="SELECT 1", encoding="csv", parameters=[1, "x"], query_id="q1", fingerprint="abc")

    result = protocol.run(query)

    tier.wait_until_idle()
    assert list(result) == [b'[{"a":1}]']
    assert list(result) == []
    result.close()
    (request,) = tier.engine.requests
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


@pytest.mark.parametrize(
    "figures",
    [{"rows": "7"}, {"bytes": -1}, {"run_ms": 1e300}, {"rows": 1.5}, {"statement": 7}, {"statement": '","x"]\n["'}],
)
def test_an_answer_with_figures_that_are_none_is_refused(
    tier: Tier, engine: EngineClient, figures: dict[str, Any]
) -> None:
    tier.engine.scripts["any"] = lambda peer: peer.send(HEADER, data(b"x"), encode(Kind.END, {"timings": figures}))

    with pytest.raises(QueryError, match="cannot be read"):
        run(engine, "any")


def test_a_slow_reader_holds_back_a_long_answer(tier: Tier, engine: EngineClient) -> None:
    sent: list[int] = []

    def long(peer: Peer) -> None:
        peer.send(HEADER)
        for number in range(64):
            peer.send(data(bytes(2**20)))
            sent.append(number)
        peer.send(END)

    tier.engine.scripts["long"] = long

    result = run(engine, "long")
    time.sleep(0.2)  # in which a sender that is not held back sends all
    assert len(sent) < 5

    assert sum(len(chunk) for chunk in result) == 64 * 2**20


def test_a_statement_can_be_cancelled_before_its_worker_reads_it(tier: Tier, engine: EngineClient) -> None:
    def closing(peer: Peer) -> None:
        """Answer like a worker whose connection ends before a request has come."""
        peer.wait_for_stop()
        peer.send(encode(Kind.CLOSING, {}))

    tier.engine.scripts["unread"] = closing
    cancel = CancelSource()
    unread = begin(lambda: engine.run(Query(sql="unread"), cancel))
    wait_until(lambda: [request["sql"] for request in tier.engine.requests] == ["unread"])

    cancel.cancel()

    assert error_of(unread) is QueryCancelledError


def test_a_token_cancels_before_the_start_in_the_queue_and_while_running(tier: Tier, engine: EngineClient) -> None:
    before = CancelSource()
    before.cancel()
    with pytest.raises(QueryCancelledError):
        engine.run(Query(sql="wait"), before)
    assert tier.engine.requests == []

    runs = [CancelSource() for _ in range(3)]
    started = []
    for number, token in enumerate(runs):
        started.append(begin(partial(engine.run, Query(sql="wait"), token)))
        wait_until(lambda number=number: len(engine.active("")) == number + 1)  # type: ignore[misc]
    assert [one.state for one in engine.active("")] == ["running", "running", "queued"]
    # A statement with a slot still has to reach its worker, and must not be cancelled before that.
    wait_until(lambda: len(tier.engine.requests) == 2)
    for token in reversed(runs):
        token.cancel()

    assert [error_of(one) for one in started] == [QueryCancelledError] * 3
    assert len(tier.engine.requests) == 2
    assert all(not token._callbacks for token in runs)


def test_close_gives_the_slot_back_once_the_worker_has_stopped(tier: Tier, engine: EngineClient) -> None:
    let_go = threading.Event()

    def slow_to_end(peer: Peer) -> None:
        peer.send(HEADER, data(b"first"))
        peer.wait_for_stop()
        let_go.wait(LONG_S)

    tier.engine.scripts["slow"] = slow_to_end
    result = run(engine, "slow")

    result.close()
    result.close()

    assert not tier.engine.broker.is_idle
    let_go.set()
    tier.wait_until_idle()
    assert tier.engine.killed == []
    with pytest.raises(QueryCancelledError):
        next(result)


def test_close_ends_a_statement_that_has_just_received_a_chunk(
    tier: Tier, engine: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_result, "STOP_S", LONG_S)
    has_read = threading.Event()

    def in_the_middle(peer: Peer) -> None:
        peer.send(HEADER, data(b"first"))
        peer.wait_for_stop()
        peer.send(data(b"second"))
        assert has_read.wait(LONG_S)
        peer.send(error("query_cancelled"))

    tier.engine.scripts["SELECT 2"] = in_the_middle
    result = run(engine, "SELECT 2")
    assert next(result) == b"first"
    reading = begin(lambda: next(result))
    wait_until(lambda: result._state is State.ACTIVE)

    result.close()  # and no thread asks for another chunk

    assert error_of(reading) is QueryCancelledError
    has_read.set()
    tier.wait_until_idle()
    assert tier.engine.killed == []


def test_a_running_statement_does_not_hold_its_parameters(tier: Tier, engine: EngineClient) -> None:
    class Values(list[int]):
        """A list that can be referred to weakly."""

    values = Values([1])
    held = weakref.ref(values)
    result = engine.run(Query(sql="endless", parameters=values, fingerprint="abc"))

    del values
    gc.collect()

    assert held() is None
    assert [one.sql for one in engine.active("abc")] == ["endless"]
    result.close()


@pytest.mark.parametrize("is_overdue", [False, True])
def test_a_statement_that_is_stopped_during_its_first_chunk_gives_its_slot_back(
    tier: Tier, engine: EngineClient, monkeypatch: pytest.MonkeyPatch, *, is_overdue: bool
) -> None:
    receive = ClientResult._receive

    def receive_and_stop(result: ClientResult) -> None:
        receive(result)
        if is_overdue:
            result.check_time(time.monotonic() + 2 * LONG_S)  # as after a pause of the whole process
        else:
            result.cancel()

    monkeypatch.setattr(ClientResult, "_receive", receive_and_stop)

    with pytest.raises(QueryTimeoutError if is_overdue else QueryCancelledError):
        run(engine, "endless", query_id="q")

    tier.wait_until_idle()
    assert engine._pool._statements == {}
    assert tier.engine.killed == (["q"] if is_overdue else [])


def deaf(peer: Peer) -> None:
    peer.send(HEADER, data(b"x"))
    stubborn(peer)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("how", ["token", "close", "time limit"])
def test_a_worker_that_does_not_stop_is_killed(tier: Tier, engine: EngineClient, how: str) -> None:
    tier.engine.scripts["deaf"] = deaf
    token = CancelSource()
    limit_s = 1.0 if how == "time limit" else None
    query = Query(sql="deaf" if how == "close" else "stubborn", query_id="q", timeout_s=limit_s)
    running = begin(lambda: engine.run(query, token))
    wait_until(lambda: len(tier.engine.requests) == 1)

    if how == "token":
        token.cancel()

    if how == "close":
        running.result(LONG_S).close()
    else:
        assert error_of(running) is {"token": QueryCancelledError, "time limit": QueryTimeoutError}[how]
    wait_until(lambda: tier.engine.killed == ["q"])


@pytest.mark.usefixtures("impatient")
def test_a_worker_that_does_not_read_the_statement_is_killed(tier: Tier, engine: EngineClient) -> None:
    def idle(_: ScriptedEngine, connection: socket.socket) -> None:
        with connection:
            threading.Event().wait(10)

    tier.engine._serve = idle.__get__(tier.engine)  # type: ignore[method-assign]

    with pytest.raises(QueryTimeoutError):
        run(engine, "SELECT '" + "x" * 3_000_000 + "'", query_id="q", timeout_s=2)  # enough to reach the worker

    wait_until(lambda: tier.engine.killed == ["q"])


def test_a_process_without_threads_left_has_the_worker_killed(
    tier: Tier, engine: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(engine, "endless", query_id="q")

    def no_thread(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr("threading.Thread.start", no_thread)
        result.close()

    wait_until(lambda: tier.engine.killed == ["q"])


def test_a_worker_that_ends_after_the_limit_is_a_timeout(tier: Tier, engine: EngineClient) -> None:
    def alarmed(peer: Peer) -> None:
        limits.append(peer.request["timeout_s"])
        time.sleep(peer.request["timeout_s"] + 0.05)

    limits: list[float] = []
    tier.engine.scripts["alarmed"] = alarmed

    with pytest.raises(QueryTimeoutError, match="30 s"):
        run(engine, "alarmed", timeout_s=1.0)

    assert 0 < limits[0] <= 1.0


def test_the_time_limit_a_full_queue_and_a_long_wait_end_a_wait(make_tier: MakeTier) -> None:
    tier = make_tier(workers=1, max_queued=1, queue_timeout_s=1.0, timeout_s=7.0)
    engine = tier.client()
    running = run(engine, "endless")

    with pytest.raises(QueryTimeoutError, match="7 s"):
        run(engine, "SELECT 1", timeout_s=0.05)
    waiting = [begin(lambda: run(engine, "SELECT 1")) for _ in range(2)]

    for one in waiting:
        assert error_of(one) is EngineBusyError
        assert vars(one.exception())["retry_after_s"] == 1
    assert len(tier.engine.requests) == 1
    running.close()
    tier.wait_until_idle()


@pytest.fixture
def flood(
    make_tier: MakeTier, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Tier, EngineClient, Future[ClientResult]]]:
    """A key that holds both slots; its statement "newer", which is not over before it is stopped."""
    monkeypatch.setattr(statement_queue, "RECLAIM_S", 0.0)
    tier = make_tier(workers=2, queue_timeout_s=0.5)

    def at_first_until_stopped(peer: Peer) -> None:
        tier.engine.scripts["newer"] = one_row
        peer.wait_for_stop()

    tier.engine.scripts["newer"] = at_first_until_stopped
    engine = tier.client()
    older = run(engine, "endless", query_id="older", fingerprint="flood")
    newer = begin(lambda: run(engine, "newer", query_id="newer", fingerprint="flood"))
    wait_until(lambda: len(tier.engine.requests) == 2)
    yield tier, engine, newer
    older.close()
    tier.wait_until_idle()


def test_a_statement_that_loses_its_slot_to_another_key_is_repeated(
    flood: tuple[Tier, EngineClient, Future[ClientResult]],
) -> None:
    tier, engine, newer = flood

    assert list(run(tier.client(), "SELECT 1", fingerprint="other")) == [b'[{"a":1}]']

    with pytest.raises(EngineBusyError):
        run(engine, "SELECT 1", fingerprint="flood")
    states = [(one.query_id, one.state) for one in engine.active("flood")]
    assert states == [("older", "running"), ("newer", "queued")], "it waits longer than others"
    assert engine.cancel("older", "flood")
    result = newer.result(LONG_S)
    assert list(result) == [b'[{"a":1}]']
    assert result.timings.queued_ms >= 500
    first, second = (one["timeout_s"] for one in tier.engine.requests if one["sql"] == "newer")
    assert second <= first - 0.5, "the time limit holds for both together"


def test_a_statement_that_is_cancelled_while_it_waits_to_be_repeated_ends(
    flood: tuple[Tier, EngineClient, Future[ClientResult]],
) -> None:
    tier, engine, newer = flood
    other = run(tier.client(), "endless", fingerprint="other")
    wait_until(lambda: "queued" in [one.state for one in engine.active("flood")])

    assert engine.cancel("newer", "flood")

    assert error_of(newer) is QueryCancelledError
    other.close()


def test_an_exception_in_any_step_gives_everything_back(
    tier: Tier, engine: EngineClient, monkeypatch: pytest.MonkeyPatch
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
        tier.wait_until_idle()

    assert list(run(engine, "SELECT 1")) == [b'[{"a":1}]']
    assert engine._pool._statements == {}


def test_a_duplicate_query_id_is_replaced(tier: Tier, engine: EngineClient) -> None:
    first, second = (run(engine, "endless", query_id="same") for _ in range(2))
    assert first.query_id == "same"
    assert second.query_id not in ("", "same")
    second.close()
    cancelled = CancelSource()
    cancelled.cancel()

    with pytest.raises(QueryCancelledError):
        engine.run(Query(sql="SELECT 1", query_id="same"), cancelled)

    wait_until(lambda: [one.query_id for one in engine.active("")] == ["same"])
    assert engine.cancel("same", ""), "the first one still receives messages of the broker"
    with pytest.raises(QueryCancelledError):
        list(first)


def test_each_line_of_defence_acts_after_the_one_before() -> None:
    """In the order that the docstring of `queryengine.pool` draws."""
    assert worker.GRACE_S < client_result.STOP_S
    assert worker.GRACE_S < client_result.CLIENT_KILL_S < worker.GRACE_S + arbiter.OVERDUE_S

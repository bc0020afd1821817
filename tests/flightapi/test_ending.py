"""How calls and their statements end: cancelled, abandoned, timed out, or stopped with the server."""

import threading
import time
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import grpc
import pytest

from flightapi.calls import TICK_S, IdleClock
from flightapi.protocol import messages
from flightapi.protocol.messages import PATHS
from queryengine.pool.inprocess import InProcessEngine
from runtimeconf.model import RuntimeConfig
from tests.flightapi.endpoint import (
    FINGERPRINTS,
    Endpoint,
    Outcomes,
    Silent,
    bearer,
    descriptor,
    serving,
    table_of,
    ticket,
    ticket_of,
)
from tests.queryengine.publishing import ENDLESS, ENDLESS_AFTER_ROWS, wait_until
from tests.system.harness import K1, K2


def begin(endpoint: Endpoint, engine: InProcessEngine, request: bytes, method: str = "DoGet") -> Any:
    """Begin a call, and wait until its statement runs."""
    active = len(engine.active(FINGERPRINTS[0]))
    call = endpoint.begin(PATHS[method], [request], bearer(K1))
    wait_until(lambda: len(engine.active(FINGERPRINTS[0])) > active)
    return call


@pytest.mark.parametrize("sql", [ENDLESS, ENDLESS_AFTER_ROWS], ids=["before its rows", "after rows"])
def test_a_disconnect_ends_the_statement(
    endpoint: Endpoint, engine: InProcessEngine, sql: str, outcomes: Outcomes
) -> None:
    call = begin(endpoint, engine, ticket(sql.encode()))

    call.cancel()

    wait_until(lambda: not engine.active(FINGERPRINTS[0]))
    wait_until(lambda: outcomes() == ["client_closed_request"])


def test_a_deadline_ends_the_statement(endpoint: Endpoint, engine: InProcessEngine, outcomes: Outcomes) -> None:
    call = endpoint.begin(PATHS["DoGet"], [ticket(ENDLESS.encode())], bearer(K1), timeout_s=2)

    assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until(lambda: not engine.active(FINGERPRINTS[0]))
    wait_until(lambda: outcomes() == ["client_closed_request"])


def test_a_disconnect_ends_a_description(endpoint: Endpoint, engine: InProcessEngine) -> None:
    pivot = "PIVOT (SELECT a FROM (SELECT range AS a FROM range(100000000000)) WHERE a < 1) ON a USING count(*)"
    command = descriptor(messages.CommandStatementQuery(query=pivot))
    call = begin(endpoint, engine, command, "GetFlightInfo")

    call.cancel()

    wait_until(lambda: not engine.active(FINGERPRINTS[0]))


def test_every_statement_of_a_flight_info_is_cancelled(
    endpoint: Endpoint, engine: InProcessEngine, outcomes: Outcomes
) -> None:
    info = endpoint.info(messages.CommandStatementQuery(query=ENDLESS))
    calls = [begin(endpoint, engine, ticket_of(info)) for _ in range(2)]
    listed = {statement.query_id for statement in engine.active(FINGERPRINTS[0])}

    assert endpoint.cancel(info) == 1

    told = set()
    for call in calls:
        with pytest.raises(grpc.RpcError) as ended:
            list(call)
        assert (ended.value.code(), ended.value.details()) == (grpc.StatusCode.CANCELLED, "The query was cancelled.")
        told.add(dict(call.trailing_metadata())["x-query-id"])
    assert told == listed
    assert len(told) == 2
    assert outcomes() == ["query_cancelled"] * 2
    assert endpoint.fails("DoGet", ticket_of(info)).status == "CANCELLED"


def test_another_key_cancels_nothing(endpoint: Endpoint, engine: InProcessEngine) -> None:
    info = endpoint.info(messages.CommandStatementQuery(query=ENDLESS))
    call = begin(endpoint, engine, ticket_of(info))

    endpoint.cancel(info, bearer(K2))

    assert engine.active(FINGERPRINTS[0])
    call.cancel()


def test_remembered_cancellations_are_bounded(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flightapi.statements.MAX_CANCELLED", 1)
    infos = [endpoint.info(messages.CommandStatementQuery(query="SELECT 1 AS a")) for _ in range(2)]
    for info in infos:
        endpoint.cancel(info)

    assert endpoint.table(infos[0]).to_pylist() == [{"a": 1}]
    assert endpoint.fails("DoGet", ticket_of(infos[1])).status == "CANCELLED"


def test_a_ticket_of_text_cannot_be_cancelled(endpoint: Endpoint) -> None:
    info = messages.FlightInfo()
    info.endpoint.add().ticket.ticket = b"SELECT 1"

    assert endpoint.cancel(info) == 3


def test_a_client_that_sends_nothing_is_ended(
    config: RuntimeConfig, engine: InProcessEngine, monkeypatch: pytest.MonkeyPatch, silent: Silent
) -> None:
    monkeypatch.setattr("flightapi.service.IDLE_S", 0.1)
    monkeypatch.setattr("flightapi.service.HANDSHAKE_IDLE_S", 0.1)
    with serving(config, engine) as endpoint:
        calls = [
            silent(endpoint, name, () if name == "Handshake" else bearer(K1))
            for name in ("DoPut", "DoGet", "GetFlightInfo", "Handshake")
        ]
        for call in calls:
            with pytest.raises(grpc.RpcError) as ended:
                list(call)
            assert ended.value.code() == grpc.StatusCode.CANCELLED


def test_a_client_that_reads_nothing_is_ended(
    config: RuntimeConfig, engine: InProcessEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flightapi.service.SEND_GRACE_S", 2.0 - config.query.timeout_s)
    with serving(config, engine) as running:
        call = running.begin(PATHS["DoGet"], [ticket(b"SELECT range FROM range(10000000000)")], bearer(K1))
        next(call)
        wait_until(lambda: bool(engine.active(FINGERPRINTS[0])))

        wait_until(lambda: not engine.active(FINGERPRINTS[0]))

        with pytest.raises(grpc.RpcError) as ended:
            list(call)
        assert ended.value.code() == grpc.StatusCode.CANCELLED


def test_a_stop_does_not_wait_for_silent_clients(
    config: RuntimeConfig, engine: InProcessEngine, silent: Silent
) -> None:
    with serving(config, engine) as endpoint:
        silent(endpoint, "Handshake")
        silent(endpoint, "DoPut", bearer(K1))
        running = endpoint.begin(PATHS["DoGet"], [ticket(b"SELECT range FROM range(10000000)")], bearer(K1))
        first = next(running)
        endpoint.server.begin_stop(60)

        assert not endpoint.server.has_stopped(2.5)  # the running call is waited for
        assert table_of([first, *running]).num_rows == 10_000_000
        assert endpoint.server.has_stopped(10)


def test_a_block_that_was_left_meanwhile_is_not_ended() -> None:
    clock = IdleClock()
    ended: list[int] = []
    waits: list[AbstractContextManager[None]] = []
    looked_on = threading.Event()

    def end(number: int) -> None:
        ended.append(number)
        for wait in waits:
            wait.__exit__(None, None, None)

    try:
        # All are due before the first tick.
        waits += [clock.limit(0.1, partial(end, number)) for number in range(8)]
        for wait in waits:
            wait.__enter__()
        clock.each_tick(lambda: looked_on.set() if ended else None)
        assert looked_on.wait(30)
    finally:
        clock.close()

    assert len(ended) == 1


@pytest.mark.exhaustive
def test_a_server_that_cannot_begin_calls_sends_no_heartbeat(config: RuntimeConfig, engine: InProcessEngine) -> None:
    beats: list[None] = []
    entered, left = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        left.wait()

    with serving(config, engine) as endpoint:
        endpoint.server.each_tick(lambda: beats.append(None))
        wait_until(lambda: len(beats) > 1)
        endpoint.server.before_call(hang)
        call = endpoint.begin(PATHS["DoGet"], [ticket(b"SELECT 1")], bearer(K1))
        try:
            assert entered.wait(60)
            time.sleep(2 * TICK_S)  # A beat that had begun may still come.
            before = len(beats)
            time.sleep(3 * TICK_S)
            assert len(beats) == before
        finally:
            left.set()
        assert table_of(call).num_rows == 1
        wait_until(lambda: len(beats) > before)

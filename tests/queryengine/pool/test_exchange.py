"""Requests to a worker and their answers, against a worker whose frames tests write."""

import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from queryengine import errors
from queryengine.errors import (
    EngineBusyError,
    EngineWorkerDiedError,
    ParameterError,
    QueryCancelledError,
    QueryError,
    QueryTimeoutError,
    SqlError,
)
from queryengine.pool.client import EngineClient
from queryengine.pool.exchange import ERRORS
from queryengine.pool.frames import Kind, encode
from queryengine.pool.messages import Failure
from tests.queryengine.scripted_engine import (
    END,
    HEADER,
    LONG_S,
    Peer,
    ScriptedEngine,
    Tier,
    data,
    error,
    one_row,
    run,
)


def dribble(peer: Peer) -> None:
    for byte in HEADER + b"".join(data(str(number).encode()) for number in range(50)) + END:
        peer.send(bytes([byte]))


@pytest.mark.parametrize(
    ("sql", "script", "answer"),
    [
        pytest.param("pieces", dribble, b"".join(str(number).encode() for number in range(50)), id="in pieces"),
        pytest.param("empty", lambda peer: peer.send(HEADER, END), b"", id="empty"),
        pytest.param("SELECT '" + "x" * 3_000_000 + "'", one_row, b'[{"a":1}]', id="to a large statement"),
    ],
)
def test_an_answer_is_complete(
    tier: Tier, engine: EngineClient, sql: str, script: Callable[[Peer], None], answer: bytes
) -> None:
    tier.engine.scripts[sql] = script

    assert b"".join(run(engine, sql)) == answer
    assert tier.engine.requests[0]["sql"] == sql


_CIRCLE: list[Any] = []
_CIRCLE.append(_CIRCLE)


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        pytest.param([object()], "has a type that the engine does not support", id="no JSON"),
        pytest.param([{(1,): 2}], "has a type that the engine does not support", id="a name that is no JSON"),
        pytest.param([1, 10**5000], r"\$2 contains an integer larger than 128 bits", id="a huge integer"),
        pytest.param({"A": -(10**5000)}, r"\$a contains an integer larger than 128 bits", id="a huge integer by name"),
        pytest.param([_CIRCLE], r"\$1 is nested more than 64", id="no end"),
        pytest.param(["x" * 6000], "The statement and its parameters are too large", id="too long"),
    ],
)
def test_values_that_cannot_be_sent_are_refused(
    tier: Tier, engine: EngineClient, monkeypatch: pytest.MonkeyPatch, parameters: Any, complaint: str
) -> None:
    monkeypatch.setattr("queryengine.pool.frames.MAX_JSON_BYTES", 5000)

    with pytest.raises(ParameterError, match=complaint):
        run(engine, "SELECT 1", parameters=parameters)

    assert tier.engine.requests == []


def _tree(kind: type[QueryError]) -> list[type[QueryError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in _tree(child))]


def test_every_error_can_be_rebuilt() -> None:
    kinds = {kind for kind in _tree(QueryError) if kind.__module__ == errors.__name__}

    failure = Failure(code="any", message="m", arguments={"limit_s": 3, "limit": 3, "retry_after_s": 9})
    made = {type(make(failure)) for make in ERRORS.values()}

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
        pytest.param(b"GET / HTTP/1.1", QueryError("The engine's response cannot be read."), id="no frame"),
        pytest.param(encode(Kind.MESSAGE, {}), QueryError("The engine's response cannot be read."), id="wrong"),
        pytest.param(encode(Kind.CLOSING, {}), QueryError("The engine's response cannot be read."), id="closing"),
        pytest.param(b"", EngineWorkerDiedError(), id="nothing more"),
        pytest.param(b"\x04\0\0", EngineWorkerDiedError(), id="half a frame"),
    ],
)
def test_the_last_frame_decides_the_error(
    tier: Tier, engine: EngineClient, frame: bytes, expected: QueryError, rows_first: bool
) -> None:
    def fail(peer: Peer) -> None:
        if rows_first:
            peer.send(HEADER, data(b"[1,"))
            go_on.wait(LONG_S)
        peer.send(frame)

    go_on = threading.Event()
    tier.engine.scripts["fail"] = fail

    if rows_first:
        result = run(engine, "fail")
        assert next(result) == b"[1,"
        go_on.set()
    with pytest.raises(QueryError) as caught:
        next(result) if rows_first else run(engine, "fail")

    assert type(caught.value) is type(expected)
    assert str(caught.value) == str(expected)
    assert vars(caught.value) | {"timings": None} == vars(expected) | {"timings": None}
    tier.wait_until_idle()
    if rows_first:
        with pytest.raises(QueryCancelledError):
            next(result)
        result.close()


def test_the_data_version_is_known_before_the_end(tier: Tier, engine: EngineClient) -> None:
    def streams(peer: Peer) -> None:
        peer.send(encode(Kind.HEADER, {"data_version": [1, 2, 3]}), data(b"x"))
        peer.wait_for_stop()

    tier.engine.scripts["streams"] = streams

    result = run(engine, "streams")

    assert result.data_version == (1, 2, 3)
    result.close()


def test_data_before_the_header_is_invalid(tier: Tier, engine: EngineClient) -> None:
    tier.engine.scripts["wrong"] = lambda peer: peer.send(data(b"x"), HEADER, END)

    with pytest.raises(QueryError, match="cannot be read"):
        run(engine, "wrong")


def test_a_worker_that_ends_before_it_reads_has_died(tier: Tier, engine: EngineClient) -> None:
    sql = "SELECT '" + "x" * 3_000_000 + "'"

    def reset(_: ScriptedEngine, connection: socket.socket) -> None:
        connection.close()

    tier.engine._serve = reset.__get__(tier.engine)  # type: ignore[method-assign]

    with pytest.raises(EngineWorkerDiedError):
        run(engine, sql)

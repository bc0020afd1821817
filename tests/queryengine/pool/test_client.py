"""The client of the engine and its link to the broker, against a scripted engine."""

import threading
import time

import pytest

from queryengine.engine import EngineStatus, GatedStatement
from queryengine.errors import EngineUnavailableError, QueryError, QueryTimeoutError, SqlError
from queryengine.pool import broker_client
from queryengine.pool.client import EngineClient
from queryengine.pool.client_result import ClientResult, State
from queryengine.pool.frames import Kind, encode
from tests.queryengine.asking import begin, error_of
from tests.queryengine.publishing import wait_until
from tests.queryengine.scripted_engine import (
    END,
    HEADER,
    LONG_S,
    MakeTier,
    Peer,
    Tier,
    data,
    endless,
    error,
    one_row,
    run,
)


def test_admit_returns_the_answer_of_the_gate(tier: Tier, engine: EngineClient) -> None:
    fields = {"sql": "SELECT 1", "kind": "select", "relations": ["t"], "parameters": ["1"]}
    tier.engine.scripts["SELECT 1;"] = lambda peer: peer.send(encode(Kind.END, {"statement": fields}))
    tier.engine.scripts["broken"] = lambda peer: peer.send(encode(Kind.END, {"statement": {}}))
    tier.engine.scripts["bad"] = lambda peer: peer.send(error("sql_error", "There is no such thing."))

    assert engine.admit("SELECT 1;", frozenset({"t", "s"})) == GatedStatement(
        "SELECT 1", "select", frozenset({"t"}), frozenset({"1"})
    )

    request = tier.engine.requests[0]
    assert (request["call"], sorted(request["relations"])) == ("admit", ["s", "t"])
    with pytest.raises(QueryError, match="cannot be read"):
        engine.admit("broken", frozenset())
    with pytest.raises(SqlError, match="no such thing"):
        engine.admit("bad", frozenset())


def test_a_statement_in_admit_is_not_listed(tier: Tier, engine: EngineClient) -> None:
    gating = begin(lambda: engine.admit("wait", frozenset()))
    wait_until(lambda: len(tier.engine.requests) == 1)

    assert engine.active("") == ()
    assert not engine.cancel(tier.engine.requests[0]["query_id"], "")

    engine.close()
    assert error_of(gating) is EngineUnavailableError


@pytest.mark.parametrize(
    ("character", "listed"),
    [
        pytest.param("x", 1000, id="ASCII"),
        pytest.param("\N{GRINNING FACE}", 1000, id="outside the first plane"),
        pytest.param("\x01", 341, id="control characters"),
    ],
)
def test_listed_sql_is_truncated(tier: Tier, engine: EngineClient, character: str, listed: int) -> None:
    sql = character * 2000
    tier.engine.scripts[sql] = endless

    running = run(engine, sql, fingerprint="k")

    (active,) = engine.active("k")
    assert active.sql == character * listed
    running.close()


def test_a_silent_engine_counts_as_dead_and_is_disconnected(
    tier: Tier, engine: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = connection_of(engine)
    held = [run(engine, "endless") for _ in range(2)]
    tier.engine.reports = False
    monkeypatch.setattr(broker_client, "SILENCE_S", 0.1)

    wait_until(lambda: not engine.is_alive())

    assert engine.status() == EngineStatus(workers_alive=0, workers_killed=3)
    with pytest.raises(EngineUnavailableError):
        run(engine, "SELECT 1")
    wait_until(lambda: engine._pool.link._connection is not before)
    for result in held:
        result.close()


def test_the_status_is_that_of_the_engine_and_without_one_statements_fail_soon(tier: Tier) -> None:
    tier.engine.alive = 0
    tier.engine.call(lambda: tier.engine.broker.report(alive=0, killed=3))
    engine = EngineClient(tier.config)
    tier.clients.append(engine)
    wait_until(lambda: engine.status().workers_killed == 3)
    assert engine.status().is_starting

    for alive in (2, 0, 2):
        tier.engine.alive = alive
        wait_until(lambda: engine.is_alive() == bool(tier.engine.alive))
        assert engine.status() == EngineStatus(workers_alive=alive, workers_killed=3, is_starting=False)
    tier.engine.close()

    wait_until(lambda: not engine.is_alive())
    assert engine.status() == EngineStatus(workers_alive=0, workers_killed=3)
    tier.clients.append(engine := EngineClient(tier.config))
    for _ in range(2):
        with pytest.raises(EngineUnavailableError):
            run(engine, "SELECT 1")
    with pytest.raises(EngineUnavailableError):
        engine.active("k")
    assert not engine.is_alive()
    assert engine.status() == EngineStatus(workers_alive=0, workers_killed=0, is_starting=True)


def test_without_descriptors_a_statement_fails_and_the_client_goes_on(
    tier: Tier, engine: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit applies to the whole test process, so the test raises its error instead."""
    refused = threading.Event()

    def no_descriptor(*_: object) -> None:
        refused.set()
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr("socket.socket", no_descriptor)
        with pytest.raises(EngineUnavailableError):
            run(engine, "SELECT 1")
        refused.clear()
        connection_of(engine).hang_up()
        assert refused.wait(LONG_S)

    wait_until(engine.is_alive)
    assert list(run(engine, "SELECT 1")) == [b'[{"a":1}]']


@pytest.mark.parametrize(
    "data", [pytest.param(b"HTTP/1.1 400", id="no frame"), pytest.param(encode(Kind.MESSAGE, {}), id="no message")]
)
def test_a_broker_that_sends_nonsense_is_disconnected(tier: Tier, engine: EngineClient, data: bytes) -> None:
    def talk() -> None:
        for other in tier.engine.broker._clients:
            other.out += data
            tier.engine.broker._unsent.add(other)

    before = engine._pool.link._connection

    tier.engine.call(talk)

    wait_until(lambda: engine._pool.link._connection not in (before, None) and engine.is_alive())
    assert list(run(engine, "SELECT 1")) == [b'[{"a":1}]']


def test_a_client_survives_a_restart_of_the_engine(tier: Tier, engine: EngineClient) -> None:
    finish = threading.Event()

    def finishes(peer: Peer) -> None:
        peer.send(HEADER, data(b"a"))
        finish.wait(LONG_S)
        peer.send(data(b"b"), END)

    tier.engine.scripts["finishes"] = finishes
    goes_on, held = run(engine, "finishes"), run(engine, "endless")
    waiting = begin(lambda: run(engine, "SELECT 1"))
    wait_until(lambda: len(engine.active("")) == 3)

    tier.restart()

    assert error_of(waiting) is EngineUnavailableError
    assert list(run(engine, "SELECT 1")) == [b'[{"a":1}]'], "the next statement waits for the new engine"
    finish.set()
    assert list(goes_on) == [b"a", b"b"], "a statement whose worker answers is not lost"
    held.close()
    wait_until(engine.is_alive)


def test_a_question_fails_when_the_connection_is_lost(tier: Tier, engine: EngineClient) -> None:
    with tier.stalled():
        asking = begin(lambda: engine.active("k"))
        wait_until(lambda: bool(engine._pool.link._questions))

        connection_of(engine).hang_up()

        assert error_of(asking) is EngineUnavailableError


def test_a_paused_broker_gets_every_message_later(make_tier: MakeTier, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = make_tier(workers=1, max_queued=10_000)
    monkeypatch.setattr(broker_client, "SILENCE_S", LONG_S)
    tier.engine.scripts["SELECT 1" + " " * 992] = one_row
    engine = tier.client()
    with tier.stalled():
        begun = [begin(lambda: run(engine, "SELECT 1" + " " * 992)) for _ in range(400)]
        wait_until(lambda: len(engine._pool._statements) == 400 and is_full(engine))

    assert {type(one.result(LONG_S)) for one in begun} == {ClientResult}
    tier.wait_until_idle()


def connection_of(engine: EngineClient) -> broker_client._Connection:
    assert engine._pool.link._connection is not None
    return engine._pool.link._connection


def is_full(engine: EngineClient) -> bool:
    """Whether more was sent to the broker than the kernel buffers."""
    return bool(connection_of(engine)._unsent)


@pytest.mark.usefixtures("impatient")
def test_time_limits_hold_while_the_broker_does_not_read(make_tier: MakeTier) -> None:
    """Both for statements that wait for the broker and for those that run, whose end has to be reported to it."""
    tier = make_tier(timeout_s=3.0)
    engine = tier.client()
    reading = begin(lambda: run(engine, "stubborn"))
    slowly_read = run(engine, "endless")
    wait_until(lambda: len(tier.engine.requests) == 2)

    with tier.stalled():
        filled = [begin(lambda: run(engine, "x" * 1000)) for _ in range(400)]
        assert error_of(reading) is QueryTimeoutError
        assert set(map(error_of, filled)) <= {QueryTimeoutError, EngineUnavailableError}
        with pytest.raises(QueryTimeoutError):
            list(slowly_read)

    wait_until(engine.is_alive)
    assert list(run(engine, "SELECT 1")) == [b'[{"a":1}]']
    tier.wait_until_idle()


def test_a_broker_that_sends_but_does_not_read_is_disconnected(
    tier: Tier, engine: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = connection_of(engine)
    monkeypatch.setattr(broker_client, "_ANSWER_TIMEOUT_S", 0.0)

    def ask_too_much() -> bool:
        with pytest.raises(EngineUnavailableError):
            engine.active("k" * 10_000)
        return is_full(engine)

    with tier.stalled():
        wait_until(ask_too_much)
        monkeypatch.setattr(broker_client, "SILENCE_S", 0.5)
        monkeypatch.setattr(broker_client.BrokerLink, "is_heard", True)
        engine._pool.link._status_at = time.monotonic() + LONG_S

        wait_until(lambda: engine._pool.link._connection is not before)

    monkeypatch.undo()
    wait_until(engine.is_alive)
    assert list(run(engine, "SELECT 1")) == [b'[{"a":1}]']


@pytest.mark.usefixtures("impatient")
def test_an_internal_error_ends_no_thread_of_the_link(engine: EngineClient, monkeypatch: pytest.MonkeyPatch) -> None:
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
        held = run(engine, "endless", timeout_s=1.0)
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, fail)
            wait_until(lambda: len(faults) > 1)
        with pytest.raises(QueryTimeoutError):
            list(held)
        wait_until(engine.is_alive)


def test_close_ends_everything(tier: Tier, engine: EngineClient) -> None:
    running = run(engine, "endless")
    next(running)
    reading = begin(lambda: next(running))
    wait_until(lambda: running._state is State.ACTIVE)

    engine.close()
    engine.close()

    assert error_of(reading) is EngineUnavailableError
    with pytest.raises(EngineUnavailableError, match="stopping"):
        run(engine, "SELECT 1")
    assert not engine.is_alive()


def test_without_a_worker_socket_a_statement_fails_and_gives_its_slot_back(tier: Tier, engine: EngineClient) -> None:
    (tier.config.state_dir / "engine.sock").unlink()

    for _ in range(3):
        with pytest.raises(EngineUnavailableError):
            run(engine, "SELECT 1")


def test_a_successor_runs_what_a_stopping_engine_refuses_and_knows_what_still_runs_on_it(
    tier: Tier, engine: EngineClient
) -> None:
    tier.engine.scripts["SELECT 1;"] = lambda peer: peer.send(
        encode(Kind.END, {"statement": {"sql": "", "kind": "select", "relations": [], "parameters": []}})
    )
    directory = tier.config.state_dir / "e2"
    directory.mkdir()
    other = Tier(directory)
    other.engine.scripts |= tier.engine.scripts
    new = other.client()
    running = begin(lambda: b"".join(run(engine, "endless", fingerprint="k")))
    wait_until(lambda: len(tier.engine.requests) == 1)

    new.succeed(engine, lambda query: query.fingerprint != "gone")
    assert [query.sql for query in new.active("k")] == ["endless"]
    tier.engine.call(tier.engine.broker.drain)
    wait_until(lambda: not engine.is_alive())
    other.engine.scripts["SELECT 2"] = lambda peer: peer.send(
        encode(Kind.HEADER, {"data_version": [1, 2, 3]}), data(b"2"), encode(Kind.END, {})
    )
    passed_on, own = run(engine, "SELECT 2"), run(new, "SELECT 2")
    assert b"".join(passed_on) == b"".join(own) == b"2"
    # The cache of the former configuration must not take it for its own.
    assert (passed_on.data_version, own.data_version) == (None, (1, 2, 3))
    with pytest.raises(EngineUnavailableError):
        run(engine, "SELECT 1", fingerprint="gone")
    assert engine.admit("SELECT 1;", frozenset()).kind == "select"
    assert engine.count_request("k", 2).is_allowed
    assert len(tier.engine.requests) == 1
    assert not engine.has_ended
    assert new.cancel(tier.engine.requests[0]["query_id"], "k")
    assert error_of(running) is not None

    tier.engine.close()
    wait_until(lambda: engine.has_ended)
    assert engine.count_request("k", 2).is_allowed
    assert new.active("k") == ()
    new.forget_predecessor()
    assert b"".join(run(engine, "SELECT 1")) == b'[{"a":1}]'
    other.close()
    tier.start()


def test_a_statement_that_waits_during_a_reload_reads_the_data_of_the_configuration_in_effect(
    tier: Tier, engine: EngineClient
) -> None:
    directory = tier.config.state_dir / "e2"
    directory.mkdir()
    other = Tier(directory)
    new = other.client()
    running = begin(lambda: b"".join(run(engine, "endless", fingerprint="k", concurrent=1)))
    wait_until(lambda: len(tier.engine.requests) == 1)
    kept = begin(lambda: b"".join(run(engine, "SELECT 1", fingerprint="k", concurrent=1)))
    gone = begin(lambda: b"".join(run(engine, "SELECT 2", fingerprint="k", concurrent=1)))
    wait_until(lambda: len(engine.active("k")) == 3)

    engine.look = lambda: new.succeed(engine, lambda query: query.sql == "SELECT 1")
    assert engine.cancel(tier.engine.requests[0]["query_id"], "k")

    assert error_of(running) is not None
    assert kept.result(60) == b'[{"a":1}]'
    assert error_of(gone) is EngineUnavailableError
    assert (len(tier.engine.requests), len(other.engine.requests)) == (1, 1)
    other.close()

"""Reuse of slots and connections by the statements of a process, against a scripted engine."""

import threading
from collections.abc import Callable
from functools import partial

import pytest

from queryengine.engine import Query
from queryengine.errors import EngineUnavailableError, EngineWorkerDiedError, QueryCancelledError
from queryengine.pool import broker_client, slots
from queryengine.pool.client import EngineClient
from queryengine.pool.frames import Kind, encode
from queryengine.pool.slot_scheduler import MISSED_CHECKS
from tests.queryengine.asking import begin
from tests.queryengine.publishing import wait_until
from tests.queryengine.scripted_engine import (
    END,
    HEADER,
    LONG_S,
    MakeTier,
    Peer,
    Tier,
    data,
    error,
    one_row,
)

CLOSING = encode(Kind.CLOSING, {})
ROW = [b'[{"a":1}]']


@pytest.fixture
def make_tier(make_tier: MakeTier) -> MakeTier:
    return partial(make_tier, keeps=True)


@pytest.fixture
def tier(make_tier: MakeTier) -> Tier:
    return make_tier()


@pytest.fixture
def keeping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep unused slots for the length of the test."""
    monkeypatch.setattr(slots, "KEEP_S", 2 * LONG_S)


@pytest.fixture
def keeper(keeping: None, tier: Tier) -> EngineClient:
    """A client that keeps its unused slots."""
    return tier.client()


def ask(client: EngineClient, sql: str = "SELECT 1", key: str = "k") -> list[bytes]:
    return list(client.run(Query(sql=sql, fingerprint=key)))


def test_statements_of_a_key_reuse_slot_and_connection(tier: Tier, keeper: EngineClient) -> None:
    tier.engine.scripts["wrong"] = lambda peer: peer.send(error("sql_error"))

    for _ in range(5):
        assert ask(keeper) == ROW
        with pytest.raises(Exception, match=r"No\."):
            ask(keeper, "wrong")

    assert tier.engine.connections == 1
    keeper.close()
    tier.wait_until_idle()


def test_an_unused_slot_is_given_back_and_its_connection_closed(tier: Tier, engine: EngineClient) -> None:
    assert ask(engine) == ROW
    tier.wait_until_idle()
    assert ask(engine) == ROW

    assert tier.engine.connections == 2


@pytest.mark.usefixtures("keeping")
def test_waiting_statements_take_over_the_slots_of_their_process(make_tier: MakeTier) -> None:
    tier = make_tier(workers=3, max_queued=64)
    client = tier.client()

    asked = [begin(lambda: ask(client)) for _ in range(40)]

    assert [one.result(LONG_S) for one in asked] == [ROW] * 40
    assert tier.engine.connections <= 3
    assert len(tier.engine.requests) == 40


@pytest.mark.usefixtures("keeping")
@pytest.mark.parametrize("key", ["k", "other"])
def test_an_unused_slot_goes_to_another_process(make_tier: MakeTier, key: str) -> None:
    tier = make_tier(workers=1)
    first, second = tier.client(), tier.client()

    for _ in range(3):
        assert ask(first) == ROW
        assert ask(second, key=key) == ROW


def long_statements(tier: Tier) -> threading.Event:
    """Answer "long" once the returned event is set."""
    go_on = threading.Event()

    def long(peer: Peer) -> None:
        go_on.wait(LONG_S)
        one_row(peer)

    tier.engine.scripts["long"] = long
    return go_on


def test_a_slot_in_use_goes_to_another_key_after_its_statement(make_tier: MakeTier) -> None:
    tier = make_tier(workers=1)
    client = tier.client()
    go_on = long_statements(tier)

    asked = [begin(lambda: ask(client, "long", "flood")) for _ in range(3)]
    wait_until(lambda: len(client.active("flood")) == 3)
    asked.append(begin(lambda: ask(client, "SELECT 1", "other")))
    wait_until(lambda: all(slot.recalled for slot in client._pool._slots.values()))
    go_on.set()
    for one in asked:
        assert one.result(LONG_S) == ROW

    order = [request["fingerprint"] for request in tier.engine.requests]
    assert order.index("other") <= 2, "after the running statement and one that waited before it"


def test_short_statements_settle_on_one_slot_per_processor(make_tier: MakeTier) -> None:
    tier = make_tier(workers=4, max_queued=64, processors=1)
    client = tier.client()
    ends, go_on = threading.Event(), long_statements(tier)

    def keep_busy(first: str) -> None:
        assert ask(client, first) == ROW
        while not ends.is_set():
            assert ask(client) == ROW

    busy = [begin(partial(keep_busy, sql)) for sql in ["long"] * 3 + ["SELECT 1"] * 5]
    try:
        wait_until(lambda: sum(client._pool._reusable.values()) >= 3)
        go_on.set()
        wait_until(lambda: sum(client._pool._reusable.values()) == 1)
        held = client.run(Query(sql="endless", fingerprint="k", query_id="q"))
        assert next(held) == b"first"
        answered = len(tier.engine.requests)
        wait_until(lambda: len(tier.engine.requests) > answered + 8)
        held.close()
    finally:
        ends.set()
    for one in busy:
        one.result(LONG_S)
    tier.wait_until_idle()


def test_any_process_lists_and_cancels_the_statements_of_a_key_in_a_reused_slot_too(tier: Tier) -> None:
    client, other = tier.client(), tier.client()
    assert ask(client) == ROW

    held = client.run(Query(sql="endless", fingerprint="k", query_id="q"))
    assert next(held) == b"first"
    wait_until(lambda: [one.query_id for one in other.active("k")] == ["q"])
    (active,) = other.active("k")
    assert (active.sql, active.state) == ("endless", "running")
    assert active.started.endswith("Z")
    assert other.active("x") == ()
    assert not other.cancel("q", "x")
    assert not other.cancel("p", "k")
    assert other.cancel("q", "k")

    with pytest.raises(QueryCancelledError):
        list(held)
    tier.wait_until_idle()


def test_a_slot_freed_under_a_slow_reader_is_not_reused(tier: Tier, engine: EngineClient) -> None:
    go_on = threading.Event()

    def slow(peer: Peer) -> None:
        peer.send(HEADER, data(b"x"))
        go_on.wait(LONG_S)
        peer.send(END)

    tier.engine.scripts["slow"] = slow
    read = engine.run(Query(sql="slow", fingerprint="k"))
    for _ in range(MISSED_CHECKS):
        tier.engine.call(lambda: tier.engine.broker.free_unused((), any_idle=True))
    tier.wait_until_idle()
    wait_until(lambda: all(slot.recalled for slot in engine._pool._slots.values()))

    go_on.set()
    assert list(read) == [b"x"]
    assert ask(engine) == ROW

    assert tier.engine.connections == 2
    tier.wait_until_idle()


# Workers that end between two statements.


def test_a_worker_that_ends_between_two_statements_fails_neither(tier: Tier, keeper: EngineClient) -> None:
    tier.engine.keeps = False

    for _ in range(20):
        assert ask(keeper) == ROW

    assert tier.engine.connections == 20


def closes_at_once(peer: Peer) -> None:
    peer.send(HEADER, END, CLOSING)


def closes_late(peer: Peer) -> None:
    reads_a_part(peer)
    peer.send(CLOSING)


def reads_a_part(peer: Peer) -> None:
    peer.send(HEADER, END)
    peer.socket.recv(1)


@pytest.mark.parametrize("last", [closes_at_once, closes_late, reads_a_part])
def test_a_statement_that_its_worker_has_not_started_is_sent_to_another(
    tier: Tier, keeper: EngineClient, last: Callable[[Peer], object]
) -> None:

    def closes(peer: Peer) -> None:
        tier.engine.keeps = False
        last(peer)

    tier.engine.scripts["closes"] = closes
    assert ask(keeper, "closes") == []

    assert ask(keeper) == ROW

    assert tier.engine.connections == 2
    assert [request["sql"] for request in tier.engine.requests] == ["closes", "SELECT 1"]


def test_a_statement_that_its_worker_has_read_is_not_run_twice(tier: Tier, keeper: EngineClient) -> None:
    runs = []

    def dies(peer: Peer) -> None:
        runs.append(1)
        tier.engine.keeps = False

    tier.engine.scripts["dies"] = dies
    assert ask(keeper) == ROW

    with pytest.raises(EngineWorkerDiedError):
        ask(keeper, "dies")

    assert runs == [1]
    assert ask(keeper) == ROW


def test_the_connection_of_a_stopped_statement_is_not_reused(tier: Tier, keeper: EngineClient) -> None:
    held = keeper.run(Query(sql="endless", fingerprint="k"))
    held.close()

    assert ask(keeper) == ROW
    assert tier.engine.connections == 2


# The end.


def test_a_drain_recalls_unused_slots_and_refuses_statements_until_the_others_are_ended(
    tier: Tier, keeper: EngineClient
) -> None:
    assert ask(keeper) == ROW
    running = keeper.run(Query(sql="endless"))
    assert next(running) == b"first"

    tier.engine.call(tier.engine.broker.drain)

    wait_until(lambda: not keeper.is_alive())
    with pytest.raises(EngineUnavailableError, match="stopping"):
        ask(keeper)
    tier.engine.call(tier.engine.broker.end_statements)
    with pytest.raises(EngineUnavailableError, match="stopping"):
        next(running)
    tier.wait_until_idle()


def test_slots_of_a_lost_broker_are_forgotten(tier: Tier, keeper: EngineClient) -> None:
    assert ask(keeper) == ROW

    tier.restart()
    wait_until(lambda: bool(tier.engine.broker._clients))  # Until then the old worker answers it.

    assert ask(keeper) == ROW
    assert tier.engine.connections == 1


def test_a_recall_during_the_close_of_a_client_is_harmless(
    tier: Tier, keeper: EngineClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(keeper) == ROW
    link = keeper._pool.link
    close = link.close

    def close_late() -> None:
        tier.engine.call(tier.engine.broker.drain)
        tier.wait_until_idle()
        close()

    monkeypatch.setattr(link, "close", close_late)

    keeper.close()

    assert caplog.messages == []


@pytest.mark.usefixtures("keeping")
def test_a_finished_statement_is_not_listed_by_another_process(tier: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "REPORT_S", 2 * LONG_S)
    monkeypatch.setattr(broker_client, "_ANSWER_TIMEOUT_S", LONG_S)
    tier.engine.broker.report_s = LONG_S
    client, other = tier.client(), tier.client()

    assert list(client.run(Query(sql="SELECT 1", fingerprint="k", query_id="answered"))) == ROW
    running = client.run(Query(sql="endless", fingerprint="k", query_id="running"))

    assert [one.query_id for one in other.active("k")] == ["running"]
    assert not other.cancel("answered", "k")
    running.close()
    assert list(client.run(Query(sql="SELECT 1", fingerprint="k", query_id="answered"))) == ROW
    assert other.active("k") == ()

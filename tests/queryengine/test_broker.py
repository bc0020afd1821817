from __future__ import annotations

import os
import socket
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from queryengine.pool.broker import Broker
from queryengine.pool.broker_records import MAX_MESSAGE_BYTES
from queryengine.pool.frames import FrameDecoder, Kind, decode_json, encode_json
from queryengine.pool.slot_scheduler import MISSED_CHECKS, SHARE_S
from runtimeconf.model import QueryConfig
from tests.queryengine.publishing import wait_until


class Bench:
    """A broker, and clients that speak to it over its socket, all in one thread."""

    def __init__(self, path: Path, **settings: Any) -> None:
        several_keys, processors = settings.pop("several_keys", True), settings.pop("processors", 8)
        limits = QueryConfig(**{"workers": 2, "max_queued": 4, "queue_timeout_s": 60.0, **settings})
        self.path, self.killed = path, list[str]()
        self.broker = Broker(path, limits, several_keys=several_keys, kill=self.killed.append, processors=processors)
        self.broker.report_s = 0.0  # Clients here tell of nothing by themselves.
        self._clients = ExitStack()

    def client(self) -> Client:
        return Client(self, self._clients.enter_context(socket.socket(socket.AF_UNIX)))

    def turn(self) -> None:
        """Let the broker do all there is to do."""
        for _ in range(4):
            self.broker.poll(0)

    def is_idle(self) -> bool:
        return self.broker.is_idle

    def close(self) -> None:
        self._clients.close()
        self.broker.close()


class Client:
    def __init__(self, bench: Bench, connection: socket.socket) -> None:
        self.socket = connection
        self.slots: dict[str, int] = {}  # by the statement that was given it
        self._called: set[int] = set()
        self._bench = bench
        self._decoder = FrameDecoder()
        connection.connect(str(bench.path))
        connection.setblocking(False)
        self.heard()

    def say(self, **fields: Any) -> list[dict[str, Any]]:
        """Send a message; what the broker answers, and pushes meanwhile."""
        return self.send(encode_json(Kind.MESSAGE, fields))

    def send(self, data: bytes) -> list[dict[str, Any]]:
        self.socket.sendall(data)
        return self.heard()

    def enter(self, query_id: str, key: str = "k", **more: Any) -> list[dict[str, Any]]:
        fields = {"id": query_id, "key": key, "sql": f"SELECT '{query_id}'", "started": "2026-01-01T00:00:00Z"}
        return self.say(do="enter", **fields, **more)

    def leave(self, query_id: str, *, kill: bool = False) -> list[dict[str, Any]]:
        """Give back the place that was given for this statement, or end its wait."""
        if query_id not in self.slots:
            return self.say(do="leave", id=query_id)
        return self.say(do="leave", slot=self.slots.pop(query_id), **({"kill": query_id} if kill else {}))

    def heard(self) -> list[dict[str, Any]]:
        """What has come since the last look, without statuses and calls for places."""
        messages = [message for message in self.everything() if message["is"] not in ("status", "recall", "report")]
        for message in messages:
            if message["is"] == "admitted":
                self.slots[message["id"]] = message.pop("slot")
                del message["key"]
        return messages

    def recalled(self) -> set[str]:
        """The statements for which the places were given that are called for now."""
        self.everything()
        numbers, self._called = self._called, set()
        return {query_id for query_id, number in self.slots.items() if number in numbers}

    def everything(self) -> list[dict[str, Any]]:
        self._bench.turn()
        messages = []
        while data := self._received():
            messages += [decode_json(payload) for _, payload in self._decoder.feed(data)]
        self._called |= {message["slot"] for message in messages if message["is"] == "recall"}
        return messages

    def _received(self) -> bytes:
        try:
            return self.socket.recv(65536)
        except BlockingIOError:
            return b""

    def is_dropped(self) -> bool:
        self._bench.turn()
        try:
            while self.socket.recv(65536):
                pass
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True
        return True


@pytest.fixture
def make_bench() -> Iterator[Callable[..., Bench]]:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as benches:

        def make(**settings: Any) -> Bench:
            bench = Bench(Path(directory) / "broker.sock", **settings)
            benches.callback(bench.close)
            return bench

        yield make


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench()


def admitted(query_id: str) -> dict[str, Any]:
    return {"is": "admitted", "id": query_id}


def busy(query_id: str) -> dict[str, Any]:
    return {"is": "busy", "id": query_id, "retry_after_s": 1}


# Places.


def test_places_are_given_and_given_back(bench: Bench) -> None:
    a, b = bench.client(), bench.client()

    assert a.enter("1") == [admitted("1")]
    assert b.enter("2", "other") == [admitted("2")]
    assert a.enter("3") == []
    assert b.leave("2") == []
    assert a.heard() == [], "the key does not get the last place"
    assert a.leave("1") == [admitted("3")]

    a.leave("3")
    assert bench.broker.is_idle


def test_keys_of_two_processes_take_turns(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(workers=1, max_queued=8)
    flood, other = bench.client(), bench.client()
    for number in range(4):
        flood.enter(f"f{number}", "flood")

    assert other.enter("o", "other") == []
    assert flood.leave("f0") == [admitted("f1")]
    assert flood.leave("f1") == []
    assert other.heard() == [admitted("o")]
    other.leave("o")
    assert flood.heard() == [admitted("f2")]


def test_a_full_queue_makes_room_for_another_key_which_is_next(bench: Bench) -> None:
    flood, other = bench.client(), bench.client()
    for number in range(5):
        flood.enter(f"f{number}", "flood")
    assert other.enter("o1", "other") == [admitted("o1")], "the flood leaves it a place"
    assert other.enter("o2", "third") == [], "both places are taken"

    assert flood.heard() == [busy("f4")]
    assert flood.enter("f5", "flood") == [busy("f5")]
    assert flood.leave("f0") == [admitted("f1")], "the third key's turn comes after one of who waited before it"
    assert flood.leave("f1") == []
    assert other.heard() == [admitted("o2")]


def test_who_waits_too_long_is_turned_away(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(workers=1, queue_timeout_s=0.05)
    client = bench.client()
    client.enter("1")
    client.enter("2")
    client.enter("3")

    deadline = time.monotonic() + 30
    heard: list[dict[str, Any]] = []
    while len(heard) < 2 and time.monotonic() < deadline:
        bench.broker.poll(30)  # The end of a wait ends it.
        heard += client.heard()

    assert heard == [busy("2"), busy("3")]
    assert client.enter("4") == []
    assert client.leave("4") == []
    assert client.leave("1") == []
    assert bench.broker.is_idle


def test_who_leaves_the_queue_gets_no_place(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(workers=1)
    client = bench.client()
    for query_id in "123":
        client.enter(query_id)

    assert client.leave("2") == []
    assert client.leave("1") == [admitted("3")]


def test_a_lost_client_frees_its_places_and_its_waits_at_once(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(workers=2, several_keys=False)
    lost, other = bench.client(), bench.client()
    for query_id in "1234":
        lost.enter(query_id)
    other.enter("o")
    other.enter("p")

    lost.socket.close()

    assert other.heard() == [admitted("o"), admitted("p")]
    other.leave("o")
    other.leave("p")
    assert bench.broker.is_idle


def test_an_id_of_nobody_or_of_somebody_else_frees_nothing(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(workers=1)
    a, b = bench.client(), bench.client()
    a.enter("1")
    b.enter("2", "other")

    assert b.say(do="leave", slot=a.slots["1"], kill="1") == []
    assert b.leave("1") == []
    assert b.say(do="leave", slot=10**9, kill="1") == []
    assert a.leave("2") == []

    assert not a.is_dropped()
    assert bench.killed == []
    a.leave("1")
    assert b.heard() == [admitted("2")]
    assert a.leave("1") == [], "twice"


def test_a_worker_is_killed_for_a_statement_with_a_place_only(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(workers=1)
    client = bench.client()
    client.enter("1")
    client.enter("2")

    client.leave("2", kill=True)
    assert bench.killed == []
    client.leave("1", kill=True)

    assert bench.killed == ["1"]
    assert bench.broker.is_idle


def test_a_place_that_no_worker_uses_any_longer_is_freed(bench: Bench) -> None:
    client = bench.client()
    long_id = "x" * 40
    client.enter(long_id, "a")
    client.enter("ended", "b")
    assert client.enter("next", "c") == []

    for _ in range(MISSED_CHECKS):
        bench.broker.free_unused({long_id[:32]}, any_idle=False)
    for _ in range(MISSED_CHECKS - 1):
        bench.broker.free_unused({long_id[:32]}, any_idle=True)
    assert client.heard() == []
    bench.broker.free_unused({long_id[:32]}, any_idle=True)

    assert client.heard() == [admitted("next")]
    assert client.leave("ended") == []
    assert client.enter("more", "d") == [], "the place of one that runs is not freed"


# Places that clients keep.


def runs(client: Client, place: int, query_id: str = "") -> list[dict[str, Any]]:
    fields = {"id": query_id, "sql": "SELECT 2", "started": "2026-01-01T00:00:02Z"} if query_id else {}
    return client.say(do="runs", slot=place, **fields)


def listed(client: Client, key: str = "k") -> list[tuple[str, str]]:
    (answer,) = client.say(do="active", ask=1, key=key)
    return [(one["id"], one["state"]) for one in answer["statements"]]


def test_a_place_is_used_for_one_statement_after_the_other(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(workers=1)
    client = bench.client()
    client.enter("1")
    client.enter("2")
    place = client.slots["1"]

    assert runs(client, place, "2") == []
    assert listed(client) == [("2", "running")], "it waits no longer"
    assert runs(client, place, "3") == []
    assert listed(client) == [("3", "running")]
    assert runs(client, place) == []
    assert listed(client) == []
    assert not bench.is_idle()

    client.leave("1")
    assert bench.is_idle()
    assert runs(client, place, "4") == [], "the place is nobody's"
    assert bench.is_idle()


def test_a_statement_that_got_two_places_is_listed_once(bench: Bench) -> None:
    client = bench.client()
    client.enter("1", "")
    client.enter("2", "")

    runs(client, client.slots["1"], "2")

    assert listed(client, "") == [("2", "running")]
    client.leave("1")
    client.leave("2")
    assert bench.is_idle()


def test_another_key_gets_a_place_that_is_kept(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(workers=1)
    keeper, other = bench.client(), bench.client()
    keeper.enter("1")
    assert keeper.recalled() == set()

    keeper.enter("2", "another")
    assert keeper.recalled() == {"1"}, "of its own process"
    other.enter("3", "third")
    assert keeper.recalled() == set(), "once"

    assert keeper.leave("1") == [admitted("2")]
    assert keeper.recalled() == {"2"}, "for the third key"


def test_each_process_of_a_key_has_its_share_of_places(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queryengine.pool.slot_scheduler.QUANTUM_S", 0.0)
    bench = make_bench(workers=4, several_keys=False, max_queued=8)
    greedy, modest = bench.client(), bench.client()
    for query_id in "1234":
        greedy.enter(query_id)
    greedy.enter("5")
    assert greedy.recalled() == set(), "it serves its own"

    modest.enter("a")
    assert greedy.recalled() == {"1"}
    assert greedy.leave("1") == [admitted("5")], "the place is for who has waited longest"
    assert greedy.recalled() == {"2"}
    greedy.leave("2")
    assert modest.heard() == [admitted("a")]

    modest.enter("b")
    assert greedy.recalled() == {"3"}
    greedy.leave("3")
    assert modest.heard() == [admitted("b")]
    modest.enter("c")
    assert greedy.recalled() == set(), "both have two"


def test_a_place_is_kept_for_a_while_from_its_own_key(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(workers=1)
    first, second = bench.client(), bench.client()
    first.enter("1")
    place = bench.broker._scheduler._slots[first.slots["1"]]

    place.since = time.monotonic() + 60
    second.enter("2")
    assert first.recalled() == set()
    runs(first, first.slots["1"])
    assert first.recalled() == {"1"}, "unless it is used for nothing"


def test_a_place_that_does_not_come_back_has_another_called(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queryengine.pool.broker_records.RECALL_S", 60.0)
    bench = make_bench(workers=3, several_keys=False)
    keeper, other = bench.client(), bench.client()
    for query_id in "123":
        keeper.enter(query_id)
    runs(keeper, keeper.slots["2"])

    other.enter("a", "another")
    assert keeper.recalled() == {"2"}, "one that is used for nothing comes soonest"
    bench.broker._scheduler._slots[keeper.slots["2"]].recalled_at = time.monotonic() - 61
    assert keeper.recalled() == {"1"}
    assert keeper.recalled() == set(), "one at a time"
    keeper.leave("1")

    assert other.heard() == [admitted("a")]


def test_a_share_of_long_statements_is_not_all_that_a_process_gets(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queryengine.pool.slot_scheduler.QUANTUM_S", 0.0)
    bench = make_bench(workers=2, several_keys=False)
    first, second = bench.client(), bench.client()
    first.enter("long")
    second.enter("short")

    first.enter("waits")
    assert second.recalled() == set(), "each has one"
    next(iter(bench.broker._scheduler._queued)).since -= SHARE_S

    assert second.recalled() == {"short"}


def test_a_statement_with_patience_gets_a_place_while_there_are_fewer_than_processors(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(workers=4, several_keys=False, processors=2)
    client = bench.client()

    assert client.enter("1", patient=True) == [admitted("1")]
    assert client.enter("2", patient=True) == [admitted("2")]
    assert client.enter("3", patient=True) == []
    assert client.enter("4", patient=True) == []
    assert dict(listed(client))["3"] == "queued"
    assert client.enter("5") == [admitted("5")], "one without patience does not wait for those"

    assert client.say(do="hurry", id="4") == [admitted("4")]
    assert client.say(do="hurry", id="4") == [], "it has its place"
    client.leave("5")
    client.leave("4")
    assert client.leave("1") == [admitted("3")]


def test_of_places_that_move_on_as_many_are_kept_as_processors(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queryengine.pool.broker_records.ROTATION_S", 60.0)
    bench = make_bench(workers=6, several_keys=False, processors=2)
    flood, calm = bench.client(), bench.client()
    for query_id in ("1", "2", "3", "long"):
        flood.enter(query_id)
    calm.enter("c")

    for number, query_id in enumerate(["1", "2", "1", "2"]):
        runs(flood, flood.slots[query_id], f"next {number}")
        assert flood.recalled() == set()
    runs(flood, flood.slots["3"], "next 4")
    assert flood.recalled() == {"3"}
    flood.leave("3")

    runs(calm, calm.slots["c"], "next c")
    assert calm.recalled() == set(), "it is the only one of its process"
    runs(flood, flood.slots["1"], "next 5")
    assert flood.recalled() == {"1"}
    flood.leave("1")
    runs(flood, flood.slots["2"], "next 6")
    assert flood.recalled() == set(), "the long statement's place does not count"


def test_who_has_patience_takes_no_place_of_another_process_that_has_no_more(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queryengine.pool.slot_scheduler.QUANTUM_S", 0.0)
    bench = make_bench(workers=2, several_keys=False, processors=2)
    first, second = bench.client(), bench.client()
    first.enter("1")
    second.enter("2")

    first.enter("waits", patient=True)
    next(iter(bench.broker._scheduler._queued)).since -= SHARE_S
    assert second.recalled() == set()
    first.say(do="hurry", id="waits")

    assert second.recalled() == {"2"}


def test_who_has_patience_calls_back_no_place_that_would_not_be_given_to_it(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(workers=3, processors=2)
    first, second = bench.client(), bench.client()
    first.enter("1", "a")
    first.enter("2", "a")
    second.enter("3", "b")

    second.enter("waits", "b", patient=True)
    assert first.recalled() == set(), "with one place less there are still as many as processors"
    second.say(do="hurry", id="waits")

    assert len(first.recalled()) == 1


def test_who_has_patience_takes_no_place_of_another_key_that_has_no_more(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(workers=4, processors=2)
    first, second = bench.client(), bench.client()
    first.enter("1", "a")
    second.enter("2", "b")

    second.enter("waits", "b", patient=True)
    assert first.recalled() == set()
    first.say(do="runs", slot=first.slots["1"])

    assert first.recalled() == {"1"}, "it is used for nothing"


def test_who_has_patience_takes_a_place_of_another_key_that_has_more(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(workers=6, processors=4)
    first, second = bench.client(), bench.client()
    for query_id in ("1", "2", "3"):
        first.enter(query_id, "a")
    second.enter("4", "b")

    second.enter("waits", "b", patient=True)

    assert len(first.recalled()) == 1


def test_draining_calls_all_places_back(bench: Bench) -> None:
    client = bench.client()
    client.enter("1", "a")
    client.enter("2", "b")

    bench.broker.drain()

    assert client.recalled() == {"1", "2"}


def test_a_place_that_is_used_for_nothing_for_long_is_freed(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(workers=1)
    client = bench.client()
    client.enter("1")
    for _ in range(2 * MISSED_CHECKS):
        bench.broker.free_unused((), any_idle=True)
        runs(client, client.slots["1"], "again")
    assert not bench.is_idle()

    for _ in range(MISSED_CHECKS):
        bench.broker.free_unused((), any_idle=True)

    assert bench.is_idle()
    assert client.recalled() == {"1"}, "its process must not use it any more"


# What is asked.


def test_active_lists_a_keys_statements_of_all_processes_oldest_first(bench: Bench) -> None:
    a, b = bench.client(), bench.client()
    a.enter("1", "k")
    b.enter("2", "other")
    b.enter("3", "k")
    a.say(do="enter", id="4", key="k", sql="x" * 2000, started="2026-01-01T00:00:01Z")

    (answer,) = b.say(do="active", ask=7, key="k")

    assert answer["is"] == "active"
    assert answer["ask"] == 7
    assert [(one["id"], one["state"]) for one in answer["statements"]] == [
        ("1", "running"),
        ("3", "queued"),
        ("4", "queued"),
    ]
    assert answer["statements"][0]["sql"] == "SELECT '1'"
    assert answer["statements"][0]["started"] == "2026-01-01T00:00:00Z"
    assert len(answer["statements"][2]["sql"]) == 1000
    assert b.say(do="active", ask=8, key="nobody") == [{"is": "active", "ask": 8, "statements": []}]


def test_a_statement_of_the_runtimes_own_is_nobodys_to_see_or_stop(bench: Bench) -> None:
    client = bench.client()
    client.say(do="enter", id="1", key="", sql="SELECT 1", started="now", inner=True)

    assert client.say(do="active", ask=1, key="") == [{"is": "active", "ask": 1, "statements": []}]
    assert client.say(do="cancel", ask=2, key="", id="1") == [{"is": "cancelled", "ask": 2, "found": False}]
    assert not bench.broker.is_idle


def test_cancel_reaches_the_process_that_runs_the_statement(bench: Bench) -> None:
    a, b = bench.client(), bench.client()
    a.enter("1", "k")

    assert b.say(do="cancel", ask=1, key="other", id="1") == [{"is": "cancelled", "ask": 1, "found": False}]
    assert a.heard() == []
    assert b.say(do="cancel", ask=2, key="k", id="1") == [{"is": "cancelled", "ask": 2, "found": True}]

    assert a.heard() == [{"is": "cancel", "id": "1"}]


def test_the_status_comes_at_once_on_change_and_every_second(bench: Bench) -> None:
    client = Client.__new__(Client)
    with socket.socket(socket.AF_UNIX) as connection:
        client.socket, client._bench, client._decoder, client.slots = connection, bench, FrameDecoder(), {}
        client._called = set()
        connection.connect(str(bench.path))
        connection.setblocking(False)
        assert client.everything() == [{"is": "status", "alive": 0, "killed": 0, "stopping": False}]

        bench.broker.report(alive=2, killed=1)
        assert client.everything() == [{"is": "status", "alive": 2, "killed": 1, "stopping": False}]
        bench.broker.report(alive=2, killed=1)
        assert client.everything() == []
        bench.broker._status_sent -= 1.0
        bench.broker.report(alive=2, killed=1)
        assert client.everything() == [{"is": "status", "alive": 2, "killed": 1, "stopping": False}]
        bench.broker.drain()
        assert client.everything() == [{"is": "status", "alive": 2, "killed": 1, "stopping": True}]


# The end.


def test_draining_refuses_new_statements_and_serves_the_others(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(workers=1)
    client = bench.client()
    client.enter("1")
    client.enter("2")

    bench.broker.drain()

    assert client.enter("3") == [{"is": "stopping", "id": "3"}]
    assert client.leave("1") == [admitted("2")]
    assert not bench.broker.is_idle
    bench.broker.end_statements()
    assert client.heard() == [{"is": "stopping", "id": "2"}]
    client.leave("2")
    assert bench.broker.is_idle


def test_a_forked_process_lets_go_without_harm(bench: Bench) -> None:
    client = bench.client()

    child = os.fork()
    if not child:
        bench.broker.close_inherited()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

    assert client.enter("1") == [admitted("1")]
    assert bench.client().enter("2", "other") == [admitted("2")]


def test_the_socket_is_for_one_user_and_replaces_a_stale_one(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    assert stat.S_IMODE(bench.path.stat().st_mode) == 0o600
    bench._clients.close()
    bench.broker.close_inherited()  # as a killed arbiter does: the file stays
    assert bench.path.exists()

    again = make_bench()

    assert again.client().enter("1") == [admitted("1")]
    again.close()
    assert not again.path.exists()


def test_a_path_that_cannot_be_bound_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        Broker(tmp_path / "none" / "broker.sock", QueryConfig(), several_keys=True, kill=print)


# Clients that misbehave.

_ENTER = {"do": "enter", "id": "1", "key": "k", "sql": "SELECT 1", "started": "now"}


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="no frame"),
        pytest.param(struct.pack("!BI", 6, 2**32 - 1), id="too long a frame"),
        pytest.param(struct.pack("!BI", 6, 4) + b"null", id="no object"),
        pytest.param(struct.pack("!BI", 6, 2) + b"{]", id="no JSON"),
        pytest.param(encode_json(Kind.REQUEST, _ENTER), id="another kind"),
        pytest.param(encode_json(Kind.MESSAGE, {}), id="nothing asked"),
        pytest.param(encode_json(Kind.MESSAGE, {"do": "fly"}), id="something unknown"),
        pytest.param(encode_json(Kind.MESSAGE, {"do": "leave"}), id="no id"),
        pytest.param(encode_json(Kind.MESSAGE, {"do": "leave", "id": 7}), id="an id that is a number"),
        pytest.param(encode_json(Kind.MESSAGE, {"do": "leave", "slot": "1"}), id="a place that is text"),
        pytest.param(encode_json(Kind.MESSAGE, {"do": "runs", "id": "1"}), id="no place"),
        pytest.param(encode_json(Kind.MESSAGE, {"do": "cancel", "id": "7", "ask": 1}), id="no key"),
        pytest.param(encode_json(Kind.MESSAGE, _ENTER) * 2, id="the same twice"),
        pytest.param(struct.pack("!BI", 6, MAX_MESSAGE_BYTES + 1), id="too long a message"),
        pytest.param(struct.pack("!BI", 6, 60_000) + b"[" * 60_000, id="deep nesting"),
    ],
)
def test_malformed_input_ends_its_connection_only(bench: Bench, data: bytes) -> None:
    bad, good = bench.client(), bench.client()
    good.enter("g", "good")
    bad.enter("b", "bad")

    bad.socket.setblocking(True)
    bad.socket.sendall(data)
    bad.socket.setblocking(False)

    assert bad.is_dropped()
    assert good.enter("h", "another") == [admitted("h")], "its place is free"
    assert good.say(do="active", ask=1, key="good")[-1]["statements"][0]["id"] == "g"


@pytest.mark.parametrize("size", [pytest.param(10**7, id="in one go"), pytest.param(6007, id="in odd pieces")])
def test_many_long_messages_after_one_another_are_served(make_bench: Callable[..., Bench], size: int) -> None:
    bench = make_bench(workers=64)
    client = bench.client()
    sql = "\N{GRINNING FACE}" * 1000 + "\ud800"  # The half character makes escapes of them all.
    messages = [{"do": "enter", "id": str(n), "key": f"k{n}", "sql": sql, "started": "now"} for n in range(64)]
    data = b"".join(encode_json(Kind.MESSAGE, message) for message in messages)
    assert len(data) > 10 * MAX_MESSAGE_BYTES

    heard: list[dict[str, Any]] = []
    while data:
        try:
            sent = client.socket.send(data[:size])
        except BlockingIOError:
            sent = 0
        data = data[sent:]
        heard += client.heard()

    wait_until(lambda: heard.extend(client.heard()) or len(heard) == 64)  # type: ignore[func-returns-value]
    assert heard == [admitted(str(n)) for n in range(64)]


def test_a_client_that_does_not_read_is_dropped(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queryengine.pool.broker.MAX_UNREAD_BYTES", 100_000)
    deaf, good = bench.client(), bench.client()
    deaf.enter("d", "deaf")
    deaf.enter("e", "more")
    question = encode_json(Kind.MESSAGE, {"do": "active", "ask": 1, "key": "deaf"}) * 100

    def ask_without_reading() -> bool:
        try:
            deaf.socket.sendall(question)
        except (BrokenPipeError, ConnectionResetError):
            return True
        bench.turn()
        return False

    wait_until(ask_without_reading, within_s=60)

    assert good.enter("1") == [admitted("1")]


def test_a_client_that_reads_late_gets_everything(bench: Bench) -> None:
    late = bench.client()
    late.enter("d", "late")
    question = encode_json(Kind.MESSAGE, {"do": "active", "ask": 1, "key": "late"})

    for _ in range(100):
        late.socket.sendall(question * 50)
        bench.turn()

    answers = [message for _ in range(100) for message in late.heard()]
    assert len(answers) == 5000
    assert late.enter("2", "other") == [admitted("2")]


def test_a_fault_of_our_own_ends_one_connection_only(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = bench.client(), bench.client()

    def fail(key: str) -> list[dict[str, str]]:
        raise ZeroDivisionError

    monkeypatch.setattr(bench.broker, "_active", fail)

    bad.say(do="active", ask=1, key="bad")

    assert bad.is_dropped()
    assert good.enter("1") == [admitted("1")]


def test_other_descriptors_end_the_wait(bench: Bench) -> None:
    reads, writes = os.pipe()
    os.set_blocking(reads, False)
    bench.broker.watch(reads)
    os.write(writes, b"xx")

    bench.broker.poll(60)
    bench.broker.poll(0)

    with pytest.raises(BlockingIOError):
        os.read(reads, 1)
    os.close(writes)
    bench.broker._selector.unregister(reads)
    os.close(reads)

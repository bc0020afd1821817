"""The broker's connections and messages."""

import os
import stat
import struct
from typing import Any

import pytest

from queryengine.pool.frames import Kind, encode
from queryengine.pool.slot_scheduler import MAX_MESSAGE_BYTES
from tests.forking import fork
from tests.queryengine.pool.broker_bench import Bench, MakeBench, admitted
from tests.queryengine.publishing import wait_until


def test_a_lost_client_frees_its_slots_and_queue_entries_at_once(make_bench: MakeBench) -> None:
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


def test_a_client_frees_and_kills_only_what_is_its_own(make_bench: MakeBench) -> None:
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
    a.leave("1", kill=True)
    assert bench.killed == ["1"]
    assert b.heard() == [admitted("2")]
    assert a.leave("1") == [], "twice"


def test_active_lists_a_keys_statements_of_all_processes_oldest_first(bench: Bench) -> None:
    a, b = bench.client(), bench.client()
    a.enter("1", "k")
    b.enter("2", "other")
    b.enter("3", "k")
    a.say(do="enter", key="k", statement={"id": "4", "sql": "x" * 2000, "started": "2026-01-01T00:00:01Z"})

    (answer,) = b.say(do="active", ask=7, key="k")

    assert (answer["is"], answer["ask"]) == ("listed", 7)
    assert [(one["query_id"], one["state"]) for one in answer["statements"]] == [
        ("1", "running"),
        ("3", "queued"),
        ("4", "queued"),
    ]
    assert answer["statements"][0]["sql"] == "SELECT '1'"
    assert answer["statements"][0]["started"] == "2026-01-01T00:00:00Z"
    assert len(answer["statements"][2]["sql"]) == 1000
    assert b.say(do="active", ask=8, key="nobody") == [{"is": "listed", "ask": 8, "statements": []}]


def test_the_status_comes_at_once_on_change_and_every_second(bench: Bench) -> None:
    client = bench.client()
    status = {"is": "status", "alive": 2, "killed": 1, "stopping": False, "running": 0, "queued": 0}
    assert client.greeting == [status | {"alive": 0, "killed": 0, "busy": 0}]

    bench.broker.report(alive=2, killed=1)
    assert client.everything() == [status | {"busy": 0}]
    bench.broker.report(alive=2, killed=1, busy=1)
    assert client.everything() == []
    bench.broker._status_sent -= 1.0
    bench.broker.report(alive=2, killed=1, busy=2)
    assert client.everything() == [status | {"busy": 2}]
    bench.broker.drain()
    assert client.everything() == [status | {"busy": 2, "stopping": True}]


def test_closing_in_a_forked_process_does_not_affect_the_broker(bench: Bench) -> None:
    client = bench.client()

    child = fork()
    if not child:
        bench.broker.close_inherited()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

    assert client.enter("1") == [admitted("1")]
    assert bench.client().enter("2", "other") == [admitted("2")]


def test_the_socket_is_for_one_user_and_replaces_a_stale_one(make_bench: MakeBench) -> None:
    bench = make_bench()
    assert stat.S_IMODE(bench.path.stat().st_mode) == 0o600
    bench._clients.close()
    bench.broker.close_inherited()  # as a killed arbiter does: the file stays
    assert bench.path.exists()

    again = make_bench()

    assert again.client().enter("1") == [admitted("1")]
    again.close()
    assert not again.path.exists()


_ENTER = {"do": "enter", "key": "k", "statement": {"id": "1", "sql": "SELECT 1", "started": "now"}}


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="no frame"),
        pytest.param(struct.pack("!BI", 6, 2**32 - 1), id="too long a frame"),
        pytest.param(struct.pack("!BI", 6, 4) + b"null", id="no object"),
        pytest.param(struct.pack("!BI", 6, 2) + b"{]", id="no JSON"),
        pytest.param(encode(Kind.REQUEST, _ENTER), id="another kind"),
        pytest.param(encode(Kind.MESSAGE, {}), id="nothing asked"),
        pytest.param(encode(Kind.MESSAGE, {"do": "fly"}), id="something unknown"),
        pytest.param(encode(Kind.MESSAGE, {"do": "leave"}), id="no id"),
        pytest.param(encode(Kind.MESSAGE, {"do": "leave", "id": 7}), id="an id that is a number"),
        pytest.param(encode(Kind.MESSAGE, {"do": "leave", "slot": "1"}), id="a slot that is text"),
        pytest.param(encode(Kind.MESSAGE, {"do": "runs", "id": "1"}), id="no slot"),
        pytest.param(encode(Kind.MESSAGE, {"do": "cancel", "id": "7", "ask": 1}), id="no key"),
        pytest.param(encode(Kind.MESSAGE, _ENTER) * 2, id="the same twice"),
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
    assert good.enter("h", "another") == [admitted("h")], "its slot is free"
    assert good.say(do="active", ask=1, key="good")[-1]["statements"][0]["query_id"] == "g"


@pytest.mark.parametrize("size", [pytest.param(10**7, id="in one go"), pytest.param(6007, id="in odd pieces")])
def test_many_long_messages_in_a_row_are_served(make_bench: MakeBench, size: int) -> None:
    bench = make_bench(workers=64)
    client = bench.client()
    sql = "\x01" * 2000  # Each is sent as an escape.
    statements = [{"id": str(n), "sql": sql, "started": "now"} for n in range(64)]
    messages = [{"do": "enter", "key": f"k{one['id']}", "statement": one} for one in statements]
    data = b"".join(encode(Kind.MESSAGE, message) for message in messages)
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
    question = encode(Kind.MESSAGE, {"do": "active", "ask": 1, "key": "deaf"}) * 100

    def ask_without_reading() -> bool:
        try:
            deaf.socket.sendall(question)
        except (BrokenPipeError, ConnectionResetError):
            return True
        bench.turn()
        return False

    wait_until(ask_without_reading)

    assert good.enter("1") == [admitted("1")]


def test_a_client_that_reads_late_gets_everything(bench: Bench) -> None:
    late = bench.client()
    late.enter("d", "late")
    question = encode(Kind.MESSAGE, {"do": "active", "ask": 1, "key": "late"})

    for _ in range(100):
        late.socket.sendall(question * 50)
        bench.turn()

    answers = [message for _ in range(100) for message in late.heard()]
    assert len(answers) == 5000
    assert late.enter("2", "other") == [admitted("2")]


def test_an_internal_error_ends_one_connection_only(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = bench.client(), bench.client()

    def fail(*_: object) -> dict[str, Any]:
        raise ZeroDivisionError

    monkeypatch.setattr(bench.broker, "_active", fail)

    bad.say(do="active", ask=1, key="bad")

    assert bad.is_dropped()
    assert good.enter("1") == [admitted("1")]


def test_a_watched_descriptor_ends_the_wait(bench: Bench) -> None:
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


def test_draining_refuses_new_statements_and_serves_the_others(make_bench: MakeBench) -> None:
    bench = make_bench(workers=1)
    client = bench.client()
    client.enter("1")
    client.enter("2")

    bench.broker.drain()
    assert client.recalled() == {"1"}

    assert client.enter("3") == [{"is": "stopping", "id": "3"}]
    assert client.leave("1") == [admitted("2")]
    assert not bench.broker.is_idle
    bench.broker.end_statements()
    assert client.heard() == [{"is": "stopping", "id": "2"}]
    client.leave("2")
    assert bench.broker.is_idle

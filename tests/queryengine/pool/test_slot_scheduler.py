"""Which statement gets a slot, and which slot is recalled, as the clients of a broker see it."""

import time
from typing import Any

import pytest

from queryengine.pool import slot_scheduler, statement_queue
from queryengine.pool.slot_scheduler import MISSED_CHECKS
from tests.queryengine.pool.broker_bench import Bench, MakeBench, admitted, busy, listed, runs
from tests.queryengine.publishing import wait_until


@pytest.fixture(autouse=True)
def _waits_are_over_when_a_test_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with other work may stand still for longer than these."""
    for name in ("RECALL_S", "SHARE_S"):
        monkeypatch.setattr(slot_scheduler, name, 60.0)


@pytest.fixture
def no_quantum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queryengine.pool.slot_scheduler.QUANTUM_S", 0.0)


def test_a_full_queue_evicts_for_another_key(bench: Bench) -> None:
    flood, other = bench.client(), bench.client()
    other.enter("o0", "other")
    other.leave("o0")
    for number in range(5):
        flood.enter(f"f{number}", "flood")
    assert other.enter("o1", "other") == [admitted("o1")], "the flood leaves one slot"
    assert other.enter("o2", "third") == [], "both slots are taken"

    assert flood.heard() == [busy("f4")]
    assert flood.enter("f5", "flood") == [busy("f5")]
    assert other.enter("o3", "third") == []
    assert flood.heard() == [busy("f3")]
    assert other.enter("o4", "third") == [busy("o4")], "each of the two has two"
    assert flood.leave("f0") == [admitted("f1")], "one statement that waited before the third key comes first"
    assert flood.leave("f1") == []
    assert other.heard() == [admitted("o2")]
    assert other.leave("o1") == []
    assert flood.heard() == [admitted("f2")]
    assert other.leave("o2") == [admitted("o3")]
    assert flood.enter("f6", "flood") == []
    assert other.leave("o3") == []
    assert flood.heard() == [], "the key does not get the last slot"
    assert flood.leave("f2") == [admitted("f6")]
    flood.leave("f6")
    assert bench.broker.is_idle


def test_a_key_that_is_alone_holds_every_slot_until_another_waits(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench(workers=2)
    flood, other = bench.client(), bench.client()
    assert flood.enter("f1", "flood") == [admitted("f1")]
    assert flood.enter("f2", "flood") == [admitted("f2")]
    assert flood.enter("f3", "flood") == []

    assert other.enter("o1", "other") == []
    assert flood.recalled() == {"f1"}, "no statement of the key begins in a slot that the other key should have"
    assert flood.heard() == [], "a statement has some time to end"
    monkeypatch.setattr(statement_queue, "RECLAIM_S", 0.0)
    assert flood.heard() == [{"is": "reclaimed", "id": "f2"}]
    assert flood.heard() == [], "one is enough"

    assert flood.leave("f2") == []
    assert other.heard() == [admitted("o1")]
    assert flood.leave("f1") == [admitted("f3")], "the key keeps the other slot"


def test_a_repeated_statement_waits_as_long_as_it_may_and_is_the_last_to_be_stopped_again(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench(workers=2, queue_timeout_s=0.05)
    flood, other = bench.client(), bench.client()
    flood.enter("f1", "flood")
    flood.enter("f2", "flood", repeated=True)
    heard = flood.enter("f3", "flood", repeated=True) + flood.enter("f4", "flood")  # Usually nothing.

    def hear() -> bool:
        heard.extend(flood.heard())
        return bool(heard)

    wait_until(hear)
    assert heard == [busy("f4")], "the queue time-out is not for a repeated statement, though it is in front"

    monkeypatch.setattr(statement_queue, "RECLAIM_S", 0.0)
    heard = other.enter("o", "other", repeated=True)
    assert heard == []
    assert flood.heard() == [{"is": "reclaimed", "id": "f1"}]
    assert flood.leave("f1") == []
    assert other.heard() == [admitted("o")]


def test_another_statement_is_stopped_if_the_first_does_not_end(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statement_queue, "RECLAIM_S", 0.0)
    monkeypatch.setattr(slot_scheduler, "RECLAIM_AGAIN_S", 0.0)
    bench = make_bench(workers=3)
    flood, other = bench.client(), bench.client()
    for number in range(3):
        flood.enter(f"f{number}", "flood")

    other.enter("o", "other")

    assert flood.heard() == [{"is": "reclaimed", "id": f"f{number}"} for number in (2, 1, 0)]


def test_a_statement_that_waits_too_long_is_refused(make_bench: MakeBench) -> None:
    bench = make_bench(workers=1, queue_timeout_s=0.05)
    client = bench.client()
    client.enter("1")
    heard = [*client.enter("2"), *client.enter("3")]  # Usually nothing, but the machine may stand still.

    deadline = time.monotonic() + 30
    while len(heard) < 2 and time.monotonic() < deadline:
        bench.broker.poll(30)  # returns when a wait ends
        heard += client.heard()

    assert heard == [busy("2"), busy("3")]
    assert client.enter("4") == []
    assert client.leave("4") == []
    assert client.leave("1") == []
    assert bench.broker.is_idle


def test_a_slot_whose_statement_no_worker_runs_is_freed(bench: Bench) -> None:
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
    assert client.enter("more", "d") == [], "the slot of a running statement is not freed"


def test_a_slot_serves_one_statement_after_another_until_it_is_unused_for_long(make_bench: MakeBench) -> None:
    bench = make_bench(workers=1)
    client = bench.client()
    client.enter("1")
    client.enter("2")
    slot = client.slots["1"]

    assert runs(client, slot, "2") == []
    assert listed(client) == [("2", "running")], "it is queued no longer"
    assert runs(client, slot, "3") == []
    assert listed(client) == [("3", "running")]
    for _ in range(2 * MISSED_CHECKS):
        bench.broker.free_unused((), any_idle=True)
        assert runs(client, slot) == []
    assert listed(client) == []
    assert client.recalled() == set()

    for _ in range(MISSED_CHECKS):
        bench.broker.free_unused((), any_idle=True)
    assert bench.broker.is_idle
    assert client.recalled() == {"1"}, "its process must not reuse it"
    assert runs(client, slot, "4") == [], "the slot was freed"
    assert bench.broker.is_idle


def test_a_statement_with_two_slots_is_listed_once(bench: Bench) -> None:
    client = bench.client()
    client.enter("1", "")
    client.enter("2", "")

    runs(client, client.slots["1"], "2")

    assert listed(client, "") == [("2", "running")]
    client.leave("1")
    client.leave("2")
    assert bench.broker.is_idle


def test_a_kept_slot_is_recalled_for_another_key(make_bench: MakeBench) -> None:
    bench = make_bench(workers=1)
    keeper, other = bench.client(), bench.client()
    keeper.enter("1")
    assert keeper.recalled() == set()

    keeper.enter("2", "another")
    assert keeper.recalled() == {"1"}, "also for the same process"
    other.enter("3", "third")
    assert keeper.recalled() == set(), "once"

    assert keeper.leave("1") == [admitted("2")]
    assert keeper.recalled() == {"2"}, "for the third key"


@pytest.mark.usefixtures("no_quantum")
def test_each_process_of_a_key_has_its_share_of_slots(make_bench: MakeBench) -> None:
    bench = make_bench(workers=4, several_keys=False, max_queued=8)
    greedy, modest = bench.client(), bench.client()
    for query_id in "1234":
        greedy.enter(query_id)
    greedy.enter("5")
    assert greedy.recalled() == set(), "a process serves its own statements"

    modest.enter("a")
    assert greedy.recalled() == {"1"}
    assert greedy.leave("1") == [admitted("5")], "the slot goes to the statement that has waited longest"
    assert greedy.recalled() == {"2"}
    greedy.leave("2")
    assert modest.heard() == [admitted("a")]

    modest.enter("b")
    assert greedy.recalled() == {"3"}
    greedy.leave("3")
    assert modest.heard() == [admitted("b")]
    modest.enter("c")
    assert greedy.recalled() == set(), "both have two"


def test_a_slot_stays_with_its_process_for_a_quantum(make_bench: MakeBench) -> None:
    bench = make_bench(workers=1)
    first, second = bench.client(), bench.client()
    first.enter("1")
    slot = bench.broker._scheduler._slots[first.slots["1"]]

    slot.since = time.monotonic() + 60
    second.enter("2")
    assert first.recalled() == set()
    runs(first, first.slots["1"])
    assert first.recalled() == {"1"}, "unless it is unused"


def test_another_slot_is_recalled_if_the_first_does_not_come_back(make_bench: MakeBench) -> None:
    bench = make_bench(workers=3, several_keys=False)
    keeper, other = bench.client(), bench.client()
    for query_id in "123":
        keeper.enter(query_id)
    runs(keeper, keeper.slots["2"])

    other.enter("a", "another")
    assert keeper.recalled() == {"2"}, "an unused one comes back soonest"
    bench.broker._scheduler._slots[keeper.slots["2"]].recalled_at = time.monotonic() - 61
    assert keeper.recalled() == {"1"}
    assert keeper.recalled() == set(), "one at a time"
    keeper.leave("1")

    assert other.heard() == [admitted("a")]


@pytest.mark.usefixtures("no_quantum")
def test_a_starved_statement_gets_a_slot_beyond_the_share_of_its_process(make_bench: MakeBench) -> None:
    bench = make_bench(workers=2, several_keys=False)
    first, second = bench.client(), bench.client()
    first.enter("long")
    second.enter("short")

    first.enter("waits")
    assert second.recalled() == set(), "each has one"
    next(iter(bench.broker._scheduler._queued)).since -= slot_scheduler.SHARE_S

    assert second.recalled() == {"short"}


def test_a_patient_statement_is_admitted_below_the_number_of_processors(make_bench: MakeBench) -> None:
    bench = make_bench(workers=4, several_keys=False, processors=2)
    client = bench.client()

    assert client.enter("1", patient=True) == [admitted("1")]
    assert client.enter("2", patient=True) == [admitted("2")]
    assert client.enter("3", patient=True) == []
    assert client.enter("4", patient=True) == []
    assert dict(listed(client))["3"] == "queued"
    assert client.enter("5") == [admitted("5")], "an urgent statement does not wait for those"

    assert client.say(do="hurry", id="4") == [admitted("4")]
    assert client.say(do="hurry", id="4") == [], "it has its slot already"
    client.leave("5")
    client.leave("4")
    assert client.leave("1") == [admitted("3")]


def test_only_as_many_slots_rotate_as_there_are_processors(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queryengine.pool.slot_scheduler.ROTATION_S", 60.0)
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
    assert flood.recalled() == set(), "the slot of the long statement does not count"


@pytest.mark.parametrize(
    ("limits", "held", "recalled"),
    [
        pytest.param({"workers": 2, "several_keys": False}, ("k", "k"), (0, 1), id="its process has as many"),
        pytest.param({"workers": 3}, ("aa", "b"), (0, 1), id="more slots than processors remain"),
        pytest.param({"workers": 4}, ("a", "b"), (0, 0), id="its key has as many"),
        pytest.param({"workers": 4}, ("A", "b"), (1, 0), id="a slot is unused"),
        pytest.param({"workers": 6, "processors": 4}, ("aaa", "b"), (1, 0), id="its key has fewer"),
    ],
)
@pytest.mark.usefixtures("no_quantum")
def test_a_patient_statement_takes_slots_only_from_those_with_more(
    make_bench: MakeBench, limits: dict[str, Any], held: tuple[str, str], recalled: tuple[int, int]
) -> None:
    """*held*: the keys of the slots of two processes, in capitals if unused; *recalled*: first, and after a hurry."""
    bench = make_bench(**{"processors": 2, **limits})
    holder, other = bench.client(), bench.client()
    for number, key in enumerate(held[0]):
        holder.enter(f"held{number}", key)
        if key.isupper():
            runs(holder, holder.slots[f"held{number}"])
    other.enter("own", held[1])

    other.enter("waits", held[1], patient=True)
    next(iter(bench.broker._scheduler._queued)).since -= slot_scheduler.SHARE_S
    before = len(holder.recalled())
    other.say(do="hurry", id="waits")

    assert (before, len(holder.recalled())) == recalled


def test_a_reserved_slot_serves_one_short_statement(make_bench: MakeBench) -> None:
    bench = make_bench(workers=3, reserved=1, several_keys=False)
    client = bench.client()
    client.enter("l1")
    client.enter("l2")

    assert client.enter("l3") == [], "the last slot is reserved"
    assert client.enter("s1", short=True) == [admitted("s1")]
    assert client.recalled() == {"s1"}
    assert client.enter("s2", short=True) == []
    assert client.leave("s1") == [admitted("s2")]
    assert client.leave("s2") == []
    assert client.leave("l1") == [admitted("l3")]

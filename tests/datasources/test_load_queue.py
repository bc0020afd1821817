"""The order of refreshes, and who gives a place back, without any load."""

import secrets
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasources.control import RefreshRun
from datasources.refresh.entries import DatasetEntry, QueueEntry
from datasources.refresh.load_queue import PATIENCE_S, LoadQueue, joined
from runtimeconf.model import DatasetConfig, MaterializedView

#: The clock: it requests what no caller does.
CLOCK = None


class Queue:
    """A queue of two places, with what began, in order, as `DATASET` or `DATASET of CALLER`."""

    def __init__(self) -> None:
        self.queue = LoadQueue(2, lambda _: False)
        self.began: list[str] = []
        self.running: dict[str, QueueEntry] = {}

    def add(self, name: str, caller: str | None = CLOCK, *, reads: Sequence[str] = (), begins: float = 0.0) -> None:
        view = MaterializedView(sql="", reads=tuple(reads)) if reads else None
        running = self.running.get(name)
        entry = running.entry if running else DatasetEntry(DatasetConfig(name=name, from_="file:a.csv", view=view))
        run = RefreshRun(id=secrets.token_hex(8), status="queued", requested_at="2026-01-01T00:00:00.000Z")
        entry.waiting = QueueEntry(entry, run, None, caller is None, "full", begins, caller=caller)
        self.queue.add(entry.waiting)

    def fill(self, now: float = 0.0) -> list[str]:
        """Begin as many runs as there are places, and return those that run."""
        while len(self.running) < 2 and (queued := self.queue.next(now)) is not None:
            self.queue.begin(queued)
            queued.entry.waiting, queued.entry.is_running = None, True
            name = queued.entry.config.name
            self.running[name] = queued
            self.began.append(name if queued.caller is None else f"{name} of {queued.caller}")
        return sorted(self.running)

    def end(self, name: str, now: float = 0.0) -> list[str]:
        run = self.running.pop(name)
        run.entry.is_running = False
        self.queue.end(run)
        return self.fill(now)

    def give_way(self, now: float) -> str | None:
        """Put the load back that must be stopped, and return its name."""
        if (run := self.queue.overdue(now)) is None:
            return None
        name = run.entry.config.name
        del self.running[name]
        run.entry.is_running = False
        self.queue.put_back(run)
        self.fill(now)
        return name


def test_without_callers_runs_begin_in_their_order() -> None:
    queue = Queue()
    for name in "abcd":
        queue.add(name)

    assert queue.fill() == ["a", "b"]
    assert queue.give_way(1000) is None
    assert queue.end("b") == ["a", "c"]
    assert queue.end("a") == ["c", "d"]


def test_a_scheduled_run_overtakes_what_a_key_has_queued() -> None:
    queue = Queue()
    for name in ("a1", "a2", "a3", "a4"):
        queue.add(name, "greedy")
    queue.fill()
    queue.add("scheduled")

    assert queue.end("a1") == ["a2", "scheduled"]


def test_a_scheduled_run_gets_a_place_of_a_key_that_loads_without_end() -> None:
    queue = Queue()
    for name in ("a1", "a2", "a3"):
        queue.add(name, "greedy")
    queue.fill()
    queue.add("scheduled")

    assert queue.give_way(5.0) is None  # It waits from now on.
    assert queue.give_way(5.0 + PATIENCE_S - 0.1) is None
    assert queue.give_way(5.0 + PATIENCE_S) == "a2"
    assert sorted(queue.running) == ["a1", "scheduled"]
    # What was stopped is the next of its key.
    assert queue.end("scheduled") == ["a1", "a2"]


def test_another_key_gets_a_place_of_a_key_that_has_both() -> None:
    queue = Queue()
    for name in ("a1", "a2", "a3", "a4"):
        queue.add(name, "greedy")
    queue.fill()
    queue.add("b", "other")

    queue.give_way(0.0)
    assert queue.give_way(PATIENCE_S) == "a2"
    assert sorted(queue.running) == ["a1", "b"]
    # The greedy key has a place, and nobody else waits: it gets the second one again.
    assert queue.end("b") == ["a1", "a2"]


def test_keys_take_turns() -> None:
    queue = Queue()
    for key in ("x", "y", "z"):
        for number in range(3):
            queue.add(f"{key}{number}", key)
    queue.fill()
    while queue.running:
        queue.end(next(iter(queue.running)))

    assert [began[-1] for began in queue.began] == list("xyz") * 3


def test_many_keys_cannot_keep_the_schedule_waiting() -> None:
    queue = Queue()
    for number in range(50):
        queue.add(f"k{number}", f"key-{number}")
    queue.fill()
    queue.add("scheduled")

    queue.give_way(0.0)
    assert queue.give_way(PATIENCE_S) == "k1"
    assert "scheduled" in queue.running
    assert "k0" in queue.running
    queue.add("again")
    assert queue.end("scheduled") == ["again", "k0"]


def test_the_schedule_cannot_keep_a_caller_waiting_for_more_than_what_was_due_before() -> None:
    queue = Queue()
    for name in ("s1", "s2", "s3"):
        queue.add(name)
    queue.fill()
    queue.add("a", "key")
    queue.add("s4")

    assert queue.end("s1") == ["s2", "s3"]
    assert queue.end("s2") == ["a", "s3"]


def test_a_load_that_is_being_published_is_not_stopped() -> None:
    queue = Queue()
    for name in ("a1", "a2"):
        queue.add(name, "greedy")
    queue.fill()
    queue.running["a2"].entry.is_publishing = True
    queue.add("scheduled")

    queue.give_way(0.0)
    assert queue.give_way(PATIENCE_S) == "a1"


def test_a_run_that_is_put_back_joins_the_one_that_was_requested_meanwhile() -> None:
    queue = Queue()
    queue.add("a1", "greedy")
    queue.add("a2", "greedy")
    queue.fill()
    stopped = queue.running["a2"].run
    queue.add("a2", "greedy")
    queue.add("scheduled")

    queue.give_way(0.0)
    assert queue.give_way(PATIENCE_S) == "a2"

    (waiting,) = queue.queue
    assert [run.id for _, run in waiting.recorded()] == [waiting.run.id, stopped.id]


def test_a_view_waits_for_what_the_clock_loads_and_not_for_what_another_key_loads() -> None:
    queue = Queue()
    queue.add("d", "key")
    queue.add("view", reads=["d"])
    assert queue.fill() == ["d", "view"]

    queue = Queue()
    queue.add("d")
    queue.add("view", reads=["d"])
    assert queue.fill() == ["d"]
    assert queue.end("d") == ["view"]


@pytest.mark.parametrize(
    ("queued", "caller", "skips", "expected"),
    [
        pytest.param("a", "b", False, "b", id="the later caller decides"),
        pytest.param(CLOCK, "b", False, "b", id="a caller decides about a scheduled run"),
        pytest.param("a", CLOCK, True, "a", id="the clock joins the request of a caller"),
    ],
)
def test_whose_a_joined_run_is(queued: str | None, caller: str | None, skips: bool, expected: str | None) -> None:
    queue = Queue()
    queue.add("d", queued)
    (run,) = queue.queue

    assert joined(run, caller, skips=skips) == expected


def test_a_view_that_a_caller_s_refresh_changed_is_the_schedule_s_once_the_schedule_needs_it() -> None:
    queue = Queue()
    queue.add("view", CLOCK)
    (run,) = queue.queue
    run.caller = "key"  # It skips an unchanged source, as a scheduled run does.

    assert joined(run, CLOCK, skips=True) is None
    assert joined(run, "other", skips=True) == "key"


@given(st.lists(st.tuples(st.sampled_from(["x", "y", "z", CLOCK]), st.booleans()), max_size=40))
def test_every_run_begins_and_the_schedule_waits_for_one_load_at_most(steps: list[tuple[str | None, bool]]) -> None:
    queue = Queue()
    for number, (caller, ends) in enumerate(steps):
        queue.add(f"d{number}", caller)
        queue.fill()
        if ends:
            queue.end(next(iter(queue.running)))
        # With a place for it, nothing waits; and callers never have both while a scheduled run begins.
        assert len(queue.running) == 2 or not list(queue.queue)
    while queue.running:
        queue.end(next(iter(queue.running)))

    assert len(queue.began) == len(steps)

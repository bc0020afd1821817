import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryengine.cancellation import Interruption
from queryengine.errors import EngineBusyError, QueryCancelledError
from queryengine.pool import statement_queue
from queryengine.pool.statement_queue import Admission, EntryState, QueueEntry, StatementQueue
from runtimeconf.model import QueryConfig
from tests.queryengine.asking import begin
from tests.queryengine.publishing import wait_until


@pytest.mark.parametrize(
    ("arrivals", "order"),
    [
        pytest.param("a0 a1 a2 a3", "a0 a1 a2 a3", id="a key is served in the order of arrival"),
        pytest.param("f0 f1 f2 f3 f4 b c", "f0 f1 b c f2 f3 f4", id="keys take turns"),
    ],
)
def test_the_order_of_statements(arrivals: str, order: str) -> None:
    queue = StatementQueue(slots=1, max_queued=16)
    admitted: list[str] = []
    entries = {name: queue.join(name.rstrip("0123456789"), partial(admitted.append, name)) for name in arrivals.split()}
    admitted.insert(0, arrivals.split(maxsplit=1)[0])  # at once, which is no decision on a queued entry

    for number in range(len(entries)):
        queue.leave(entries[admitted[number]])

    assert admitted == order.split()
    assert (queue.running, queue.waiting) == (0, 0)


def admission_of(*, several_keys: bool = True, **limits: Any) -> Admission:
    limits = {"workers": 1, "max_queued": 8, "queue_timeout_s": 60.0, **limits}
    return Admission(QueryConfig(**limits), several_keys=several_keys)


@pytest.mark.parametrize(
    ("slots", "key", "several_keys"),
    [
        pytest.param(1, "", True, id="without a key, one slot"),
        pytest.param(2, "", True, id="without a key"),
        pytest.param(2, "k", False, id="the only key"),
        pytest.param(2, "k", True, id="the only key in use"),
        pytest.param(1, "k", True, id="a key, one slot"),
    ],
)
def test_who_may_hold_every_slot(slots: int, key: str, several_keys: bool) -> None:
    admission = admission_of(workers=slots, max_queued=0, several_keys=several_keys)

    held = [admission.enter(key, Interruption()) for _ in range(slots)]

    assert admission.queue.running == slots
    with pytest.raises(EngineBusyError) as caught:
        admission.enter(key, Interruption())
    assert caught.value.retry_after_s >= 1
    for leave in held:
        leave()
        leave()
    assert admission.queue.running == 0
    admission.enter(key, Interruption())()


def test_a_slot_is_kept_for_another_key_only_while_that_is_active(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = StatementQueue(slots=2, max_queued=8)
    decided: list[str] = []

    def join(name: str) -> QueueEntry:
        return queue.join(name.rstrip("0123456789"), partial(decided.append, name))

    other = join("other")
    first, second = join("k1"), join("k2")
    assert second.state is EntryState.QUEUED, "another key runs a statement"
    queue.leave(other)
    queue.admit_due()
    assert second.state is EntryState.QUEUED, "another key has just run a statement"

    monkeypatch.setattr(statement_queue, "ALONE_S", 0.0)
    queue.admit_due()
    assert decided == ["k2"]
    assert queue.holder_of_all == "k"

    waiting, third = join("other"), join("k3")
    assert waiting.state is third.state is EntryState.QUEUED
    queue.leave(first)
    assert decided == ["k2", "other"], "the slot passes to the key that waits"
    assert not queue.holder_of_all
    queue.leave(second)
    assert decided == ["k2", "other", "k3"]
    assert join("k4").state is EntryState.QUEUED


def ignore() -> None:
    """Take a decision on a queued entry."""


def test_a_limit_of_its_own_holds_for_a_key_that_is_alone() -> None:
    queue = StatementQueue(slots=3, max_queued=8)

    entries = [queue.join("k", ignore, most=2) for _ in range(3)]

    assert [entry.state.name for entry in entries] == ["ADMITTED", "ADMITTED", "QUEUED"]


@given(st.lists(st.tuples(st.sampled_from(["enter", "leave", "wait"]), st.integers(0, 3)), max_size=60))
def test_a_key_that_comes_back_takes_a_slot_from_one_that_holds_all(steps: list[tuple[str, int]]) -> None:
    queue = StatementQueue(slots=3, max_queued=1000)
    entries: list[QueueEntry] = []
    with pytest.MonkeyPatch.context() as patch:
        for step, number in steps:
            patch.setattr(statement_queue, "ALONE_S", 0.0 if step == "wait" else 1000.0)
            queue.admit_due()
            if step == "enter":
                entries.append(queue.join(f"key {number}", ignore))
            elif step == "leave" and entries:
                queue.leave(entries.pop(number % len(entries)))

        patch.setattr(statement_queue, "ALONE_S", 1000.0)
        newcomer = queue.join("newcomer", ignore)
        for _ in range(3):  # What the scheduler does, as often as there are slots at most.
            if (holder := queue.holder_of_all) is None:
                break
            newest = [one for one in entries if one.key == holder and one.state is EntryState.ADMITTED][-1]
            queue.leave(newest)

    held = [one.key for one in entries if one.state is EntryState.ADMITTED]
    assert newcomer.state is EntryState.ADMITTED or len(set(held)) > 1, "one key never keeps another out"


def test_a_patient_statement_blocks_no_slot_for_another_key() -> None:
    queue = StatementQueue(slots=2, max_queued=8, patient_slots=1)
    decided: list[str] = []
    running = queue.join("flood", partial(decided.append, "running"))
    queue.join("flood", partial(decided.append, "patient"), patient=True)

    assert queue.join("other", partial(decided.append, "other")).state is EntryState.ADMITTED
    queue.join("third", partial(decided.append, "third"))
    queue.leave(running)

    assert decided == ["third"]


# Threads that wait.


def queued(admission: Admission, key: str = "", interruption: Interruption | None = None) -> Future[Callable[[], None]]:
    """Enter in a thread of its own, and wait until the statement is queued."""

    def arrived() -> int:
        return len(admission.queue._queues.get(key, ()))

    before = arrived()
    entered = begin(partial(admission.enter, key, interruption or Interruption()))
    wait_until(lambda: arrived() > before)
    return entered


def test_waiting_ends_after_the_queue_timeout() -> None:
    admission = admission_of(queue_timeout_s=0.2)
    admission.enter("", Interruption())
    started = time.monotonic()

    with pytest.raises(EngineBusyError):
        admission.enter("", Interruption())

    assert 0.2 <= time.monotonic() - started < 30
    assert admission.queue.waiting == 0


def test_an_evicted_thread_ends_its_wait_at_once() -> None:
    admission = admission_of(max_queued=2)
    leave = admission.enter("flood", Interruption())
    first, evicted = queued(admission, "flood"), queued(admission, "flood")

    other = queued(admission, "b")

    assert isinstance(evicted.exception(10), EngineBusyError)
    leave()
    first.result(10)()
    other.result(10)()


def test_a_cancelled_statement_leaves_the_queue_at_once_or_does_not_enter() -> None:
    admission = admission_of()
    leave = admission.enter("", Interruption())
    interruption = Interruption()
    first, second = queued(admission, interruption=interruption), queued(admission)

    interruption.stop(QueryCancelledError)

    assert isinstance(first.exception(10), QueryCancelledError)
    assert admission.queue.waiting == 1
    leave()
    with pytest.raises(QueryCancelledError):
        admission.enter("", interruption)
    second.result(10)()
    assert admission.queue.running == 0


def test_a_statement_cancelled_as_it_is_admitted_gives_its_slot_back() -> None:
    admission = admission_of()
    leave = admission.enter("", Interruption())

    class Late(Interruption):
        """Lets the slot be given back just before the cancellation arrives."""

        def attach(self, interrupt: Callable[[], None]) -> None:
            super().attach(interrupt)
            leave()
            self.stop(QueryCancelledError)

    with pytest.raises(QueryCancelledError):
        admission.enter("", Late())

    assert admission.queue.running == 0
    admission.enter("", Interruption())()


def test_a_waiting_thread_that_the_server_ends_leaves_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    admission = admission_of(max_queued=1)
    leave = admission.enter("one", Interruption())

    ours, wait = threading.get_ident(), threading.Event.wait

    def end(event: threading.Event, timeout: float | None = None) -> bool:
        if threading.get_ident() == ours:
            raise SystemExit(1)
        return wait(event, timeout)  # Threads of engines of other tests go on.

    with monkeypatch.context() as patch:
        patch.setattr(threading.Event, "wait", end)
        with pytest.raises(SystemExit):
            admission.enter("two", Interruption())

    assert admission.queue.waiting == 0
    leave()
    admission.enter("three", Interruption())()


def test_a_thread_takes_a_slot_from_a_key_that_holds_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statement_queue, "RECLAIM_S", 0.0)
    admission = admission_of(workers=2)
    older, newer = Interruption(), Interruption()
    admission.enter("flood", older)
    leave = admission.enter("flood", newer)

    newcomer = queued(admission, "other")
    wait_until(lambda: newer.stopped)

    assert not older.stopped
    with pytest.raises(EngineBusyError, match="another key needed one: try again in 1 s"):
        newer.check()
    leave()
    newcomer.result(10)()
    assert not older.stopped


def test_reserved_slots_are_for_short_statements() -> None:
    queue = StatementQueue(slots=4, max_queued=8, several_keys=False, reserved=2)
    decided: list[str] = []

    def join(name: str, *, short: bool = False) -> QueueEntry:
        return queue.join("k", partial(decided.append, name), short=short)

    long_ones = [join(f"long {number}") for number in range(3)]
    short_ones = [join(f"short {number}", short=True) for number in range(3)]

    assert [entry.state.name for entry in long_ones] == ["ADMITTED", "ADMITTED", "QUEUED"]
    assert [(entry.state.name, entry.is_reserve) for entry in short_ones] == [
        ("ADMITTED", True),
        ("ADMITTED", True),
        ("QUEUED", False),
    ]
    assert queue.needs_one_slot(short_ones[2])
    assert queue.needs_one_slot(long_ones[2])

    queue.leave(short_ones[0])
    assert decided == ["short 2"], "a reserved slot goes to the next short statement, not to the long one before it"
    queue.leave(long_ones[0])
    assert decided == ["short 2", "long 2"]
    for entry in (*long_ones, *short_ones):
        queue.leave(entry)
    assert join("short", short=True).is_reserve is False, "a short statement takes any other slot first"

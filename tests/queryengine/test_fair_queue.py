from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from queryengine.cancellation import Interruption
from queryengine.errors import EngineBusyError, QueryCancelledError, QueryError
from queryengine.pool.fair_queue import Admission, AdmittedStatement, EntryState, FairQueue, QueueEntry
from tests.queryengine.publishing import wait_until


class Caller:
    """A thread that asks for a slot; `order` collects who got one, in turn."""

    def __init__(self, admission: Admission, key: str, order: list[str], name: str = "") -> None:
        self.interruption = Interruption()
        self.error: QueryError | None = None
        self.slot: AdmittedStatement | None = None
        self._admission = admission
        self._key = key
        self._order = order
        self._name = name or key
        before = self._queued()
        self._thread = threading.Thread(target=self._enter, daemon=True)
        self._thread.start()
        wait_until(lambda: self._queued() > before or not self._thread.is_alive())

    def _queued(self) -> int:
        return len(self._admission._queue._queues.get(self._key, ()))

    def _enter(self) -> None:
        try:
            self.slot = self._admission.enter(self._key, self.interruption)
        except QueryError as exc:
            self.error = exc
        else:
            self._order.append(self._name)

    def ended(self) -> bool:
        self._thread.join(10)
        return not self._thread.is_alive()


@pytest.fixture
def order() -> list[str]:
    return []


@pytest.fixture
def make_caller(order: list[str]) -> Callable[..., Caller]:
    def make(admission: Admission, key: str, name: str = "") -> Caller:
        return Caller(admission, key, order, name)

    return make


def drain(holder: AdmittedStatement, callers: list[Caller]) -> None:
    """Let the waiting callers run one after the other, each until the next is in."""
    holder.leave()
    left = list(callers)
    while left:
        wait_until(lambda: any(caller.slot is not None for caller in left))
        done = next(caller for caller in left if caller.slot is not None)
        left.remove(done)
        assert done.ended()
        assert done.slot is not None
        done.slot.leave()


def test_slots_are_given_at_once_up_to_the_number_of_workers() -> None:
    admission = Admission(workers=3, max_queued=0, queue_timeout_s=1)

    slots = [admission.enter("", Interruption()) for _ in range(3)]

    assert admission.running == 3
    with pytest.raises(EngineBusyError) as caught:
        admission.enter("", Interruption())
    assert caught.value.retry_after_s >= 1
    for slot in slots:
        slot.leave()
        slot.leave()
    assert admission.running == 0
    admission.enter("", Interruption()).leave()


def test_a_key_is_served_in_the_order_of_arrival(make_caller: Callable[..., Caller], order: list[str]) -> None:
    admission = Admission(workers=1, max_queued=8, queue_timeout_s=10)
    holder = admission.enter("a", Interruption())
    callers = [make_caller(admission, "a", f"a{number}") for number in range(4)]

    drain(holder, callers)

    assert order == ["a0", "a1", "a2", "a3"]


def test_keys_take_turns_however_many_one_of_them_sends(make_caller: Callable[..., Caller], order: list[str]) -> None:
    admission = Admission(workers=1, max_queued=16, queue_timeout_s=10)
    holder = admission.enter("flood", Interruption())
    callers = [make_caller(admission, "flood", f"flood{number}") for number in range(4)]
    callers += [make_caller(admission, "b"), make_caller(admission, "c")]

    drain(holder, callers)

    assert order == ["flood0", "b", "c", "flood1", "flood2", "flood3"]


def test_a_key_leaves_the_last_of_several_slots_to_others(make_caller: Callable[..., Caller], order: list[str]) -> None:
    admission = Admission(workers=3, max_queued=8, queue_timeout_s=10)
    slots = [admission.enter("flood", Interruption()) for _ in range(2)]
    waiting = make_caller(admission, "flood")

    other = admission.enter("b", Interruption())

    assert admission.waiting == 1
    other.leave()
    assert admission.waiting == 1, "a slot that another key gave back does not lift the limit"
    slots[0].leave()
    assert waiting.ended()
    assert order == ["flood"]


@pytest.mark.parametrize("workers", [1, 2])
def test_callers_without_a_key_may_take_every_slot(workers: int) -> None:
    admission = Admission(workers=workers, max_queued=0, queue_timeout_s=1)

    for _ in range(workers):
        admission.enter("", Interruption())

    assert admission.running == workers


def test_the_only_key_there_is_may_take_every_slot() -> None:
    admission = Admission(workers=2, max_queued=0, queue_timeout_s=0.0, several_keys=False)

    slots = [admission.enter("k", Interruption()) for _ in range(2)]

    assert admission.running == 2
    for slot in slots:
        slot.leave()


def test_a_key_may_take_the_only_slot() -> None:
    admission = Admission(workers=1, max_queued=0, queue_timeout_s=1)

    admission.enter("a", Interruption())

    assert admission.running == 1


def test_a_patient_statement_waits_where_plenty_run() -> None:
    queue = FairQueue(slots=4, max_queued=8, several_keys=False, patient_slots=2)

    def ask(*, patient: bool) -> QueueEntry:
        return queue.join("k", lambda: None, patient=patient)

    running = [ask(patient=True), ask(patient=True)]
    first, second, hurried = (ask(patient=True) for _ in range(3))
    running.append(ask(patient=False))
    assert [entry.state for entry in running] == [EntryState.ADMITTED] * 3, "who has no patience does not wait"

    queue.hurry(hurried)
    assert hurried.state is EntryState.ADMITTED
    assert (queue.running, queue.waiting) == (4, 2)
    for entry in running[:2]:
        queue.leave(entry)
        assert first.state is EntryState.QUEUED, "as many as plenty still run"
    queue.leave(running[2])
    assert [entry.state for entry in (first, second)] == [EntryState.ADMITTED, EntryState.QUEUED]
    queue.leave(hurried)
    assert second.state is EntryState.ADMITTED
    assert (queue.running, queue.waiting) == (2, 0)


def test_a_patient_statement_keeps_no_slot_from_another_key() -> None:
    queue = FairQueue(slots=2, max_queued=8, patient_slots=1)
    running = queue.join("flood", lambda: None)
    patient = queue.join("flood", lambda: None, patient=True)

    assert queue.join("other", lambda: None).state is EntryState.ADMITTED
    waiting = queue.join("third", lambda: None)
    queue.leave(running)

    assert waiting.state is EntryState.ADMITTED
    assert patient.state is EntryState.QUEUED


def test_waiting_ends_after_the_queue_timeout() -> None:
    admission = Admission(workers=1, max_queued=8, queue_timeout_s=0.2)
    admission.enter("", Interruption())
    started = time.monotonic()

    with pytest.raises(EngineBusyError):
        admission.enter("", Interruption())

    assert 0.2 <= time.monotonic() - started < 30
    assert admission.waiting == 0


def test_a_cancelled_statement_leaves_the_queue_at_once(make_caller: Callable[..., Caller], order: list[str]) -> None:
    admission = Admission(workers=1, max_queued=8, queue_timeout_s=60)
    holder = admission.enter("", Interruption())
    first, second = make_caller(admission, "", "first"), make_caller(admission, "", "second")

    first.interruption.stop(QueryCancelledError)

    assert first.ended()
    assert isinstance(first.error, QueryCancelledError)
    assert admission.waiting == 1
    holder.leave()
    assert second.ended()
    assert order == ["second"]


def test_a_statement_cancelled_as_it_is_admitted_gives_its_slot_back() -> None:
    admission = Admission(workers=1, max_queued=8, queue_timeout_s=60)
    holder = admission.enter("", Interruption())
    interruption = Interruption()
    leaving = threading.Event()

    class Late(Interruption):
        """Lets the slot be given back just before the cancellation arrives."""

        def attach(self, interrupt: Callable[[], None]) -> None:
            super().attach(interrupt)
            holder.leave()
            self.stop(QueryCancelledError)
            leaving.set()

    with pytest.raises(QueryCancelledError):
        admission.enter("", Late())

    assert leaving.is_set()
    assert admission.running == 0
    admission.enter("", interruption).leave()


def test_a_stopped_statement_does_not_enter() -> None:
    admission = Admission(workers=1, max_queued=8, queue_timeout_s=60)
    interruption = Interruption()
    interruption.stop(QueryCancelledError)

    with pytest.raises(QueryCancelledError):
        admission.enter("", interruption)

    assert admission.running == 0


def test_a_full_queue_makes_room_for_a_key_that_waits_less(
    make_caller: Callable[..., Caller], order: list[str]
) -> None:
    admission = Admission(workers=1, max_queued=3, queue_timeout_s=60)
    holder = admission.enter("flood", Interruption())
    flood = [make_caller(admission, "flood", f"flood{number}") for number in range(3)]

    other = make_caller(admission, "b")

    assert flood[2].ended()
    assert isinstance(flood[2].error, EngineBusyError)
    with pytest.raises(EngineBusyError):
        admission.enter("flood", Interruption())
    with pytest.raises(EngineBusyError):
        admission.enter("b", Interruption())
    drain(holder, [*flood[:2], other])
    assert order == ["flood0", "b", "flood1"]


def test_a_waiter_that_the_server_ends_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    admission = Admission(workers=1, max_queued=1, queue_timeout_s=60)
    slot = admission.enter("one", Interruption())

    def end(_event: threading.Event, _timeout: float | None = None) -> bool:
        raise SystemExit(1)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Event, "wait", end)
        with pytest.raises(SystemExit):
            admission.enter("two", Interruption())

    assert admission.waiting == 0
    slot.leave()
    admission.enter("three", Interruption()).leave()

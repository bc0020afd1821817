"""
The queue for execution slots, which decides how many statements run, how many wait, and which one runs next.

An execution slot is the right to run one statement. Waiting keys get slots round robin. Within a key, statements are
served in order of arrival. With two or more slots, a key may hold all of them only while it is alone: no other key has
used a slot or waited for one within `ALONE_S`. A flood of statements from one key therefore leaves a slot for the next
statement of another key. If a key returns after that time and finds that another key holds every slot, it waits for at
most `reclaim_s`. Then the newest statement of the other key is stopped. Callers without a key are exempt, because with
authentication off there is nobody to protect.

A stopped statement is repeated if none of its rows have left the process. Reclaiming a slot therefore costs its caller
time, but not the result. Each alternative is worse for one of the two keys. Waiting until a statement ends would refuse
the other key, because the queue timeout is shorter than the time limit. Always keeping a slot free would refuse
statements of the first key although a worker is idle.

`StatementQueue` makes the decisions and is not thread-safe. The broker calls it directly. `Admission` makes threads
wait for its decisions. `RateLimits` counts the requests within a minute.
"""

import enum
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from queryengine.cancellation import Interruption
from queryengine.engine import Allowance
from queryengine.errors import EngineBusyError
from runtimeconf.model import QueryConfig

#: A key may hold every slot if no other key has used or requested a slot for this time.
ALONE_S = 10.0
#: The maximum wait of a statement before it takes a slot from a key that holds every slot.
RECLAIM_S = 2.0
#: The same as a fraction of the queue timeout, because a stopped statement takes some time to end.
_RECLAIM_SHARE = 0.25

#: Seconds between two checks of a thread that waits for a slot.
_LOOK_S = 0.1


def reclaim_s(queue_timeout_s: float) -> float:
    """Return the seconds that a statement waits before it takes a slot from a key that holds every slot."""
    return min(RECLAIM_S, _RECLAIM_SHARE * queue_timeout_s)


class EntryState(enum.Enum):
    """The state of a queue entry. It changes only in this order."""

    QUEUED = enum.auto()
    ADMITTED = enum.auto()
    EVICTED = enum.auto()  # to make room for another key
    CLOSED = enum.auto()


class QueueEntry(Struct, eq=False):
    """
    A statement in a `StatementQueue`. *on_decision* is called when a queued entry is admitted or evicted.

    A *patient* entry can wait, because its process will soon have its own free slot. A *short* entry is expected to end
    soon. It `is_reserve` if it holds a slot that is reserved for short entries.
    """

    key: str
    on_decision: Callable[[], None]
    patient: bool
    short: bool = False
    state: EntryState = EntryState.QUEUED
    is_reserve: bool = False


class StatementQueue:
    """
    A queue in which at most *slots* statements run at once and at most *max_queued* wait.

    With *several_keys*, a key may hold the last slot only while it is alone, so that the next statement of another key
    finds a slot. If the queue is full and a key with fewer queued statements arrives, the newest entry of the longest
    queue is evicted. A patient entry is queued if *patient_slots* statements are running (default: *slots*). The last
    *reserved* slots are only for short entries.
    """

    def __init__(
        self,
        *,
        slots: int,
        max_queued: int,
        several_keys: bool = True,
        patient_slots: int | None = None,
        reserved: int = 0,
    ) -> None:
        self.running = 0
        self.waiting = 0
        self._slots = slots
        self._unreserved = slots - reserved
        self._in_reserve = 0
        self._patient_slots = slots if patient_slots is None else patient_slots
        self._slots_per_key = max(1, slots - 1) if several_keys else slots
        self._max_queued = max_queued
        self._running: dict[str, int] = {}
        self._most: dict[str, int] = {}  # for keys with their own limit
        self._used_at: dict[str, float] = {}  # when a key last entered or left, for some time; the latest is last
        self._queues: OrderedDict[str, deque[QueueEntry]] = OrderedDict()  # in round-robin order; none is empty

    def join(
        self,
        key: str,
        on_decision: Callable[[], None],
        *,
        patient: bool = False,
        short: bool = False,
        most: int | None = None,
    ) -> QueueEntry:
        """
        Request a slot for a statement of *key* ("" if there is no key). At most *most* of its statements run at once.

        The entry is admitted immediately or queued. *on_decision* is called during a later call of this object, when
        the queued entry is admitted or evicted.

        Raises:
            EngineBusyError: The queue is full.
        """
        entry = QueueEntry(key, on_decision, patient, short)
        if most is not None:
            self._most[key] = most
        self._use(key)
        self.admit_due()
        # No queued entry can use a slot that is free now, because each is patient or its key is at its limit.
        if self._fits(entry):
            self._admit(entry)
            return entry
        if self.waiting >= self._max_queued:
            self._make_room(key)
        self._queues.setdefault(key, deque()).append(entry)
        self.waiting += 1
        return entry

    def leave(self, entry: QueueEntry) -> None:
        """Free the slot of *entry*, or remove it from the queue. Idempotent."""
        state, entry.state = entry.state, EntryState.CLOSED
        if state in (EntryState.QUEUED, EntryState.ADMITTED):
            self._use(entry.key)
        if state is EntryState.QUEUED:
            self._remove(entry)
        elif state is EntryState.ADMITTED:
            self.running -= 1
            self._in_reserve -= entry.is_reserve
            self._running[entry.key] -= 1
            if not self._running[entry.key]:
                del self._running[entry.key]
            self._admit_queued()

    def hurry(self, entry: QueueEntry) -> None:
        """Make *entry* no longer patient."""
        entry.patient = False
        self._admit_queued()

    def admit_due(self) -> None:
        """Admit queued entries that could not run before, because their key may be the only one now."""
        if self.waiting:
            self._admit_queued()

    @property
    def holder_of_all(self) -> str | None:
        """The key that holds every slot, which is too many if other keys need one; usually None."""
        return next((key for key, count in self._running.items() if key and count > self._slots_per_key), None)

    def may_run(self, key: str) -> bool:
        """Return True if *key* holds fewer slots than its limit."""
        running = self._running.get(key, 0)
        is_within = running < self._slots_per_key or (running < self._slots and self._is_alone(key))
        return not key or (is_within and running < self._most.get(key, self._slots))

    def needs_one_slot(self, entry: QueueEntry) -> bool:
        """Return True if one freed slot would be enough to run *entry*, ignoring the limit of its key."""
        unreserved = self.running - self._in_reserve
        return self.running <= self._limit(entry) and (entry.short or unreserved <= self._unreserved)

    def _is_alone(self, key: str) -> bool:
        """Return True if no other key uses a slot, waits for one, or did so within `ALONE_S`."""
        if any(other not in ("", key) for keys in (self._running, self._queues) for other in keys):
            return False
        last = next((used_at for other, used_at in reversed(self._used_at.items()) if other != key), None)
        return last is None or time.monotonic() >= last + ALONE_S

    def _use(self, key: str) -> None:
        if not key:
            return
        now = time.monotonic()
        self._used_at.pop(key, None)
        self._used_at[key] = now
        while (oldest := next(iter(self._used_at))) != key and now >= self._used_at[oldest] + ALONE_S:
            del self._used_at[oldest]

    def _fits(self, entry: QueueEntry) -> bool:
        is_room = entry.short or self.running - self._in_reserve < self._unreserved
        return is_room and self.running < self._limit(entry) and self.may_run(entry.key)

    def _limit(self, entry: QueueEntry) -> int:
        return self._patient_slots if entry.patient else self._slots

    def _admit(self, entry: QueueEntry) -> None:
        entry.is_reserve = self.running - self._in_reserve >= self._unreserved
        self._in_reserve += entry.is_reserve
        self.running += 1
        self._running[entry.key] = self._running.get(entry.key, 0) + 1
        entry.state = EntryState.ADMITTED

    def _admit_queued(self) -> None:
        while self.running < self._slots and (entry := self._next()) is not None:
            self._remove(entry)
            if entry.key in self._queues:
                self._queues.move_to_end(entry.key)  # the end of the round
            self._admit(entry)
            entry.on_decision()

    def _next(self) -> QueueEntry | None:
        return next((entry for queue in self._queues.values() for entry in queue if self._fits(entry)), None)

    def _make_room(self, key: str) -> None:
        longest = max(self._queues, key=lambda other: len(self._queues[other]), default=key)
        if len(self._queues.get(longest, ())) <= len(self._queues.get(key, ())) + 1:
            raise EngineBusyError
        evicted = self._queues[longest][-1]
        self._remove(evicted)
        evicted.state = EntryState.EVICTED
        evicted.on_decision()

    def _remove(self, entry: QueueEntry) -> None:
        queue = self._queues[entry.key]
        queue.remove(entry)
        self.waiting -= 1
        if not queue:
            del self._queues[entry.key]


class Admission:
    """Makes threads wait for a slot in a `queue` with *limits*."""

    def __init__(self, limits: QueryConfig, *, several_keys: bool = True) -> None:
        self._lock = threading.Lock()
        self.queue = StatementQueue(slots=limits.workers, max_queued=limits.max_queued, several_keys=several_keys)
        self._queue_timeout_s = limits.queue_timeout_s
        self._running: dict[QueueEntry, Interruption] = {}  # statements with a key, in the order of admission

    def enter(
        self, key: str, interruption: Interruption, most: int | None = None, timeout_s: float | None = None
    ) -> Callable[[], None]:
        """
        Wait for a slot for a statement of *key* ("" if there is no key). At most *most* of its statements run at once.

        The wait takes at most *timeout_s* seconds, by default `queue_timeout`.

        Returns:
            The function that frees the slot. It can be called repeatedly, from any thread.

        Raises:
            EngineBusyError: The queue is full, or the wait took too long.
            QueryError: The reason why *interruption* was stopped in the meantime.
        """
        interruption.check()
        woken = threading.Event()
        with self._lock:
            entry = self.queue.join(key, woken.set, most=most)
        if entry.state is not EntryState.ADMITTED:
            self._wait(entry, woken, interruption, self._queue_timeout_s if timeout_s is None else timeout_s)
        if key:
            with self._lock:
                if entry.state is EntryState.ADMITTED:
                    self._running[entry] = interruption
        return partial(self._leave, entry)

    def _wait(self, entry: QueueEntry, woken: threading.Event, interruption: Interruption, timeout_s: float) -> None:
        interruption.attach(woken.set)
        began = time.monotonic()
        try:
            while (waited_s := time.monotonic() - began) < timeout_s:
                if woken.wait(min(_LOOK_S, timeout_s - waited_s)):
                    break
                with self._lock:
                    self.queue.admit_due()
                    if waited_s >= reclaim_s(self._queue_timeout_s):
                        self._reclaim(entry)
        except BaseException:  # for example SystemExit, with which a server ends the waiting thread
            self._leave(entry)
            raise
        finally:
            interruption.detach()
        with self._lock:
            if entry.state is EntryState.ADMITTED and not interruption.stopped:
                return
            self.queue.leave(entry)
        interruption.check()
        raise EngineBusyError

    def _reclaim(self, waiting: QueueEntry) -> None:
        """Stop the newest statement of a key that holds every slot, unless one of its statements is already stopped."""
        holder = self.queue.holder_of_all
        if holder in (None, waiting.key) or not waiting.key:
            return
        held = [interruption for entry, interruption in self._running.items() if entry.key == holder]
        if held and not any(one.stopped for one in held):
            held[-1].stop(partial(EngineBusyError, reclaimed=True))

    def _leave(self, entry: QueueEntry) -> None:
        with self._lock:
            self._running.pop(entry, None)
            self.queue.leave(entry)


#: The seconds over which requests are counted.
WINDOW_S = 60


class RateLimits:
    """
    The requests of each key within the last minute, counted for all processes of a runtime. Thread-safe.

    At most `requests_per_minute` requests are allowed in any 60 seconds. They are counted per second, so a request is
    forgotten up to one second late. A refused request does not count. *clock* returns seconds, like `time.monotonic`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        #: The number of requests in each second by key, oldest first.
        self._counts: dict[str, dict[int, int]] = {}

    def take(self, key: str, per_minute: int, instead_of: int | None = None) -> Allowance:
        """
        Count a request of *key*, unless it made *per_minute* requests within the last minute.

        *instead_of* is the `counted_at` of an earlier part of the same request. That part is forgotten, so that a
        request with several calls counts once, at its last call.
        """
        second = int(self._clock())
        with self._lock:
            counts = self._counts.setdefault(key, {})
            for old in [one for one in counts if one < second - WINDOW_S]:
                del counts[old]
            if instead_of is not None and instead_of in counts:
                counts[instead_of] -= 1
                if not counts[instead_of]:
                    del counts[instead_of]
            used = sum(counts.values())
            if is_allowed := used < per_minute:
                used += 1
                counts[second] = counts.get(second, 0) + 1
            reset_s = next(iter(counts)) + WINDOW_S + 1 - second
        return Allowance(
            limit=per_minute,
            remaining=max(0, per_minute - used),
            reset_s=reset_s,
            is_allowed=is_allowed,
            counted_at=second,
        )

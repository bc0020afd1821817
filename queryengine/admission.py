"""
Who runs next: so many statements at once, so many waiting, and no caller at the cost of another.

Places are given round robin over the keys that wait, first come first served within a key. With two or more places
a key never holds all of them, so that a flood of one key leaves the next caller of another a place. Callers without
a key are not held to that: with authentication off there is nobody else to keep a place for.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

from queryengine.cancellation import Interruption
from queryengine.errors import EngineBusyError


@dataclass(eq=False, slots=True)
class _Waiter:
    """A statement in the queue; `woken` is set when it has a place, is turned away or is stopped."""

    key: str
    woken: threading.Event = field(default_factory=threading.Event)
    admitted: bool = False


class Place:
    """The right to run one statement."""

    def __init__(self, admission: Admission, key: str) -> None:
        self._admission = admission
        self._key = key
        self._lock = threading.Lock()
        self._held = True

    def leave(self) -> None:
        """Give the place to whoever is next. More than one call is harmless, from any thread."""
        with self._lock:
            held, self._held = self._held, False
        if held:
            self._admission._leave(self._key)  # noqa: SLF001 - the other half of this class


class Admission:
    """
    At most *workers* statements at once; at most *max_queued* wait, each for *queue_timeout_s* seconds at most.

    With *several_keys* a key never holds the last place, so that another key's next statement finds one.
    When the queue is full, a key with fewer statements waiting takes the place of the newest of the key with most.
    """

    def __init__(self, *, workers: int, max_queued: int, queue_timeout_s: float, several_keys: bool = True) -> None:
        self._lock = threading.Lock()
        self._free = workers
        self._per_key = max(1, workers - 1) if several_keys else workers
        self._max_queued = max_queued
        self._queue_timeout_s = queue_timeout_s
        self._running: dict[str, int] = {}
        self._queues: dict[str, deque[_Waiter]] = {}  # in the order of the round; no queue in it is empty

    @property
    def running(self) -> int:
        """How many statements hold a place."""
        with self._lock:
            return sum(self._running.values())

    @property
    def waiting(self) -> int:
        """How many statements are in the queue."""
        with self._lock:
            return self._waiting()

    def enter(self, key: str, interruption: Interruption) -> Place:
        """
        Wait for a place for a statement of *key*, which is "" when the caller has none.

        Raises:
            EngineBusyError: The queue is full, or the wait was too long.
            QueryError: *interruption* was stopped meanwhile; its reason.
        """
        interruption.check()
        with self._lock:
            if self._free and self._may_run(key) and not self._queues.get(key):
                # Whoever waits now waits for a place of its own key, not for this one.
                self._take(key)
                return Place(self, key)
            waiter = self._join(key)
        self._wait(waiter, interruption)
        return Place(self, key)

    def _wait(self, waiter: _Waiter, interruption: Interruption) -> None:
        interruption.attach(waiter.woken.set)
        try:
            waiter.woken.wait(self._queue_timeout_s)
        finally:
            interruption.detach()
        with self._lock:
            if waiter.admitted and not interruption.stopped:
                return
            if waiter.admitted:
                self._give_back(waiter.key)
            else:
                self._drop(waiter)
        interruption.check()
        raise EngineBusyError

    def _leave(self, key: str) -> None:
        with self._lock:
            self._give_back(key)

    # Everything below is called under the lock.

    def _waiting(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def _may_run(self, key: str) -> bool:
        return not key or self._running.get(key, 0) < self._per_key

    def _take(self, key: str) -> None:
        self._free -= 1
        self._running[key] = self._running.get(key, 0) + 1

    def _give_back(self, key: str) -> None:
        self._free += 1
        self._running[key] -= 1
        if not self._running[key]:
            del self._running[key]
        self._admit_next()

    def _admit_next(self) -> None:
        while self._free:
            key = next((key for key in self._queues if self._may_run(key)), None)
            if key is None:
                return
            queue = self._queues.pop(key)
            waiter = queue.popleft()
            if queue:
                self._queues[key] = queue  # at the end of the round
            self._take(key)
            waiter.admitted = True
            waiter.woken.set()

    def _join(self, key: str) -> _Waiter:
        if self._waiting() >= self._max_queued:
            self._make_room(key)
        waiter = _Waiter(key)
        self._queues.setdefault(key, deque()).append(waiter)
        return waiter

    def _make_room(self, key: str) -> None:
        greediest = max(self._queues, key=lambda other: len(self._queues[other]), default=key)
        if len(self._queues.get(greediest, ())) <= len(self._queues.get(key, ())) + 1:
            raise EngineBusyError
        turned_away = self._queues[greediest][-1]
        self._drop(turned_away)
        turned_away.woken.set()

    def _drop(self, waiter: _Waiter) -> None:
        queue = self._queues.get(waiter.key, deque())
        if waiter in queue:
            queue.remove(waiter)
            if not queue:
                del self._queues[waiter.key]

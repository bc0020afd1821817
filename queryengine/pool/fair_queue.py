"""
Who runs next: so many statements at once, so many waiting, and no caller at the cost of another.

Places are given round robin over the keys that wait, first come first served within a key. With two or more places
a key never holds all of them, so that a flood of one key leaves the next caller of another a place. Callers without
a key are not held to that: with authentication off there is nobody else to keep a place for.

`Turns` decides, for one thread at a time; the broker asks it directly. `Admission` lets threads wait for it.
"""

from __future__ import annotations

import enum
import threading
from collections import OrderedDict, deque
from collections.abc import Callable

from queryengine.cancellation import Interruption
from queryengine.errors import EngineBusyError


class Standing(enum.Enum):
    """Where a statement stands. It only ever moves down this list."""

    WAITING = enum.auto()
    ADMITTED = enum.auto()
    TURNED_AWAY = enum.auto()  # to make room for another key
    GONE = enum.auto()


class Ticket:
    """
    A statement before `Turns`: what it was told so far. *decided* is called when it need wait no longer.

    A *patient* one has a turn elsewhere as well, before long.
    """

    __slots__ = ("decided", "key", "patient", "standing")

    def __init__(self, key: str, decided: Callable[[], None], *, patient: bool = False) -> None:
        self.key = key
        self.decided = decided
        self.patient = patient
        self.standing = Standing.WAITING


class Turns:
    """
    At most *workers* statements at once; at most *max_queued* wait.

    With *several_keys* a key never holds the last place, so that another key's next statement finds one.
    When the queue is full, a key with fewer statements waiting takes the place of the newest of the key with most.
    A patient statement waits as soon as *plenty* run (as many as there are *workers*, unless given).
    """

    def __init__(self, *, workers: int, max_queued: int, several_keys: bool = True, plenty: int | None = None) -> None:
        self.running = 0
        self.waiting = 0
        self._workers = workers
        self._plenty = workers if plenty is None else plenty
        self._per_key = max(1, workers - 1) if several_keys else workers
        self._max_queued = max_queued
        self._running: dict[str, int] = {}
        self._queues: OrderedDict[str, deque[Ticket]] = OrderedDict()  # in the order of the round; none is empty

    def ask(self, key: str, decided: Callable[[], None], *, patient: bool = False) -> Ticket:
        """
        Ask for a place for a statement of *key*, which is "" when the caller has none. It may be *patient*.

        The answer is admitted, or waits; then *decided* is called, within another call to this object, once it is
        admitted or turned away.

        Raises:
            EngineBusyError: The queue is full.
        """
        ticket = Ticket(key, decided, patient=patient)
        # Whoever waits now waits for a place that is not free, or for one of its own key, or has patience.
        if self._has_place_for(ticket):
            self._admit(ticket)
            return ticket
        if self.waiting >= self._max_queued:
            self._make_room(key)
        self._queues.setdefault(key, deque()).append(ticket)
        self.waiting += 1
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Give the place of *ticket* to whoever is next, or take it out of the queue. Twice is harmless."""
        standing, ticket.standing = ticket.standing, Standing.GONE
        if standing is Standing.WAITING:
            self._drop(ticket)
        elif standing is Standing.ADMITTED:
            self._give_back(ticket.key)

    def hurry(self, ticket: Ticket) -> None:
        """Have the statement of *ticket* be patient no longer."""
        ticket.patient = False
        self._admit_waiting()

    def may_run(self, key: str) -> bool:
        """Whether *key* does not hold all places that it may."""
        return not key or self._running.get(key, 0) < self._per_key

    def waits_for_one(self, ticket: Ticket) -> bool:
        """Whether one place that is given back is enough for *ticket*, unless its key holds all that it may."""
        return self.running <= self._most(ticket)

    def _has_place_for(self, ticket: Ticket) -> bool:
        return self.running < self._most(ticket) and self.may_run(ticket.key)

    def _most(self, ticket: Ticket) -> int:
        return self._plenty if ticket.patient else self._workers

    def _admit(self, ticket: Ticket) -> None:
        self.running += 1
        self._running[ticket.key] = self._running.get(ticket.key, 0) + 1
        ticket.standing = Standing.ADMITTED

    def _give_back(self, key: str) -> None:
        self.running -= 1
        self._running[key] -= 1
        if not self._running[key]:
            del self._running[key]
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        while self.running < self._workers and (ticket := self._next()) is not None:
            self._drop(ticket)
            if ticket.key in self._queues:
                self._queues.move_to_end(ticket.key)  # the end of the round
            self._admit(ticket)
            ticket.decided()

    def _next(self) -> Ticket | None:
        return next(
            (ticket for queue in self._queues.values() for ticket in queue if self._has_place_for(ticket)), None
        )

    def _make_room(self, key: str) -> None:
        greediest = max(self._queues, key=lambda other: len(self._queues[other]), default=key)
        if len(self._queues.get(greediest, ())) <= len(self._queues.get(key, ())) + 1:
            raise EngineBusyError
        turned_away = self._queues[greediest][-1]
        self._drop(turned_away)
        turned_away.standing = Standing.TURNED_AWAY
        turned_away.decided()

    def _drop(self, ticket: Ticket) -> None:
        queue = self._queues[ticket.key]
        queue.remove(ticket)
        self.waiting -= 1
        if not queue:
            del self._queues[ticket.key]


def _nobody_waits() -> None:
    """Stand for the event of a statement that is admitted at once, as most are."""


class Place:
    """The right to run one statement."""

    def __init__(self, admission: Admission, ticket: Ticket) -> None:
        self._admission = admission
        self._ticket = ticket

    def leave(self) -> None:
        """Give the place to whoever is next. More than one call is harmless, from any thread."""
        self._admission._leave(self._ticket)  # noqa: SLF001 - the other half of this class


class Admission:
    """`Turns` for threads, which wait *queue_timeout_s* seconds at most."""

    def __init__(self, *, workers: int, max_queued: int, queue_timeout_s: float, several_keys: bool = True) -> None:
        self._lock = threading.Lock()
        self._turns = Turns(workers=workers, max_queued=max_queued, several_keys=several_keys)
        self._queue_timeout_s = queue_timeout_s

    @property
    def running(self) -> int:
        """How many statements hold a place."""
        return self._turns.running

    @property
    def waiting(self) -> int:
        """How many statements are in the queue."""
        return self._turns.waiting

    def enter(self, key: str, interruption: Interruption) -> Place:
        """
        Wait for a place for a statement of *key*, which is "" when the caller has none.

        Raises:
            EngineBusyError: The queue is full, or the wait was too long.
            QueryError: *interruption* was stopped meanwhile; its reason.
        """
        interruption.check()
        with self._lock:
            ticket = self._turns.ask(key, _nobody_waits)
            admitted = ticket.standing is Standing.ADMITTED
            if not admitted:
                woken = threading.Event()
                ticket.decided = woken.set
        if not admitted:
            self._wait(ticket, woken, interruption)
        return Place(self, ticket)

    def _wait(self, ticket: Ticket, woken: threading.Event, interruption: Interruption) -> None:
        interruption.attach(woken.set)
        try:
            woken.wait(self._queue_timeout_s)
        except BaseException:  # The server ends the thread that waits, by SystemExit for example.
            self._leave(ticket)
            raise
        finally:
            interruption.detach()
        with self._lock:
            if ticket.standing is Standing.ADMITTED and not interruption.stopped:
                return
            self._turns.leave(ticket)
        interruption.check()
        raise EngineBusyError

    def _leave(self, ticket: Ticket) -> None:
        with self._lock:
            self._turns.leave(ticket)

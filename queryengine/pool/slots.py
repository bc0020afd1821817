"""
The execution slots of a client process: which statements hold or wait for slots, and each slot's worker connection.

A slot is the right to run one statement. The broker grants it for a key, and the statement connects to a worker. When
the statement ends normally, the next statement of that key takes over the slot and the connection. A process that
serves many short statements therefore requests a slot only once, and reports the use of the slot only every `REPORT_S`.
The broker recalls a slot that is needed elsewhere. A slot that has been unused for `KEEP_S` is returned.
"""

import logging
import math
import re
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct, field

from queryengine.bounded_dict import BoundedDict
from queryengine.cancellation import Reason
from queryengine.errors import EngineBusyError, QueryCancelledError, QueryError
from queryengine.pool import messages
from queryengine.pool.broker_client import BrokerLink, reclaimed, stopping, unreachable
from queryengine.pool.messages import (
    Admitted,
    Busy,
    Cancelled,
    Enter,
    Hurry,
    Leave,
    Recall,
    Reclaimed,
    Report,
    Reported,
    Runs,
    Said,
    Stopping,
)

#: A statement that ran for less than this number of milliseconds was short.
SHORT_MS: Final = 1000.0

_REMEMBERED: Final = 10_000
_CHARACTERS: Final = 4096
#: Statements that differ only in these parts are alike: string and number literals, and white space.
_LITERALS: Final = re.compile(r"'[^']*'|\b[0-9][0-9.eE]*\b|\s+")


class Durations:
    """The statements that ran to their end, and whether each was short. Thread-safe."""

    def __init__(self) -> None:
        self._short: BoundedDict[int, bool] = BoundedDict(_REMEMBERED)

    def learn(self, sql: str, run_ms: float) -> None:
        """Remember that *sql* ran for *run_ms* milliseconds; infinity if it did not end."""
        self._short[_alike(sql)] = run_ms < SHORT_MS

    def is_short(self, sql: str) -> bool:
        """Return whether a statement like *sql* was short the last time."""
        return self._short.get(_alike(sql), False)


def _alike(sql: str) -> int:
    return hash(_LITERALS.sub(" ", sql[:_CHARACTERS]))


logger = logging.getLogger(__name__)

#: The name of the workers' socket in the engine's directory.
ENGINE_SOCKET = "engine.sock"
#: Seconds that a statement waits for a slot that its process already has before it requests another one. Only one
#: waiting statement per key requests a slot at a time.
ASK_S = 0.01
#: Each waiting statement, and each new use of a slot, is reported to the broker within this time.
REPORT_S = 0.05
#: An unused slot is returned after this time.
KEEP_S = 0.1
#: Seconds between two ticks while the process holds no slot.
_IDLE_TICK_S = 1.0

#: The reason to stop a statement, by the type of the broker's message.
_REASONS: dict[type[Said], Reason] = {Stopping: stopping, Cancelled: QueryCancelledError, Reclaimed: reclaimed}


class Statement(Protocol):
    """The part of a statement (`ClientResult`) that the pool uses. The pool sets `slot` with its lock held."""

    query_id: str
    key: str
    slot: "Slot | None"

    def entry(self) -> messages.Statement:
        """Return the description of the statement for the broker."""

    def wake(self) -> None:
        """Continue, because there is a slot. Called with the pool's lock held."""

    def refused(self, error: QueryError) -> None:
        """Continue without a slot. Called with the pool's lock held."""

    def stop(self, reason: Reason) -> None:
        """Stop because of *reason*."""

    def check_time(self, now: float) -> None:
        """End the statement if it takes too long."""


class Slot(Struct, eq=False):
    """
    The right to run one statement of `key`.

    `connection` is the connection to the worker that waits for the next statement or runs the current one. It is None
    before the first statement. A slot with a statement belongs to that statement. Other slots belong to the holder of
    the pool's lock.
    """

    number: int
    key: str
    connection: socket.socket | None = None
    statement: Statement | None = None
    recalled: bool = False
    unreported: bool = False  # whether its use has changed since the last report
    since: float = 0.0  # when it was last taken or left
    reported_at: float = field(default_factory=time.monotonic)


class _Waiter(Struct, eq=False):
    """A statement that waits for a slot."""

    statement: Statement
    since: float = field(default_factory=time.monotonic)
    is_announced: bool = False  # to the broker
    is_patient: bool = False  # as announced


class SlotPool:
    """The slots and the statements of this process, for the engine with its sockets in *directory*. Thread-safe."""

    def __init__(self, directory: Path, durations: Durations | None = None) -> None:
        """Connect to the engine. With *durations*, the broker is told which statements were short before."""
        self.lock = threading.Lock()  # also guards the statements; nothing under it blocks
        self.durations = durations
        self.engine_path = str(directory / ENGINE_SOCKET)
        self.link = BrokerLink(directory, self)
        self._statements: dict[str, Statement] = {}
        self._waiters: dict[str, dict[str, _Waiter]] = {}  # by key and query id, longest wait first; none is empty
        self._slots: dict[int, Slot] = {}
        self._unused: dict[str, list[Slot]] = {}  # by key
        self._reusable: dict[str, int] = {}  # number of slots by key that are not recalled
        self._reused_at: dict[str, float] = {}  # when a reusable slot was last passed on, by key
        self._asked_at: dict[str, float] = {}  # when another slot was last requested while slots rotate, by key
        self._next_tick = math.inf
        self.link.start()

    def enter(self, statement: Statement) -> None:
        """
        Request a slot for *statement*. The decision may be immediate. Until *statement* leaves, the pool calls it.

        If another statement of this process has the same `query_id`, the id of *statement* is replaced.

        Raises:
            EngineUnavailableError: There is no engine, or the pool is closed.
        """
        self.link.require()
        with self.lock:
            if not statement.query_id or statement.query_id in self._statements:
                statement.query_id = uuid.uuid4().hex
            unused = self._unused.get(statement.key)
            if unused and not self.link.is_stopping:
                self._statements[statement.query_id] = statement
                self._assign(unused.pop(), statement)
                statement.wake()
                return
            waiter = _Waiter(statement)
            # If the process has a slot of this key, the slot will soon be free. Otherwise, inform the broker now.
            waits_here = self._reusable.get(statement.key) and not self.link.is_stopping
            if not waits_here and not self._announce(waiter, patient=False):
                raise unreachable()
            self._statements[statement.query_id] = statement
            self._waiters.setdefault(statement.key, {})[statement.query_id] = waiter
            if self._next_tick > waiter.since + ASK_S:
                self._tick_soon()

    def leave(self, statement: Statement, *, kill: bool = False) -> None:
        """
        Pass on, keep or return the slot of *statement*, or end its wait. Never fails.

        The connection is passed on with the slot, so a worker must be waiting on it, or it must be None. With *kill*,
        the worker that runs the statement is killed. A statement that has not entered or has already left is ignored.
        """
        closing = None
        with self.lock:
            if self._statements.get(statement.query_id) is not statement:
                return
            del self._statements[statement.query_id]
            slot, statement.slot = statement.slot, None
            if slot is None:
                waiter = self._take_waiter(statement.key, statement.query_id)
                if waiter is not None and waiter.is_announced:
                    self.link.say(Leave(id=statement.query_id))
                return
            slot.statement = None
            if self._slots.get(slot.number) is not slot:  # The broker that granted the slot is gone.
                closing, slot.connection = slot.connection, None
            elif slot.connection is None or slot.recalled or self.link.is_stopping:
                closing = self._give_back(slot, kill=statement.query_id if kill else "")
            elif (waiter := self._take_waiter(slot.key)) is not None:
                self._pass_on(slot, waiter)
            else:
                slot.since = time.monotonic()
                slot.unreported = True
                self._unused.setdefault(slot.key, []).append(slot)
        _close(closing)

    @property
    def has_statements(self) -> bool:
        """Whether a statement of this process is waiting or running."""
        return bool(self._statements)

    def report(self) -> None:
        """Report everything that the broker does not know yet."""
        with self.lock:
            self._report_all()

    def close(self) -> None:
        """Stop every statement and close the link. Idempotent."""
        self.link.shut()
        with self.lock:
            statements = list(self._statements.values())
            closing = [self._recall(slot) for slot in self._all_unused()]
        for statement in statements:
            statement.stop(stopping)
        self.link.close()
        _close(*closing)

    # Called by the link.

    def take(self, message: Said) -> None:
        """Handle a broker message that is not for the link."""
        closing = stopped = None
        with self.lock:
            match message:
                case Admitted():
                    self._gain(Slot(message.slot, message.key), message.id)
                case Recall():
                    if (slot := self._slots.get(message.slot)) is not None:  # otherwise it has been returned
                        closing = self._recall(slot)
                case Busy():
                    self._refuse(message.id, EngineBusyError(message.retry_after_s))
                case Report():
                    self._report_all()
                    self.link.say(Reported(ask=message.ask))
                case Stopping() | Cancelled() | Reclaimed():
                    stopped = self._statements.get(message.id)
        _close(closing)
        if stopped is not None:
            stopped.stop(_REASONS[type(message)])

    def lost(self) -> None:
        """Forget every slot and refuse the waiting statements. A statement that holds a slot continues."""
        with self.lock:
            unused = self._all_unused()
            for known in (self._unused, self._slots, self._reusable, self._reused_at, self._asked_at):
                known.clear()
            self._refuse_all()
        _close(*(slot.connection for slot in unused))

    def tick(self, now: float) -> float:
        """Send due reports, return unused slots, and make each statement check its time limit."""
        with self.lock:
            if not self.link.is_heard:
                self._refuse_all()
            self._report_due(now)
            closing = [self._recall(slot) for slot in self._all_unused() if now >= slot.since + KEEP_S]
            statements = list(self._statements.values())
            wait_s = ASK_S if self._waiters else REPORT_S if self._slots else _IDLE_TICK_S
            self._next_tick = now + wait_s
        _close(*closing)
        for statement in statements:
            try:
                statement.check_time(now)
            except Exception:  # An error in one statement must not affect the time limits of others.
                logger.exception("the time limit of a statement could not be checked")
        return wait_s

    # Under the lock.

    def _all_unused(self) -> list[Slot]:
        return [slot for slots in self._unused.values() for slot in slots]

    def _gain(self, slot: Slot, query_id: str) -> None:
        """Use a granted slot for its statement, or for the next one if the statement has left or has a slot."""
        self._slots[slot.number] = slot
        self._reusable[slot.key] = self._reusable.get(slot.key, 0) + 1
        if len(self._slots) == 1:
            self._tick_soon()
        if (waiter := self._take_waiter(slot.key, query_id)) is not None:
            self._assign(slot, waiter.statement)
            slot.unreported = False
            waiter.statement.wake()
        elif (waiter := self._take_waiter(slot.key)) is not None:
            self._pass_on(slot, waiter)
        else:
            self._give_back(slot)

    def _tick_soon(self) -> None:
        self._next_tick = -math.inf
        self.link.wake()

    def _assign(self, slot: Slot, statement: Statement) -> None:
        slot.statement, statement.slot = statement, slot
        slot.since = time.monotonic()
        slot.unreported = True

    def _pass_on(self, slot: Slot, waiter: _Waiter) -> None:
        self._assign(slot, waiter.statement)
        self._reused_at[slot.key] = slot.since
        if waiter.is_announced:
            self._report_use(slot)  # This ends its wait at the broker.
        waiter.statement.wake()

    def _recall(self, slot: Slot) -> socket.socket | None:
        """Return *slot* to the broker now or after its statement. Return the connection to close, if any."""
        if slot.statement is not None:
            self._mark_recalled(slot)
            return None
        self._unused[slot.key].remove(slot)
        return self._give_back(slot)

    def _give_back(self, slot: Slot, *, kill: str = "") -> socket.socket | None:
        self._mark_recalled(slot)
        del self._slots[slot.number]
        self.link.say(Leave(slot=slot.number, kill=kill))
        connection, slot.connection = slot.connection, None
        return connection

    def _mark_recalled(self, slot: Slot) -> None:
        """Stop counting *slot* as reusable."""
        if slot.recalled:
            return
        slot.recalled = True
        self._reusable[slot.key] -= 1
        if not self._reusable[slot.key]:
            del self._reusable[slot.key]
            self._reused_at.pop(slot.key, None)
            self._asked_at.pop(slot.key, None)
            for waiter in self._waiters.get(slot.key, {}).values():
                self._announce_urgently(waiter)

    def _take_waiter(self, key: str, query_id: str | None = None) -> _Waiter | None:
        """Remove and return a waiting statement of *key*, by default the one that has waited longest."""
        if not (queue := self._waiters.get(key)):
            return None
        waiter = queue.pop(next(iter(queue)) if query_id is None else query_id, None)
        if not queue:
            del self._waiters[key]
        return waiter

    def _refuse(self, query_id: str, error: QueryError) -> None:
        statement = self._statements.get(query_id)
        if statement is not None and self._take_waiter(statement.key, query_id) is not None:
            statement.refused(error)

    def _refuse_all(self) -> None:
        for queue in self._waiters.values():
            for waiter in queue.values():
                waiter.statement.refused(unreachable())
        self._waiters.clear()

    def _announce(self, waiter: _Waiter, *, patient: bool) -> bool:
        """Inform the broker about a waiting statement, but only once. Return False if there is no broker."""
        if waiter.is_announced:
            return True
        waiter.is_announced, waiter.is_patient = True, patient
        statement = waiter.statement
        return self.link.say(Enter(key=statement.key, statement=statement.entry(), patient=patient))

    def _announce_urgently(self, waiter: _Waiter) -> None:
        """Tell the broker to grant a slot to *waiter* as soon as a slot is free."""
        self._announce(waiter, patient=False)
        if waiter.is_patient:
            waiter.is_patient = False
            self.link.say(Hurry(id=waiter.statement.query_id))

    def _ask(self, key: str, waiter: _Waiter, now: float) -> None:
        """Request another slot: urgently if the key's slots are stuck, otherwise patiently, every `REPORT_S`."""
        if now >= self._reused_at.get(key, -math.inf) + ASK_S:
            self._announce_urgently(waiter)
        elif now >= self._asked_at.get(key, -math.inf) + REPORT_S:
            self._asked_at[key] = now
            self._announce(waiter, patient=True)

    def _report_all(self) -> None:
        for key, queue in self._waiters.items():
            for waiter in queue.values():
                self._announce(waiter, patient=key in self._reusable)
        for slot in self._slots.values():
            self._report_use(slot)

    def _report_use(self, slot: Slot) -> None:
        if slot.unreported:
            slot.unreported = False
            slot.reported_at = time.monotonic()
            entry = None if slot.statement is None else slot.statement.entry()
            self.link.say(Runs(slot=slot.number, statement=entry))

    def _report_due(self, now: float) -> None:
        for key, queue in self._waiters.items():
            first = next(iter(queue.values()))
            if now >= first.since + ASK_S:
                self._ask(key, first, now)
            for waiter in queue.values():
                if now >= waiter.since + REPORT_S:
                    self._announce(waiter, patient=True)
        for slot in self._slots.values():
            if slot.statement is None or now >= slot.reported_at + REPORT_S:
                self._report_use(slot)


def _close(*connections: socket.socket | None) -> None:
    for connection in connections:
        if connection is not None:
            connection.close()

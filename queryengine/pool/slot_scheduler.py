"""
The broker's decisions: which statement gets an execution slot, and which slot is recalled for a waiting statement.

A slot is granted to a key and a client process. The process may keep the slot and run one statement of that key after
another, so short statements do not cost the broker a message each. The broker recalls a slot if it is needed elsewhere:
immediately for another key, and after `QUANTUM_S` for another process of the same key, until each process has its
share. A recalled slot that is not returned soon is running a long statement, so the broker recalls another one.

More slots than processors help if some statements are long, but only have a cost if all are short. Therefore a process
whose slots rotate requests another slot patiently. The request is granted while fewer slots than processors are in use.
After that, it is granted only at the expense of a process that has more slots or an unused one. If more slots than
processors rotate, one of them is recalled.

A key that is alone may hold every slot (`StatementQueue`). If a statement of another key has waited for a while, the
newest statement of the first key is stopped, and its slot passes to the other key. The client repeats the stopped
statement if none of its rows have been passed on. A repeated statement may wait until its time limit, and is the last
one to be stopped again.

Some slots may be reserved for statements that were short before. A reserved slot serves only one statement, because it
is recalled as soon as it is granted.
"""

import itertools
import math
import os
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial

from msgspec import Struct, field

from queryengine.engine import ACTIVE_SQL_CHARACTERS
from queryengine.errors import EngineBusyError
from queryengine.pool.frames import FrameDecoder, FrameError
from queryengine.pool.messages import Admitted, Busy, Enter, Recall, Reclaimed, Said, Statement
from queryengine.pool.statement_queue import EntryState, QueueEntry, StatementQueue, reclaim_s
from runtimeconf.model import QueryConfig

#: Seconds that a client process keeps a slot that another process needs for the same key.
QUANTUM_S = 0.02
#: A statement that has waited this long may take a slot of its key from any process, regardless of their shares.
SHARE_S = 0.2
#: A slot is freed after this many consecutive checks find a free worker and no worker running the slot's statement.
MISSED_CHECKS = 3
#: The number of processors that this process may use.
PROCESSORS = len(os.sched_getaffinity(0))
#: The maximum size of a client message, with room to spare because clients truncate the SQL text.
MAX_MESSAGE_BYTES = 64 * 1024
#: If a recalled slot has not been returned after this time, the broker recalls another one.
RECALL_S = 0.02
#: A slot is in rotation if its client has reported another statement for it within this time.
ROTATION_S = 0.15
#: If a slot has not been returned this many seconds after its statement was stopped, another statement is stopped.
RECLAIM_AGAIN_S = 5.0


class StatementRecord:
    """A statement that is queued or has a slot."""

    entry: QueueEntry

    def __init__(self, client: "ClientConnection", statement: Statement, key: str) -> None:
        self.client = client
        self.id = statement.id
        self.key = key
        self.is_inner, self.is_repeated = statement.inner, statement.repeated
        self.sql = statement.sql[:ACTIVE_SQL_CHARACTERS]
        self.started = statement.started
        self.since = time.monotonic()
        self.queued_until = 0.0


class GrantedSlot(Struct, eq=False):
    """A slot that a client process holds, and the statement it last reported for it."""

    number: int
    client: "ClientConnection"
    entry: QueueEntry
    statement: StatementRecord | None
    since: float = field(default_factory=time.monotonic)
    recalled_at: float | None = None
    reclaimed_at: float | None = None  # when its statement was stopped for another key
    reused_at: float = -math.inf
    missed_checks: int = 0

    @property
    def is_recalled(self) -> bool:
        """Whether the client was asked to return the slot."""
        return self.recalled_at is not None

    def is_expected(self, now: float) -> bool:
        """Return True if the slot was recalled so recently that it may be returned at any moment."""
        return self.recalled_at is not None and now < self.recalled_at + RECALL_S

    def is_rotating(self, now: float) -> bool:
        """Return True if the slot serves one statement after another and is not recalled."""
        return self.recalled_at is None and now < self.reused_at + ROTATION_S


class ClientConnection:
    """The connection of one client process, with its slots and queued statements."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.decoder = FrameDecoder(max_json_bytes=MAX_MESSAGE_BYTES)
        self.out = bytearray()
        self.writes = False  # whether the selector waits until it can be written to
        self.queued: dict[str, StatementRecord] = {}
        self.slots: dict[int, GrantedSlot] = {}


def slots_of(key: str, slots: Iterable[GrantedSlot]) -> int:
    """Return the number of *slots* that belong to *key* and are not recalled."""
    return sum(slot.entry.key == key and not slot.is_recalled for slot in slots)


class SlotScheduler:
    """
    Grants, recalls and frees slots. It has no thread and never waits.

    For *limits*, *several_keys* and *reserved*, see `Broker`. *send* queues a message for a client.
    """

    def __init__(
        self,
        limits: QueryConfig,
        send: Callable[[ClientConnection, Said], None],
        *,
        several_keys: bool,
        reserved: int = 0,
    ) -> None:
        self._send = send
        self._processors = PROCESSORS
        self._queue = StatementQueue(
            slots=limits.workers,
            max_queued=limits.max_queued,
            several_keys=several_keys,
            patient_slots=min(self._processors, limits.workers),
            reserved=reserved,
        )
        self._queue_timeout_s = limits.queue_timeout_s
        self._queued: dict[StatementRecord, None] = {}  # oldest first
        self._slots: dict[int, GrantedSlot] = {}  # in the order in which they were granted
        self._numbers = itertools.count()

    @property
    def is_idle(self) -> bool:
        """Whether no slot is granted and no statement is queued."""
        return not self._queue.running and not self._queue.waiting

    @property
    def queued(self) -> int:
        """The number of statements that wait for a slot."""
        return len(self._queued)

    @property
    def running(self) -> int:
        """The number of statements that have a slot."""
        return sum(slot.statement is not None for slot in self._slots.values())

    @property
    def holders(self) -> set[ClientConnection]:
        """The clients that hold a slot."""
        return {slot.client for slot in self._slots.values()}

    def due_in(self, now: float) -> float:
        """Return the seconds until `run_due` has work."""
        if not self._queued:
            return float("inf")
        return min(QUANTUM_S, min(one.queued_until for one in self._queued) - now)

    def run_due(self, now: float) -> None:
        """Refuse statements that have waited too long, and recall slots that queued statements should get."""
        for statement in [one for one in self._queued if one.queued_until <= now]:
            self._refuse(statement)
            self._withdraw(statement)
        self._queue.admit_due()
        self._recall_for_queued(now)
        self._reclaim_for_queued(now)

    def enter(self, client: ClientConnection, message: Enter) -> None:
        """
        Grant a slot to a new statement of *client*, queue it, or refuse it.

        Raises:
            FrameError: A statement with this id is queued.
        """
        entered = message.statement
        statement = StatementRecord(client, entered, message.key)
        if statement.id in client.queued:
            raise FrameError("a statement entered twice")
        try:
            statement.entry = self._queue.join(
                message.key,
                partial(self._decided, statement),
                patient=message.patient,
                short=entered.short,
                most=entered.concurrent,
            )
        except EngineBusyError:
            self._refuse(statement)
            return
        if statement.entry.state is EntryState.ADMITTED:
            self._grant(statement)
        else:
            statement.queued_until = math.inf if statement.is_repeated else time.monotonic() + self._queue_timeout_s
            client.queued[statement.id] = statement
            self._queued[statement] = None

    def hurry(self, client: ClientConnection, statement_id: str) -> None:
        """Make a statement no longer patient, if it is still queued."""
        if (statement := client.queued.get(statement_id)) is not None:
            self._queue.hurry(statement.entry)

    def leave(self, client: ClientConnection, statement_id: str) -> None:
        """Remove a statement from the queue, if it is still there."""
        if (statement := client.queued.get(statement_id)) is not None:
            self._withdraw(statement)

    def record_use(self, client: ClientConnection, number: int, used_for: Statement | None) -> None:
        """Record the statement that *client* uses a slot for; None if the slot is unused."""
        slot = client.slots.get(number)
        if slot is None:  # It has been freed.
            return
        slot.missed_checks = 0
        slot.statement = None
        if used_for is None:
            return
        statement = StatementRecord(client, used_for, slot.entry.key)
        if (queued := client.queued.get(statement.id)) is not None:
            self._withdraw(queued)
        for other in client.slots.values():  # It may have been granted another one before.
            if other.statement is not None and other.statement.id == statement.id:
                other.statement = None
        slot.statement = statement
        slot.reused_at = time.monotonic()
        self._recall_surplus(slot)

    def free(self, slot: GrantedSlot) -> None:
        """Free *slot* for the next statement."""
        del self._slots[slot.number]
        del slot.client.slots[slot.number]
        self._queue.leave(slot.entry)

    def drop(self, client: ClientConnection) -> None:
        """Free the slots of a client that is gone, and forget its queued statements."""
        for statement in list(client.queued.values()):
            self._withdraw(statement)
        for slot in list(client.slots.values()):
            self.free(slot)

    def recall_all(self) -> None:
        """Recall every slot."""
        for slot in self._slots.values():
            self._recall(slot)

    def free_unused(self, running: Collection[str]) -> None:
        """Free slots whose statement no worker in *running* (ids as in `worker_state`) has run for a while."""
        for slot in list(self._slots.values()):
            if slot.statement is not None and slot.statement.id[:32] in running:
                slot.missed_checks = 0
                continue
            slot.missed_checks += 1
            if slot.missed_checks >= MISSED_CHECKS:
                self._recall(slot)  # The client must not use it for another statement later.
                self.free(slot)

    def statements(self) -> Iterator[StatementRecord]:
        """Iterate over the queued and the running statements."""
        yield from self._queued
        yield from (slot.statement for slot in self._slots.values() if slot.statement is not None)

    def statements_of(self, key: str) -> list[StatementRecord]:
        """Return the statements of *key*, oldest first, except the runtime's own."""
        found = [one for one in self.statements() if one.key == key and not one.is_inner]
        return sorted(found, key=lambda one: (one.started, one.since))

    def is_queued(self, statement: StatementRecord) -> bool:
        """Return True if *statement* is waiting for a slot."""
        return statement in self._queued

    def _decided(self, statement: StatementRecord) -> None:
        """Inform the client that its queued statement was admitted or evicted. `StatementQueue` calls this."""
        del self._queued[statement]
        del statement.client.queued[statement.id]
        if statement.entry.state is EntryState.ADMITTED:
            self._grant(statement)
        else:
            self._refuse(statement)

    def _grant(self, statement: StatementRecord) -> None:
        slot = GrantedSlot(next(self._numbers), statement.client, statement.entry, statement)
        self._slots[slot.number] = statement.client.slots[slot.number] = slot
        self._send(statement.client, Admitted(id=statement.id, key=statement.key, slot=slot.number))
        if statement.entry.is_reserve:
            self._recall(slot)

    def _refuse(self, statement: StatementRecord) -> None:
        self._send(statement.client, Busy(id=statement.id, retry_after_s=EngineBusyError().retry_after_s))

    def _withdraw(self, statement: StatementRecord) -> None:
        del statement.client.queued[statement.id]
        del self._queued[statement]
        self._queue.leave(statement.entry)

    def _recall(self, slot: GrantedSlot) -> None:
        if not slot.is_recalled:
            slot.recalled_at = time.monotonic()
            self._send(slot.client, Recall(slot=slot.number))

    def _recall_for_queued(self, now: float) -> None:
        """Recall one slot for each queued pair of key and process that should get a slot from another pair."""
        expected = sum(slot.is_expected(now) for slot in self._slots.values())
        seen = set()
        for statement in self._queued:
            pair = (statement.client, statement.key)
            if pair in seen or not self._queue.needs_one_slot(statement.entry):
                continue
            seen.add(pair)
            candidates = [slot for slot in self._slots.values() if self._should_pass(slot, statement, now)]
            if expected and candidates:
                expected -= 1  # A recalled slot is about to be returned.
            elif candidates := [slot for slot in candidates if not slot.is_recalled]:
                self._recall(min(candidates, key=lambda slot: slot.statement is not None))

    def _reclaim_for_queued(self, now: float) -> None:
        """If a statement has waited too long, stop a statement of another key that holds every slot."""
        holder = self._queue.holder_of_all
        due = now - reclaim_s(self._queue_timeout_s)
        if holder is None or not any(one.key not in ("", holder) and one.since <= due for one in self._queued):
            return
        held = [slot for slot in self._slots.values() if slot.entry.key == holder]
        if any(slot.reclaimed_at is not None and now < slot.reclaimed_at + RECLAIM_AGAIN_S for slot in held):
            return
        found = [(one, slot) for slot in held if (one := slot.statement) is not None and slot.reclaimed_at is None]
        if found:
            statement, slot = max(found, key=lambda one: (not one[0].is_repeated, one[0].since))
            slot.reclaimed_at = now
            self._recall(slot)
            self._send(slot.client, Reclaimed(id=statement.id))

    def _recall_surplus(self, slot: GrantedSlot) -> None:
        """Recall *slot* if more slots than processors rotate and its client has another rotating slot."""
        now = time.monotonic()
        rotating = [one for one in self._slots.values() if one.is_rotating(now)]
        of_client = [one for one in rotating if one.client is slot.client and one.entry.key == slot.entry.key]
        if len(rotating) > self._processors and len(of_client) > 1:
            self._recall(slot)

    def _should_pass(self, slot: GrantedSlot, statement: StatementRecord, now: float) -> bool:
        """Return True if the queued *statement* should get *slot* from its current holder."""
        if slot.entry.key != statement.key:
            return self._queue.may_run(statement.key) and (
                not statement.entry.patient
                or slot.statement is None
                or slots_of(slot.entry.key, self._slots.values()) > slots_of(statement.key, self._slots.values()) + 1
            )
        if slot.client is statement.client:
            return False  # The process passes the slot on itself.
        if slot.statement is None:
            return True
        if now < slot.since + QUANTUM_S:
            return False
        own, other = (slots_of(statement.key, client.slots.values()) for client in (statement.client, slot.client))
        # All slots of the statement's process may be running long statements, so after a while shares do not count.
        is_starved = not statement.entry.patient and now >= statement.since + SHARE_S
        return own == 0 or other > own + 1 or is_starved

"""
The broker, which grants the engine's execution slots to the statements of all client processes.

It runs in the engine's arbiter, has no threads, and blocks only in `Broker.poll`. Each client process has one
connection to `broker.sock`, which carries MESSAGE frames (`queryengine.pool.frames`). `SlotScheduler` decides which
statement gets a slot and when a slot is recalled.
"""

import itertools
import logging
import os
import selectors
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from queryengine.engine import ActiveQuery
from queryengine.pool import messages
from queryengine.pool.frames import FrameError, Kind, encode
from queryengine.pool.messages import (
    Active,
    Answer,
    Asked,
    Cancel,
    Cancelled,
    Count,
    Counted,
    Enter,
    Found,
    Hurry,
    Leave,
    Listed,
    Report,
    Reported,
    Runs,
    Said,
    Status,
    Stopping,
    decoded,
)
from queryengine.pool.slot_scheduler import ClientConnection, SlotScheduler
from queryengine.pool.statement_queue import RateLimits
from runtimeconf.model import QueryConfig
from system.state_socket import StateSocket

logger = logging.getLogger(__name__)

#: The socket's name in the state directory.
BROKER_SOCKET = "broker.sock"
#: Seconds between two messages with an unchanged status. It is slightly less than the second that clients rely on.
STATUS_INTERVAL_S = 0.9
#: A client with more unread bytes than this is dropped. Lists of statements are shorter.
MAX_UNREAD_BYTES = 16 * 1024 * 1024
#: Seconds that a request about all statements waits for the reports of other clients.
REPORT_S = 0.5

_RECEIVE_BYTES = 64 * 1024
_BACKLOG = 128
#: Seconds to pause after a failed accept, for example if the process has no free descriptors.
_ACCEPT_RETRY_S = 0.1


class _PendingQuestion(Struct, eq=False):
    """A request from *client* about all statements. It waits for the reports of the clients in `unreported`."""

    client: ClientConnection
    answer: Callable[[], Answer]
    unreported: set[ClientConnection]
    deadline: float


class Broker:
    """
    The broker's socket and connections. Not thread-safe. Only `poll` waits.

    Args:
        path: The socket's path. A file that a dead predecessor left is removed.
        limits: The number of workers, the queue length and the queue timeout.
        several_keys: Whether there is more than one key to be fair to.
        kill: Kills the worker that runs the statement with the given id, if any.
        reserved: The number of slots reserved for statements that were short before.

    Raises:
        OSError: The socket cannot be created.
    """

    def __init__(
        self, path: Path, limits: QueryConfig, *, several_keys: bool, kill: Callable[[str], None], reserved: int = 0
    ) -> None:
        self.draining = False
        self.report_s = REPORT_S
        self._kill = kill
        self._scheduler = SlotScheduler(limits, self._send, several_keys=several_keys, reserved=reserved)
        self._questions: dict[int, _PendingQuestion] = {}  # by serial
        self._clients: set[ClientConnection] = set()
        self._unsent: set[ClientConnection] = set()
        self._serials = itertools.count()
        self._rate_limits = RateLimits()
        self._status = Status()  # without the last three numbers
        self._busy = 0
        self._status_sent = -STATUS_INTERVAL_S
        self._selector = selectors.DefaultSelector()
        self._socket = StateSocket(path, _BACKLOG)
        self._listener = self._socket.listener
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    @property
    def is_reachable(self) -> bool:
        """Whether the path still refers to this socket."""
        return self._socket.is_there

    @property
    def is_idle(self) -> bool:
        """Whether no slot is granted and no statement is queued."""
        return self._scheduler.is_idle

    def watch(self, descriptor: int) -> None:
        """Make `poll` return when the non-blocking *descriptor* is readable. Its contents are discarded."""
        self._selector.register(descriptor, selectors.EVENT_READ, lambda _: os.read(descriptor, _RECEIVE_BYTES))

    def poll(self, timeout_s: float) -> None:
        """Wait at most *timeout_s* seconds for work, and do it. Errors caused by clients are never raised."""
        now = time.monotonic()
        timeout_s = min(
            timeout_s,
            self._scheduler.due_in(now),
            *(question.deadline - now for question in self._questions.values()),
        )
        for key, events in self._selector.select(max(0.0, timeout_s)):
            key.data(events)
        now = time.monotonic()
        self._answer_questions(now)
        self._scheduler.run_due(now)
        self._flush()

    def report(self, *, alive: int, killed: int, busy: int = 0) -> None:
        """
        Send the numbers of live, killed and busy workers to the clients.

        The numbers are sent if one of the first two has changed or if a second has passed.
        """
        self._busy = busy
        status = Status(alive=alive, killed=killed, stopping=self.draining)
        now = time.monotonic()
        if status == self._status and now - self._status_sent < STATUS_INTERVAL_S:
            return
        self._status, self._status_sent = status, now
        whole = replace(status, busy=busy, running=self._scheduler.running, queued=self._scheduler.queued)
        for client in self._clients:
            self._send(client, whole)
        self._flush()

    def free_unused(self, running: Collection[str], *, any_idle: bool) -> None:
        """
        Free slots that a client, such as a slow reader, still holds although their statements have ended.

        Call this about once a second.

        Args:
            running: The ids of the statements that workers are running, truncated as in `WorkerState`.
            any_idle: Whether a worker is free, which means that no statement can be waiting to be accepted.
        """
        if any_idle:
            self._scheduler.free_unused(running)
            self._flush()

    def drain(self) -> None:
        """Refuse new statements. Running and queued ones continue."""
        self.draining = True
        self._scheduler.recall_all()
        self.report(alive=self._status.alive, killed=self._status.killed, busy=self._busy)

    def end_statements(self) -> None:
        """Tell every client to stop its statements."""
        for statement in self._scheduler.statements():
            self._send(statement.client, Stopping(id=statement.id))
        self._flush()

    def close(self) -> None:
        """Close every connection and delete the socket."""
        self._socket.close()
        self.close_inherited()

    def close_inherited(self) -> None:
        """Close inherited resources in a forked process. The original process is not affected."""
        # Do not unregister anything, because both processes share the kernel's set of watched descriptors.
        self._selector.close()
        self._listener.close()
        for client in self._clients:
            client.socket.close()
        self._clients.clear()

    # Connections.

    def _accept(self, _: int) -> None:
        try:
            connection, _address = self._listener.accept()
        except OSError as error:
            logger.warning("a client of the broker could not connect", extra={"fields": {"error": error.strerror}})
            # The connection stays pending, so the selector would return immediately. Pause instead of spinning.
            time.sleep(_ACCEPT_RETRY_S)
            return
        connection.setblocking(False)
        client = ClientConnection(connection)
        self._clients.add(client)
        self._selector.register(connection, selectors.EVENT_READ, partial(self._serve, client))
        self._send(client, self._status)

    def _serve(self, client: ClientConnection, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._unsent.add(client)
            if events & selectors.EVENT_READ:
                self._receive(client)
        except FrameError as error:
            self._drop(client, str(error))
        except Exception:
            # An error in serving one client must not affect the others.
            logger.exception("a client of the broker was dropped")
            self._drop(client)

    def _receive(self, client: ClientConnection) -> None:
        try:
            data = client.socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(client)
            return
        for kind, payload in client.decoder.feed(data):
            if kind is not Kind.MESSAGE:
                raise FrameError(f"a frame is of kind {kind.name}")
            self._handle(client, decoded(payload, messages.ASKED))

    def _drop(self, client: ClientConnection, reason: str = "") -> None:
        """Close the connection and free the slots of its process. A *reason* is logged."""
        if reason:
            logger.warning("a client of the broker was dropped", extra={"fields": {"reason": reason}})
        if client not in self._clients:
            return
        self._clients.discard(client)
        self._unsent.discard(client)
        self._selector.unregister(client.socket)
        client.socket.close()
        self._scheduler.drop(client)

    def _send(self, client: ClientConnection, message: Said) -> None:
        client.out += encode(Kind.MESSAGE, message)
        self._unsent.add(client)

    def _flush(self) -> None:
        """Send as much of the clients' queued output as they accept."""
        while self._unsent:
            client = self._unsent.pop()
            try:
                del client.out[: client.socket.send(client.out)]
            except BlockingIOError:
                pass
            except OSError:
                self._drop(client)  # This may admit statements of other clients.
                continue
            if len(client.out) > MAX_UNREAD_BYTES:
                self._drop(client, "it does not read")
            elif bool(client.out) != client.writes:
                client.writes = bool(client.out)
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.writes else 0)
                self._selector.modify(client.socket, events, partial(self._serve, client))

    # Messages.

    def _handle(self, client: ClientConnection, message: Asked) -> None:
        match message:
            case Enter() if self.draining:
                self._send(client, Stopping(id=message.statement.id))
            case Enter():
                self._scheduler.enter(client, message)
            case Runs():
                self._scheduler.record_use(client, message.slot, message.statement)
            case Leave(slot=int(number)):
                if (slot := client.slots.get(number)) is not None:  # otherwise it has been freed
                    if message.kill:  # before the next statement gets the slot
                        self._kill(message.kill)
                    self._scheduler.free(slot)
            case Leave():
                self._scheduler.leave(client, message.id)
            case Hurry():
                self._scheduler.hurry(client, message.id)
            case _:
                self._handle_question(client, message)

    def _handle_question(self, client: ClientConnection, message: Count | Active | Cancel | Reported) -> None:
        match message:
            case Count():
                allowance = self._rate_limits.take(message.key, message.limit, message.instead_of)
                self._send(client, Counted(ask=message.ask, allowance=allowance))
            case Active():
                self._ask(client, partial(self._active, message))
            case Cancel():
                self._ask(client, partial(self._cancel, message))
            case Reported():
                if (question := self._questions.get(message.ask)) is not None:
                    question.unreported.discard(client)

    def _ask(self, client: ClientConnection, answer: Callable[[], Answer]) -> None:
        """Answer *client* once the other clients have reported how they use their slots."""
        unreported = self._scheduler.holders - {client}
        serial = next(self._serials)
        self._questions[serial] = _PendingQuestion(client, answer, unreported, time.monotonic() + self.report_s)
        for other in unreported:
            self._send(other, Report(ask=serial))

    def _answer_questions(self, now: float) -> None:
        """Answer the requests whose reports are complete or late."""
        for serial, question in list(self._questions.items()):
            if question.unreported & self._clients and now < question.deadline:
                continue
            del self._questions[serial]
            if question.client not in self._clients:
                continue
            try:
                self._send(question.client, question.answer())
            except Exception:
                logger.exception("a client of the broker was dropped")
                self._drop(question.client)

    def _active(self, question: Active) -> Listed:
        statements = tuple(
            ActiveQuery(
                query_id=one.id,
                started=one.started,
                state="queued" if self._scheduler.is_queued(one) else "running",
                sql=one.sql,
            )
            for one in self._scheduler.statements_of(question.key)
        )
        return Listed(ask=question.ask, statements=statements)

    def _cancel(self, question: Cancel) -> Found:
        found = [one for one in self._scheduler.statements_of(question.key) if one.id == question.id]
        for statement in found:
            self._send(statement.client, Cancelled(id=question.id))
        return Found(ask=question.ask, found=bool(found))

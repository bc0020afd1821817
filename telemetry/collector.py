"""
Collects the events of all processes from one socket, and answers requests about the history.

One thread reads. After each read it pauses so that it wakes up for many events at once. Events sent in the meantime
wait in the system's buffers, even if their senders die.

A line is either an event or a request. A request is the last line of its connection: the answer follows in JSON (or
nothing, if there is no answer), and the connection ends.
"""

import logging
import os
import selectors
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec.json

from system.state_socket import StateSocket
from telemetry.events import Event, Line, Question, decode, decode_all

logger = logging.getLogger(__name__)

#: Seconds between two reads.
PAUSE_S = 0.2

#: The maximum bytes of a line. A process that sends a longer line is disconnected.
MAX_LINE_BYTES = 64 * 1024

#: Seconds within which an answer must be read.
ANSWER_S = 5.0

#: Bytes read at once from one process.
_RECEIVE_BYTES = 256 * 1024
_BACKLOG = 128
#: Seconds between checks for whether the socket still exists.
_CHECK_S = 1.0


class Aggregate(Protocol):
    """Something that records or counts events."""

    def take(self, events: Sequence[Event]) -> None:
        """Record *events*. The events of each process are in the order in which it sent them."""


class Collector:
    """
    The socket at *path*, from `start` to `stop`.

    Args:
        path: The socket's path. A socket left by a dead predecessor is replaced.
        aggregates: The receivers of all events.
        answer: Answers a request with JSON types, in any thread. It raises LookupError if it cannot.
        each_round: Called at least once a second while events are collected.

    Raises:
        OSError: The socket cannot be created.
    """

    def __init__(
        self,
        path: Path,
        aggregates: Sequence[Aggregate],
        answer: Callable[[Question], Any],
        each_round: Callable[[], None] = lambda: None,
    ) -> None:
        self._path = path
        self._aggregates = aggregates
        self._answer = answer
        self._each_round = each_round
        self._selector = selectors.DefaultSelector()
        self._rests: dict[socket.socket, bytes] = {}  # the incomplete line of each process
        self._events: list[Event] = []  # read, but not passed on
        self._questions: list[tuple[socket.socket, Question]] = []  # the same
        self._stop = threading.Event()
        self._is_reported = self._has_foreign = False
        self._listen()
        self._woken, self._wakes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="collector", daemon=True)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def stop(self) -> None:
        """Read everything sent so far, then close the socket."""
        self._stop.set()
        os.write(self._wakes, b".")
        self._thread.join()
        with suppress(OSError):
            self._poll(0.0)
        for connection in (*self._rests, *(connection for connection, _ in self._questions)):
            connection.close()
        self._socket.close()
        self._selector.close()
        for descriptor in (self._woken, self._wakes):
            os.close(descriptor)

    def _listen(self) -> None:
        self._socket = StateSocket(self._path, _BACKLOG)
        self._socket.listener.setblocking(False)
        self._selector.register(self._socket.listener, selectors.EVENT_READ)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._each_round()
            try:
                if self._poll(_CHECK_S):
                    self._stop.wait(PAUSE_S)
                self._restore_socket()
            except Exception:
                logger.exception("Events could not be collected; continuing")
                self._stop.wait(_CHECK_S)

    def _poll(self, timeout_s: float) -> bool:
        """Wait for events and requests, and read all of them. Return whether there were any."""
        is_ready = self._read_all(0.0 if self._questions else timeout_s)
        questions, self._questions = self._questions, []
        if questions:
            self._read_all(0.0)  # Everything sent before a request has arrived by now, and the answer includes it.
        self._pass_on()
        for connection, question in questions:
            try:
                threading.Thread(target=self._reply, args=[connection, question], name="answer", daemon=True).start()
            except RuntimeError:  # no thread left
                connection.close()
        return is_ready

    def _read_all(self, timeout_s: float) -> bool:
        ready = self._selector.select(timeout_s)
        for key, _ in ready:
            if key.fileobj is self._socket.listener:
                self._accept()
            elif isinstance(key.fileobj, socket.socket):
                self._read(key.fileobj)
        return bool(ready)

    def _restore_socket(self) -> None:
        """Create the socket again if a clean-up has removed it."""
        if self._socket.is_there:
            return
        former = self._socket
        try:
            self._listen()
        except OSError as error:  # The directory is gone too.
            if not self._is_reported:
                logger.error("The socket for events is missing and cannot be recreated: %s", error.strerror)  # noqa: TRY400
            self._is_reported = True
            return
        self._is_reported = False
        self._selector.unregister(former.listener)
        former.listener.close()
        logger.warning("The socket for events was missing from the state directory: it is recreated")

    def _accept(self) -> None:
        with suppress(OSError):  # no descriptor left, or the client has disconnected
            while True:
                connection, _ = self._socket.listener.accept()
                connection.setblocking(False)
                self._rests[connection] = b""
                self._selector.register(connection, selectors.EVENT_READ)
                self._read(connection)

    def _read(self, connection: socket.socket) -> None:
        try:
            while data := connection.recv(_RECEIVE_BYTES):
                if self._take(connection, data) or len(data) < _RECEIVE_BYTES:
                    return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._forget(connection)
        connection.close()

    def _take(self, connection: socket.socket, data: bytes) -> bool:
        """Process the data read, and return whether it ended with a request."""
        lines, newline, rest = (self._rests[connection] + data).rpartition(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            raise OSError("a line is too long")
        self._rests[connection] = rest
        for line in self._decoded(lines) if newline else ():
            if isinstance(line, Question):
                self._forget(connection)
                self._questions.append((connection, line))
                return True
            self._events.append(line)
        return False

    def _decoded(self, lines: bytes) -> Sequence[Line]:
        """Decode all lines at once, which is faster, or one by one if a line is damaged or from another release."""
        with suppress(ValueError, RecursionError):
            return decode_all(lines)
        decoded = []
        for line in lines.split(b"\n"):
            try:
                decoded.append(decode(line))
            except (ValueError, RecursionError):
                if not self._has_foreign:
                    logger.warning("events from another release are ignored")
                self._has_foreign = True
        return decoded

    def _pass_on(self) -> None:
        events, self._events = self._events, []
        if events:
            for aggregate in self._aggregates:
                try:
                    aggregate.take(events)
                except Exception:
                    logger.exception("events could not be counted")

    def _reply(self, connection: socket.socket, question: Question) -> None:
        with connection, suppress(OSError, LookupError):
            connection.settimeout(ANSWER_S)
            connection.sendall(msgspec.json.encode(self._answer(question)))

    def _forget(self, connection: socket.socket) -> None:
        del self._rests[connection]
        self._selector.unregister(connection)

"""
Collects the events of all processes from one socket, and answers questions about what is remembered.

One thread reads. After it has read something it pauses, so that it wakes up for many events at once: what the others
send meanwhile waits in the buffers of the system, even if they die.

A line is an event, or a question: `{"ask": n, "what": ...}` and further fields. The answer is `{"ask": n, "answer":
...}`, or without an answer if nobody knows one.
"""

import json
import logging
import os
import selectors
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from system.state_socket import StateSocket
from telemetry.events import Event, Line, decode, decode_all

logger = logging.getLogger(__name__)

#: Seconds between two times that it reads.
PAUSE_S = 0.2

#: A process that sends a longer line is dropped, and one that leaves this much of its answers unread.
MAX_LINE_BYTES = 64 * 1024
MAX_UNREAD_BYTES = 16 * 1024 * 1024

#: Read at once from one process.
_RECEIVE_BYTES = 256 * 1024
_BACKLOG = 128
#: Seconds between checks whether the socket is still in its place.
_CHECK_S = 1.0

#: Answers a question of one kind, by its fields, in JSON types. It may raise LookupError, TypeError or ValueError.
Answer = Callable[[Mapping[str, Any]], Any]


class Aggregate(Protocol):
    """Something that remembers or counts events."""

    def take(self, events: Sequence[Event]) -> None:
        """Take *events*, in the order in which each process sent its own."""


def answer(answers: Mapping[str, Answer], question: Mapping[str, Any]) -> Any:
    """
    Answer *question*.

    Raises:
        LookupError: Nobody can.
    """
    try:
        return answers[question["what"]](question)
    except (TypeError, ValueError) as error:
        raise LookupError(f"The question is malformed: {error}") from error


@dataclass(eq=False, slots=True)
class _Client:
    socket: socket.socket
    received: bytes = b""
    is_foreign: bool = False
    unread: bytearray = field(default_factory=bytearray)


class Collector:
    """
    The socket at *path*, from `start` to `stop`.

    Args:
        path: The socket's path; one that a dead predecessor left is replaced.
        aggregates: What gets all events.
        answers: What answers questions, by their `what`.
        each_round: Called at least once a second while events are collected.

    Raises:
        OSError: The socket cannot be created.
    """

    def __init__(
        self,
        path: Path,
        aggregates: Sequence[Aggregate],
        answers: Mapping[str, Answer],
        each_round: Callable[[], None] = lambda: None,
    ) -> None:
        self._path = path
        self._each_round = each_round
        self._aggregates = aggregates
        self._answers = answers
        self._selector = selectors.DefaultSelector()
        self._clients: set[_Client] = set()
        self._events: list[Event] = []  # read, but not passed on
        self._stop = threading.Event()
        self._is_reported = False
        self._listen()
        self._woken, self._wakes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="collector", daemon=True)

    def start(self) -> None:
        """Read from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Read what was sent until now, then close the socket."""
        self._stop.set()
        os.write(self._wakes, b".")
        self._thread.join()
        with suppress(OSError):
            self._poll(0.0)
        for client in self._clients:
            client.socket.close()
        self._socket.close()
        self._selector.close()
        for descriptor in (self._woken, self._wakes):
            os.close(descriptor)

    def _listen(self) -> None:
        self._socket = StateSocket(self._path, _BACKLOG)
        self._socket.listener.setblocking(False)
        self._selector.register(self._socket.listener, selectors.EVENT_READ, self._accept)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._each_round()
            try:
                if self._poll(_CHECK_S):
                    self._stop.wait(PAUSE_S)
                self._restore_socket()
            except Exception:
                logger.exception("Events could not be collected; the collector goes on")
                self._stop.wait(_CHECK_S)

    def _poll(self, timeout_s: float) -> bool:
        """Wait for events and questions, and read all of them. Return whether to wait for more before the next time."""
        ready = self._selector.select(timeout_s)
        for key, _ in ready:
            if isinstance(key.data, _Client):
                self._serve(key.data)
            elif key.data is not None:
                key.data()
        self._pass_on()
        # Whoever reads a long answer needs the next piece of it, which is as large as the buffer of a socket.
        return bool(ready) and not any(events & selectors.EVENT_WRITE for _, events in ready)

    def _restore_socket(self) -> None:
        """Make the socket again if a clean-up has removed it."""
        if self._socket.is_there:
            return
        former = self._socket
        try:
            self._listen()
        except OSError as error:  # The directory is gone too.
            if not self._is_reported:
                logger.error("The socket for events is gone and cannot be made again: %s", error.strerror)  # noqa: TRY400
            self._is_reported = True
            return
        self._is_reported = False
        self._selector.unregister(former.listener)
        former.listener.close()
        logger.warning("The socket for events was gone from the state directory: it is made again")

    def _accept(self) -> None:
        with suppress(OSError):  # no descriptor left, or nobody there any more
            while True:
                connection, _ = self._socket.listener.accept()
                connection.setblocking(False)
                client = _Client(connection)
                self._clients.add(client)
                self._selector.register(connection, selectors.EVENT_READ, client)
                self._serve(client)

    def _serve(self, client: _Client) -> None:
        try:
            while True:
                data = client.socket.recv(_RECEIVE_BYTES)
                if not data:
                    self._drop(client)
                    return
                self._take(client, data)
                if len(data) < _RECEIVE_BYTES:
                    break
            self._send(client)
        except BlockingIOError:
            self._send(client)
        except OSError:
            self._drop(client)

    def _take(self, client: _Client, data: bytes) -> None:
        lines, newline, client.received = (client.received + data).rpartition(b"\n")
        if len(client.received) > MAX_LINE_BYTES:
            raise OSError("a line is too long")
        if not newline:
            return
        for line in _decoded(lines, client):
            if isinstance(line, dict):
                self._pass_on()  # The answer includes what was read before.
                client.unread += self._answer(line)
                if len(client.unread) > MAX_UNREAD_BYTES:
                    raise OSError("answers are not read")
            else:
                self._events.append(line)

    def _pass_on(self) -> None:
        events, self._events = self._events, []
        if events:
            for aggregate in self._aggregates:
                try:
                    aggregate.take(events)
                except Exception:
                    logger.exception("events could not be counted")

    def _answer(self, question: dict[str, Any]) -> bytes:
        reply = {"ask": question.get("ask")}
        with suppress(LookupError):
            reply["answer"] = answer(self._answers, question)
        return json.dumps(reply, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace") + b"\n"

    def _send(self, client: _Client) -> None:
        if client.unread:
            with suppress(BlockingIOError):
                del client.unread[: client.socket.send(client.unread)]
        if client in self._clients:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.unread else 0)
            if self._selector.get_key(client.socket).events != events:
                self._selector.modify(client.socket, events, client)

    def _drop(self, client: _Client) -> None:
        if client in self._clients:
            self._clients.discard(client)
            self._selector.unregister(client.socket)
            client.socket.close()


def _decoded(lines: bytes, client: _Client) -> Sequence[Line]:
    """Decode all lines at once, which is much faster; one by one if one of them is damaged or of another release."""
    with suppress(ValueError, RecursionError):
        return decode_all(lines)
    decoded = []
    for line in lines.split(b"\n"):
        try:
            decoded.append(decode(line))
        except (ValueError, RecursionError):
            if not client.is_foreign:
                logger.warning("the events of another release are ignored")
            client.is_foreign = True
    return decoded

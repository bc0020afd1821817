"""
A client process's connection to the broker, which all its statements share.

One thread reads, and reconnects after the connection is lost. Another thread checks the time limits of all statements,
so that their waits do not need separate timeouts. Sending never blocks. Data that the broker does not read immediately
is kept for up to `SILENCE_S`. Under gevent, the threads are greenlets: `socket` and `threading` are looked up when they
are used, so gevent's patches always apply.
"""

import itertools
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from queryengine.engine import EngineStatus
from queryengine.errors import EngineBusyError, EngineUnavailableError
from queryengine.pool import messages
from queryengine.pool.broker import BROKER_SOCKET
from queryengine.pool.frames import FrameDecoder, Kind, encode
from queryengine.pool.messages import Answer, Asked, Counted, Found, Listed, Said, Status, decoded

logger = logging.getLogger(__name__)

#: An engine that has sent nothing for this time counts as dead. A connection is abandoned after twice this time, or if
#: the broker has not read any sent data for this time.
SILENCE_S = 4.0
#: The maximum number of seconds between two ticks of the clock.
TICK_S = 0.25
#: Seconds that a statement waits for a connection, so that no statement fails because the engine restarts.
RECONNECT_GRACE_S = 1.0

_FIRST_RETRY_S = 0.02
_LONGEST_RETRY_S = 0.5
_ANSWER_TIMEOUT_S = 2.0
_CLOSE_S = 2.0
_RECEIVE_BYTES = 64 * 1024

stopping = partial(EngineUnavailableError, "The runtime is stopping: try again.")
reclaimed = partial(EngineBusyError, reclaimed=True)
unreachable = partial(EngineUnavailableError, "The engine cannot be reached: try again.")


class _Connection:
    """A connection to the broker at *path*. One thread reads. Any thread can send, without blocking."""

    def __init__(self, path: str) -> None:
        """Connect. Raises OSError if there is no broker, or if this process has no free descriptors."""
        self._lock = threading.Lock()  # nothing under it blocks
        self._unsent = bytearray()
        self._progress_at = 0.0  # when the broker last read, or the oldest unsent message was added
        self._reads = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Both objects share one non-blocking socket. The timeout makes Python wait when this one reads.
            self._reads.settimeout(SILENCE_S)
            self._reads.connect(path)
            self._writes = self._reads.dup()
        except BaseException:
            self._reads.close()
            raise
        self._writes.setblocking(False)

    def send(self, message: Asked) -> None:
        """Send a message, or keep it until the broker reads. Raises OSError if the connection is lost."""
        frame = encode(Kind.MESSAGE, message)
        with self._lock:
            if not self._unsent:
                self._progress_at = time.monotonic()
            self._unsent += frame
            self._push()

    def flush(self) -> None:
        """Send as much of the kept data as the broker accepts. The reader detects a lost connection."""
        if self._unsent:
            with self._lock, suppress(OSError):
                self._push()

    def is_read(self, now: float) -> bool:
        """Return True if the broker is reading: no data is unsent, or it has read some recently."""
        return not self._unsent or now - self._progress_at < SILENCE_S

    def receive(self) -> bytes:
        """Wait for bytes and return them; empty if the connection is lost."""
        while True:
            try:
                return self._reads.recv(_RECEIVE_BYTES)
            except TimeoutError:
                continue  # The clock thread detects a silence that is too long.
            except OSError:
                return b""

    def hang_up(self) -> None:
        """Shut the connection down. Its reader then closes it."""
        with suppress(OSError):
            self._reads.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. Only the reader may call this."""
        self.hang_up()
        with self._lock:
            self._writes.close()
        self._reads.close()

    def _push(self) -> None:
        with suppress(BlockingIOError):
            while self._unsent:
                del self._unsent[: self._writes.send(self._unsent)]
                self._progress_at = time.monotonic()


class Listener(Protocol):
    """The methods that a link calls, in its own threads."""

    def take(self, message: Said) -> None:
        """Handle a message that is neither an answer nor a status."""

    def lost(self) -> None:
        """Forget all agreements with the broker, because the connection is lost."""

    def tick(self, now: float) -> float:
        """Perform the actions that are due, and return the seconds until the next call."""


class BrokerLink:
    """
    The connection to the broker in *directory*, maintained until `close`. Thread-safe.

    The link's own threads call *pool*: `take` for a message that is neither an answer nor a status, `lost`, and `tick`.
    """

    def __init__(self, directory: Path, pool: Listener) -> None:
        self._lock = threading.Lock()  # nothing under it blocks
        self._pool = pool
        self._path = str(directory / BROKER_SOCKET)
        self._connection: _Connection | None = None
        self._connected = threading.Event()
        self._closed = threading.Event()
        self._woken = threading.Event()
        self._lost_at = time.monotonic()
        self._questions: dict[int, Future[Answer]] = {}
        self._numbers = itertools.count()
        self._status = EngineStatus(workers_alive=0, workers_killed=0)
        self._is_stopping = False
        self._status_at = -math.inf
        self._was_alive = False
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for target, name in ((self._run, "engine-broker"), (self._keep_time, "engine-clock"))
        ]

    def start(self) -> None:
        """Connect and stay connected. From now on, the link calls the pool."""
        for thread in self._threads:
            thread.start()

    @property
    def instance_id(self) -> object | None:
        """A different object for each connection; None while there is no connection."""
        return self._connection

    @property
    def is_heard(self) -> bool:
        """Whether the broker has sent a status recently."""
        return time.monotonic() - self._status_at < SILENCE_S

    @property
    def is_stopping(self) -> bool:
        """Whether the runtime or this process is stopping."""
        return self._is_stopping or self._closed.is_set()

    @property
    def is_alive(self) -> bool:
        """Whether the engine accepts statements, as far as is known."""
        return self.is_heard and self._status.workers_alive > 0 and not self._is_stopping

    @property
    def status(self) -> EngineStatus:
        """The last status. If it is too old, nothing counts as alive, running or queued."""
        last = self._status
        known = last if self.is_heard else EngineStatus(workers_alive=0, workers_killed=last.workers_killed)
        return replace(known, is_starting=not self._was_alive)

    def require(self) -> None:
        """
        Wait up to `RECONNECT_GRACE_S` for a connection, if there is none.

        Raises:
            EngineUnavailableError: There is no broker, or the link is closed.
        """
        if not self._connected.is_set():
            self._connected.wait(max(0.0, self._lost_at + RECONNECT_GRACE_S - time.monotonic()))
        if self._closed.is_set():
            raise stopping()
        if self._connection is None or not self.is_heard:
            raise unreachable()

    def say(self, message: Asked) -> bool:
        """Send a message without blocking. Return False without a connection. A later loss calls `SlotPool.lost`."""
        connection = self._connection
        if connection is None:
            return False
        with suppress(EngineUnavailableError):
            self._send(connection, message)
        return True

    def wake(self) -> None:
        """Call `SlotPool.tick` soon, because something is due earlier than `tick` returned."""
        self._woken.set()

    def ask(self, question_of: Callable[[int], Asked]) -> Answer:
        """
        Ask the broker the request that *question_of* returns for a number, and wait for the answer.

        Raises:
            EngineUnavailableError: No answer arrived.
        """
        question: Future[Answer] = Future()
        with self._lock:
            connection = self._connection
            if connection is None:
                raise unreachable()
            number = next(self._numbers)
            self._questions[number] = question
        try:
            self._send(connection, question_of(number))
            return question.result(_ANSWER_TIMEOUT_S)
        except TimeoutError:
            raise unreachable() from None
        finally:
            with self._lock:
                self._questions.pop(number, None)

    def shut(self) -> None:
        """Refuse new statements. Idempotent."""
        self._closed.set()
        self._woken.set()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self.shut()
        with self._lock:
            connection = self._connection
        if connection is not None:
            connection.hang_up()
        for thread in self._threads:
            thread.join(_CLOSE_S)

    def _send(self, connection: _Connection, message: Asked) -> None:
        try:
            connection.send(message)
        except OSError as error:
            connection.hang_up()
            raise unreachable() from error

    # The threads.

    def _keep_time(self) -> None:
        wait_s = TICK_S
        while not self._closed.is_set():
            self._woken.wait(wait_s)
            self._woken.clear()
            with _logged_faults():
                wait_s = self._tick(time.monotonic())

    def _tick(self, now: float) -> float:
        connection = self._connection
        if connection is not None:
            connection.flush()
            if now - self._status_at >= 2 * SILENCE_S or not connection.is_read(now):
                connection.hang_up()
        return min(TICK_S, self._pool.tick(now))

    def _run(self) -> None:
        retry_s = _FIRST_RETRY_S
        while not self._closed.is_set():
            with _logged_faults():
                try:
                    connection = _Connection(self._path)
                except (FileNotFoundError, ConnectionRefusedError):
                    pass
                except OSError as error:
                    logger.warning("the broker cannot be reached", extra={"fields": {"error": error.strerror}})
                else:
                    retry_s = _FIRST_RETRY_S
                    self._serve(connection)
            self._closed.wait(retry_s)
            retry_s = min(retry_s * 2, _LONGEST_RETRY_S)

    def _serve(self, connection: _Connection) -> None:
        decoder = FrameDecoder()
        try:
            self._gain(connection)
            while data := connection.receive():
                for _, payload in decoder.feed(data):
                    self._take(decoded(payload, messages.SAID))
                connection.flush()  # A broker that sends has probably also read.
        finally:
            self._lose(connection)

    def _gain(self, connection: _Connection) -> None:
        with self._lock:
            self._connection = connection
            # The first status may take as long as any other.
            self._status = EngineStatus(workers_alive=0, workers_killed=self._status.workers_killed)
            self._is_stopping, self._status_at = False, time.monotonic()
            if self._closed.is_set():  # `close` found no connection to hang up
                connection.hang_up()
        self._connected.set()

    def _lose(self, connection: _Connection) -> None:
        """Forget a connection. Requests sent over it get no answer."""
        with self._lock:
            self._connection = None
            self._connected.clear()
            self._lost_at = time.monotonic()
            self._status_at = -math.inf
            questions = list(self._questions.values())
            self._questions.clear()
        connection.close()
        self._pool.lost()
        for question in questions:
            question.set_exception(unreachable())

    def _take(self, message: Said) -> None:
        match message:
            case Status():
                self._is_stopping = message.stopping
                self._status = EngineStatus(
                    workers_alive=message.alive,
                    workers_killed=message.killed,
                    workers_busy=message.busy,
                    running=message.running,
                    queued=message.queued,
                )
                self._status_at = time.monotonic()
                self._was_alive |= message.alive > 0
            case Listed() | Found() | Counted():
                with self._lock:
                    question = self._questions.pop(message.ask, None)
                if question is not None:
                    question.set_result(message)
            case _:
                self._pool.take(message)


@contextmanager
def _logged_faults() -> Iterator[None]:
    """Log any exception and continue, because a thread of the link must not end before the link."""
    try:
        yield
    except Exception:
        logger.exception("the connection to the broker failed; continuing")

"""
Sends events to the process that collects them.

Nothing here waits for the receiver, and nothing raises. Events that the system does not accept immediately are kept, up
to `MAX_UNSENT_BYTES`, and sent later. Beyond that, events are dropped and counted.
"""

import _socket  # not `socket`, which gevent replaces: nothing here waits
import _thread
import threading
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from telemetry.events import BUCKETS_S, AuthenticationFailuresEvent, DroppedEvent, Event, RequestsEvent, encode

#: The name of the collector's socket in the state directory.
WATCH_SOCKET = "watch.sock"

#: Seconds between two sends of sums and unsent events.
FLUSH_S = 1.0

MAX_UNSENT_BYTES = 1024 * 1024

#: Bytes that the system may buffer until the collector reads them. The system's own limit may be lower.
_BUFFER_BYTES = 1024 * 1024

#: Bytes of the kept events that are sent at once.
_SEND_BYTES = 64 * 1024


class SocketLink:
    """The connection to the collector's socket at *path*, reopened after a loss. Thread-safe, also under gevent."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        # Use the real lock even under gevent, because no code that holds it waits or switches to another greenlet.
        self._lock = _thread.allocate_lock()
        self._socket: _socket.socket | None = None
        self._unsent = bytearray()  # whole lines
        self._sent = 0  # the number of bytes of the first line already sent
        self._dropped = 0
        self._connect()

    def put(self, event: Event) -> None:
        """Send *event* after the kept events, or keep it."""
        line = encode(event)
        with self._lock:
            self._send_kept()
            if not self._unsent:
                sent = self._send(line)
                if sent == len(line):
                    return
                self._sent = sent
            if len(self._unsent) + len(line) > MAX_UNSENT_BYTES:
                self._dropped += 1
                return
            self._unsent += line

    def flush(self) -> None:
        """Send the kept events as far as the system accepts them. Reconnect if necessary."""
        with self._lock:
            if self._socket is None:
                self._connect()
            self._send_kept()
            if self._dropped and not self._unsent:
                line = encode(DroppedEvent(self._dropped))
                if self._send(line) == len(line):  # otherwise the first bytes end the connection's last line
                    self._dropped = 0

    def close(self) -> None:
        """Close the connection. Kept events are lost."""
        with self._lock:
            self._lose()

    def _send_kept(self) -> None:
        while self._unsent and (sent := self._send(self._unsent[self._sent : self._sent + _SEND_BYTES])):
            end = self._sent + sent
            whole = self._unsent.rfind(b"\n", 0, end) + 1
            del self._unsent[:whole]
            self._sent = end - whole

    def _send(self, data: bytes | bytearray) -> int:
        if self._socket is None:
            return 0
        try:
            return self._socket.send(data, _socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0
        except OSError:
            self._lose()
            return 0

    def _connect(self) -> None:
        connection = None
        try:
            connection = _socket.socket(
                _socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC
            )
            connection.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, _BUFFER_BYTES)
            connection.connect(self._path)
        except OSError:
            if connection is not None:
                connection.close()
        else:
            self._socket = connection

    def _lose(self) -> None:
        """Drop the connection. The collector ignores an incomplete line, so that line is sent again."""
        self._sent = 0
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class Sender:
    """
    Passes events to *put*, a function or a connection. Requests and failed authentications are added up first.

    There may be very many of these two kinds of event. `flush` passes the sums on. If *has_thread* is true, a thread
    calls it every `FLUSH_S` seconds. All other events are passed on immediately. *keeps_sql* is true if statement
    events should contain the SQL text.
    """

    def __init__(
        self, put: Callable[[Event], None] | SocketLink, *, keeps_sql: bool = False, has_thread: bool = True
    ) -> None:
        self.link = put if isinstance(put, SocketLink) else None
        self.send: Callable[[Event], None] = put.put if isinstance(put, SocketLink) else put
        self.keeps_sql = keeps_sql
        self._lock = _thread.allocate_lock()  # the real lock; see `SocketLink`
        self._requests: dict[tuple[str, int], tuple[list[float], list[int]]] = {}
        self._failures: dict[str, int] = {}
        self._stopped = threading.Event()
        if has_thread:  # a greenlet under gevent
            threading.Thread(target=self._flush_regularly, name="telemetry", daemon=True).start()

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Add an HTTP request that took *seconds*."""
        with self._lock:
            sums = self._requests.get((route, status))
            if sums is None:
                sums = self._requests[route, status] = [0.0], [0] * (len(BUCKETS_S) + 1)
            sums[0][0] += seconds
            sums[1][bisect_left(BUCKETS_S, seconds)] += 1

    def count_failure(self, reason: str) -> None:
        """Add a failed authentication."""
        with self._lock:
            self._failures[reason] = self._failures.get(reason, 0) + 1

    def flush(self) -> None:
        """Pass on sums and kept events."""
        if self._requests or self._failures:
            with self._lock:
                requests, self._requests = self._requests, {}
                failures, self._failures = self._failures, {}
            for (route, status), (seconds, buckets) in requests.items():
                self.send(RequestsEvent(route, status, seconds[0], buckets))
            for reason, count in failures.items():
                self.send(AuthenticationFailuresEvent(reason, count))
        if self.link is not None:
            self.link.flush()

    def close(self) -> None:
        """Stop sending. Sums and kept events are lost."""
        self._stopped.set()
        if self.link is not None:
            self.link.close()

    def _flush_regularly(self) -> None:
        while not self._stopped.wait(FLUSH_S):
            with suppress(Exception):  # The next events must be sent even after an error.
                self.flush()

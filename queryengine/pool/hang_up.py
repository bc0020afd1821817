"""Notices that a client hung up while its statement runs in an engine worker."""

import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from queryengine.cancellation import Interruption
from queryengine.errors import QueryCancelledError

#: How often a hang-up is looked at again, until the statement has ended.
_TICK_S = 0.05


class HangUpWatch:
    """
    Stops a statement when its client closes the connection, or the sending side of it.

    The process then has *grace_s* seconds to stop the statement until SIGALRM ends it. The one thread of the watch
    sleeps in the kernel until a client hangs up.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._lock = threading.Lock()
        self._epoll = select.epoll()
        self._connection: socket.socket | None = None
        self._interruption: Interruption | None = None
        threading.Thread(target=self._run, name="engine-hang-up", daemon=True).start()

    @contextmanager
    def over(self, connection: socket.socket) -> Iterator[None]:
        """
        Watch *connection* for the length of the block.

        Raises:
            OSError: The system lacks the resources.
        """
        self._epoll.register(connection, select.EPOLLRDHUP)
        self._connection = connection
        try:
            yield
        finally:
            self.end()
            self._connection = None
            with suppress(OSError):
                self._epoll.unregister(connection)

    def begin(self, interruption: Interruption) -> None:
        """Stop *interruption* if the client hangs up before `end`."""
        self._interruption = interruption

    def end(self) -> None:
        """Stop no statement and set no alarm from now on. More than one call is harmless."""
        with self._lock:
            self._interruption = None

    def _run(self) -> None:
        while True:
            self._epoll.poll()
            with suppress(MemoryError):  # A statement uses it all: the next look may succeed.
                self._look()
            time.sleep(_TICK_S)

    def _look(self) -> None:
        with self._lock:
            interruption, connection = self._interruption, self._connection
            # The event may belong to an earlier connection with the same descriptor.
            if interruption is None or connection is None or not _is_hung_up(connection):
                return
            left_s, _ = signal.getitimer(signal.ITIMER_REAL)
            signal.setitimer(signal.ITIMER_REAL, min(self._grace_s, left_s or self._grace_s))
        interruption.stop(QueryCancelledError)


def _is_hung_up(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))

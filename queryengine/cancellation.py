"""
Stops statements: who stops a statement, why, and how the engine is interrupted.

`CancelSource` belongs to the caller. `Interruption` belongs to one statement. The first reason to stop the statement
wins, and its caller gets that reason. `Watchdog` enforces the time limits of an engine. `HangUpWatch` detects in a
worker that the client has disconnected.
"""

import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from queryengine.errors import QueryCancelledError, QueryError, QueryTimeoutError

#: Seconds between two checks of the watchdog. Each check repeats interrupts, because DuckDB loses an interrupt that
#: arrives between two of its steps.
TICK_S = 0.05

Reason = Callable[[], QueryError]


class CancelSource:
    """A `CancelToken` that works once, from any thread, before or during the statement."""

    def __init__(self) -> None:
        # No lock is needed, because popping a callback is atomic, and only the thread that popped a callback calls it.
        self.cancelled = False
        self._callbacks: dict[object, Callable[[], None]] = {}

    def cancel(self) -> None:
        """Call every subscriber once. Further calls do nothing."""
        self.cancelled = True
        for token in list(self._callbacks):
            self._call(token)

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call *callback* on cancellation, or now if already cancelled. The returned function ends the subscription."""
        token = object()
        self._callbacks[token] = callback
        if self.cancelled:  # Read after storing the callback, so that either this thread or `cancel` calls it.
            self._call(token)
        return partial(self._unsubscribe, token)

    def _unsubscribe(self, token: object) -> None:
        self._callbacks.pop(token, None)

    def _call(self, token: object) -> None:
        callback = self._callbacks.pop(token, None)
        if callback is not None:
            callback()


class Interruption:
    """
    The reason to stop one statement, and the way to stop it. Thread-safe.

    While the statement is waiting or running, a function that stops it is attached. The function is called with the
    lock held, so it is never called after `detach`, and the objects that it uses can then be closed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reason: Reason | None = None
        self._interrupt: Callable[[], None] | None = None

    @property
    def stopped(self) -> bool:
        """Whether there is a reason to stop."""
        return self._reason is not None

    def stop(self, reason: Reason) -> None:
        """Stop the statement with the error that *reason* returns. An earlier reason wins. Can be called repeatedly."""
        with self._lock:
            if self._reason is None:
                self._reason = reason
            if self._interrupt is not None:
                self._interrupt()

    def check(self) -> None:
        """
        Raise the reason to stop, if there is one.

        Raises:
            QueryError: The reason.
        """
        if self._reason is not None:
            raise self._reason()

    def attach(self, interrupt: Callable[[], None]) -> None:
        """Call *interrupt* to stop the statement from now on. If there is a reason already, call it immediately."""
        with self._lock:
            self._interrupt = interrupt
            if self._reason is not None:
                interrupt()

    def detach(self) -> None:
        """Remove the attached function. Repeated calls are harmless."""
        with self._lock:
            self._interrupt = None


class Watchdog:
    """
    Stops statements whose time is up, and repeats the interrupt of each stopped statement until the statement ends.

    The watchdog has one daemon thread, which sleeps while no statement is watched.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._watched: dict[Interruption, tuple[float, Reason]] = {}
        self._asleep = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="engine-watchdog", daemon=True)
        self._thread.start()

    def watch(self, interruption: Interruption, limit_s: float, *, left_s: float | None = None) -> None:
        """
        Stop *interruption* with a `QueryTimeoutError` after *limit_s* seconds, unless `forget` is called first.

        A statement that has already used part of its limit has *left_s* seconds left.
        """
        after_s = limit_s if left_s is None else min(left_s, limit_s)
        entry = (time.monotonic() + after_s, partial(QueryTimeoutError, limit_s))
        with self._condition:
            self._watched[interruption] = entry
            if self._asleep:  # Otherwise the next check is at most one tick away, so save a thread switch.
                self._condition.notify()

    def forget(self, interruption: Interruption) -> None:
        """Stop watching a statement that has ended. Repeated calls are harmless."""
        with self._condition:
            self._watched.pop(interruption, None)

    def stop_all(self, reason: Reason) -> None:
        """Stop every watched statement."""
        with self._condition:
            watched = list(self._watched)
        for interruption in watched:
            interruption.stop(reason)

    def close(self) -> None:
        """End the thread. Statements that are still watched are no longer stopped."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        self._thread.join()

    def _run(self) -> None:
        with self._condition:
            while not self._closed:
                self._asleep = not self._watched
                try:
                    wait_s = self._look(time.monotonic())
                except MemoryError:  # A statement uses all the memory, perhaps the one that must be stopped.
                    wait_s = TICK_S
                self._condition.wait(wait_s)

    def _look(self, now: float) -> float | None:
        """Stop statements that are due at *now*. Return the seconds to the next check; None if nothing is watched."""
        wait_s = TICK_S if self._watched else None
        for interruption, (deadline, reason) in self._watched.items():
            if interruption.stopped or deadline <= now:
                interruption.stop(reason)
            else:
                wait_s = min(TICK_S, deadline - now, wait_s or TICK_S)
        return wait_s


# --- clients that hang up ---------------------------------------------------------------------------------------------

#: Seconds between two checks after a hang-up, until the statement has ended.
_TICK_S = 0.05


class HangUpWatch:
    """
    Stops a statement when its client closes the connection, or the connection's sending side.

    The process then has *grace_s* seconds to stop the statement before SIGALRM ends the process. The watch has one
    thread, which sleeps in the kernel until a client hangs up.
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
        Watch *connection* for the duration of the block.

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
        """From now on, stop no statement and set no alarm. Repeated calls are harmless."""
        with self._lock:
            self._interruption = None

    def _run(self) -> None:
        while True:
            self._epoll.poll()
            with suppress(MemoryError):  # A statement uses all the memory, but the next check may succeed.
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

"""
Detects clients that disconnect while their statement runs.

A server that waits for the first bytes of a response does not read from the connection, so it does not notice a
disconnect. Instead, one thread per process (a greenlet under gevent) polls the sockets of all running statements. It is
not created when this module is imported, because gevent replaces threads and locks later.
"""

import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

#: Seconds between polls. A statement must stop within 2 s after its client disconnects.
_INTERVAL_S = 0.25
# The peer has closed or shut down its side. The two cannot be distinguished before we write.
_GONE = select.POLLHUP | select.POLLERR | select.POLLNVAL | getattr(select, "POLLRDHUP", 0)


class Watch:
    """A watched connection, one of *watches*. `gone` becomes true when the client has disconnected."""

    __slots__ = ("_on_gone", "_watches", "gone")

    def __init__(self, watches: "dict[Watch, int]", on_gone: Callable[[], None]) -> None:
        self._watches = watches
        self._on_gone = on_gone
        self.gone = False

    def report(self) -> None:
        """Record that the client has disconnected, unless the watch was stopped."""
        # The statement may have ended since the poll, and its descriptor may now belong to another connection. Removing
        # the watch is atomic, and only the thread that removes it may report.
        if self._watches.pop(self, None) is not None:
            self.gone = True
            self._on_gone()

    def stop(self) -> None:
        """Stop watching. Repeated calls are harmless. A report in progress is not interrupted."""
        self._watches.pop(self, None)


class DisconnectWatcher:
    """Watches any number of connections with one thread, which starts with the first and sleeps if there are none."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watches: dict[Watch, int] = {}  # with their file descriptors
        self._thread: threading.Thread | None = None
        self._sleeps = True

    def watch(self, connection: socket.socket | None, on_gone: Callable[[], None]) -> Watch:
        """
        Call *on_gone* from another thread when the client of *connection* disconnects. The caller must stop the watch.

        Without a connection (a test client) the watch never reports.
        """
        descriptor = -1 if connection is None else connection.fileno()
        if descriptor < 0:
            return Watch({}, on_gone)
        watch = Watch(self._watches, on_gone)
        self._watches[watch] = descriptor
        # Only the first connection wakes the thread. It sees later connections at its next poll, which saves a lock and
        # a thread switch for each short statement. The thread sets `_sleeps` before it checks whether it may sleep.
        if self._sleeps:
            with self._changed:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="disconnects", daemon=True)
                    self._thread.start()
                self._changed.notify()
        return watch

    def _run(self) -> None:
        while True:
            with self._changed:
                self._sleeps = True
                self._changed.wait_for(lambda: self._watches)
                self._sleeps = False
            time.sleep(_INTERVAL_S)
            for watch in self._disconnected():
                watch.report()

    def _disconnected(self) -> list[Watch]:
        """Return the watches whose clients have disconnected, without waiting."""
        watched = {descriptor: watch for watch, descriptor in self._watches.copy().items()}
        poll = _native_poll()
        for descriptor in watched:
            poll.register(descriptor, _GONE)
        return [watched[descriptor] for descriptor, _ in poll.poll(0)]


def _native_poll() -> Any:
    """Return the system's `select.poll`, because gevent's version would wait and does not support POLLRDHUP."""
    monkey = sys.modules.get("gevent.monkey")
    return select.poll() if monkey is None else monkey.get_original("select", "poll")()


_watchers: dict[int, DisconnectWatcher] = {}


def watch(environ: Mapping[str, Any], on_gone: Callable[[], None]) -> Watch:
    """Watch the connection of a request with this process's own watcher, because a fork does not inherit threads."""
    process = os.getpid()
    watcher = _watchers.get(process)
    if watcher is None:
        # This is atomic, so all threads get the same watcher.
        watcher = _watchers.setdefault(process, DisconnectWatcher())
    # Servers store the socket under different names.
    return watcher.watch(environ.get("runtime.socket") or environ.get("gunicorn.socket"), on_gone)

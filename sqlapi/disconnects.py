"""
Noticing that a client has left while its statement still runs.

A server that waits for the first bytes of an answer reads nothing from the connection and so sees nothing. One thread
of the process looks at the sockets of all running statements instead; under gevent it is a greenlet. Nothing of it is
made when this module is imported, because gevent replaces threads and locks after that.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

#: Seconds between two looks; the contract allows 2 from a client's leaving to the end of its statement.
_INTERVAL_S = 0.25
# The other side has closed, or (a difference that nothing shows before we write) will send no more.
_GONE = select.POLLHUP | select.POLLERR | select.POLLNVAL | getattr(select, "POLLRDHUP", 0)


class HasFileno(Protocol):
    """A socket."""

    def fileno(self) -> int:
        """Return the file descriptor, -1 when closed."""


class Watch:
    """A watched connection. `gone` becomes true, once, when the client has left."""

    __slots__ = ("_on_gone", "_watcher", "gone")

    def __init__(self, watcher: DisconnectWatcher | None, on_gone: Callable[[], None]) -> None:
        self._watcher = watcher
        self._on_gone = on_gone
        self.gone = False

    def report(self) -> None:
        """Take note that the client has left."""
        self.gone = True
        self._on_gone()

    def stop(self) -> None:
        """Watch no longer. More than one call is harmless; a report that is under way goes on."""
        if self._watcher is not None:
            self._watcher.discard(self)


class DisconnectWatcher:
    """Watches any number of connections with one thread, which starts with the first and sleeps when none is left."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watches: dict[Watch, int] = {}  # with their descriptors
        self._thread: threading.Thread | None = None
        self._sleeps = True

    def watch(self, connection: HasFileno | None, on_gone: Callable[[], None]) -> Watch:
        """
        Call *on_gone*, from another thread, when the client of *connection* leaves; the caller stops the watch.

        Without a connection (a test client) the watch never reports.
        """
        descriptor = -1 if connection is None else connection.fileno()
        if descriptor < 0:
            return Watch(None, on_gone)
        watch = Watch(self, on_gone)
        self._watches[watch] = descriptor
        # The thread waits for the first connection only; later ones are seen at its next look, which spares every
        # short statement a lock and a switch of threads. It says that it sleeps before it looks whether it may.
        if self._sleeps:
            with self._changed:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="disconnects", daemon=True)
                    self._thread.start()
                self._changed.notify()
        return watch

    def discard(self, watch: Watch) -> None:
        """Forget *watch*."""
        self._watches.pop(watch, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._sleeps = True
                self._changed.wait_for(lambda: self._watches)
                self._sleeps = False
            time.sleep(_INTERVAL_S)
            for watch in self._gone():
                self._report(watch)

    def _gone(self) -> list[Watch]:
        """Look, without waiting, which clients have left."""
        watched = {descriptor: watch for watch, descriptor in self._watches.copy().items()}
        poll = _native_poll()
        for descriptor in watched:
            poll.register(descriptor, _GONE)
        return [watched[descriptor] for descriptor, _ in poll.poll(0)]

    def _report(self, watch: Watch) -> None:
        # The statement may have ended meanwhile, and its descriptor may be another connection by now: whoever takes the
        # watch out, which is one step, decides.
        if self._watches.pop(watch, None) is not None:
            watch.report()


def _native_poll() -> Any:
    """Return a `select.poll` of the system: gevent's own would wait, and knows nothing of a half-closed connection."""
    monkey = sys.modules.get("gevent.monkey")
    return select.poll() if monkey is None else monkey.get_original("select", "poll")()


def connection_of(environ: dict[str, Any]) -> HasFileno | None:
    """Return the socket of a request, under the names that servers give it; None when there is none."""
    found: HasFileno | None = environ.get("runtime.socket") or environ.get("gunicorn.socket")
    return found


_watchers: dict[int, DisconnectWatcher] = {}


def watch(connection: HasFileno | None, on_gone: Callable[[], None]) -> Watch:
    """As `DisconnectWatcher.watch`, with the one watcher of this process: a fork has no threads of its parent."""
    process = os.getpid()
    watcher = _watchers.get(process)
    if watcher is None:
        watcher = _watchers.setdefault(process, DisconnectWatcher())  # one step: all get the same
    return watcher.watch(connection, on_gone)

"""The deadline of a load, which passes when the time is up or the runtime stops."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import duckdb

from datasources.errors import INTERRUPTED, SnapshotError

#: Seconds between checks for a passed deadline.
_POLL_S = 0.05


class Deadline:
    """
    The end of one load: *limit_s* seconds from now, or as soon as *stop* is set.

    *name* is the name of the limit in errors. *left_s* is the remaining limit of a load that another process began.
    Long-running Python code calls `check`, and work inside the engine runs under `guard`. Client libraries, whose own
    timeouts do not cover every wait, run under `cut_off`, or under `calling` if a call can stop them.
    """

    def __init__(
        self,
        limit_s: float,
        stop: threading.Event,
        *,
        name: str = "the refresh_timeout of the dataset",
        left_s: float | None = None,
    ) -> None:
        self.limit_s = limit_s
        self._name = name
        self._stop = stop
        self._end = time.monotonic() + (limit_s if left_s is None else left_s)

    @property
    def left_s(self) -> float:
        """Seconds until the time is up; negative afterwards."""
        return self._end - time.monotonic()

    @property
    def stopped(self) -> bool:
        """Whether the runtime is stopping."""
        return self._stop.is_set()

    @property
    def passed(self) -> bool:
        """Whether the load must end now."""
        return self.stopped or self.left_s <= 0

    def check(self) -> None:
        """
        Raise if the load must end.

        Raises:
            SnapshotError: The time is up, or the runtime is stopping.
        """
        if self.stopped:
            raise SnapshotError(INTERRUPTED)
        if self.left_s <= 0:
            raise SnapshotError(f"The load was stopped after {self.limit_s:g} s, {self._name}.")

    def sleep(self, seconds: float) -> None:
        """Wait for *seconds* or until the runtime stops, then `check`."""
        self._stop.wait(seconds)
        self.check()

    @contextmanager
    def guard(self, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
        """
        Interrupt the statements of *connection* as soon as the load must end.

        Raises:
            SnapshotError: A statement was interrupted.
        """
        try:
            with self.calling(connection.interrupt):
                yield
        except duckdb.InterruptException:
            self.check()
            raise

    @contextmanager
    def cut_off(self, is_theirs: Callable[[socket.socket], bool]) -> Iterator[None]:
        """
        Shut down connections as soon as the load must end, so that a client library returns with an error.

        Only connections that this process opened since the block began and that *is_theirs* accepts are shut down.
        """
        before = set(_sockets())

        def shut_down() -> None:
            for inode, descriptor in _sockets().items():
                if inode not in before:
                    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as duplicate:
                        if is_theirs(duplicate):
                            duplicate.shutdown(socket.SHUT_RDWR)

        with self.calling(shut_down):
            yield

    @contextmanager
    def calling(self, end: Callable[[], None]) -> Iterator[None]:
        """Once the load must end, call *end* repeatedly until the block ends, because a single call may be lost."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(_POLL_S):
                if self.passed:
                    end()

        watcher = threading.Thread(target=watch, name="load-deadline", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


def _sockets() -> dict[str, int]:
    """Return this process's socket descriptors by inode name."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed in the meantime
            name = str(entry.readlink())
            if name.startswith("socket:"):
                found[name] = int(entry.name)
    return found

"""One process at a time refreshes the data of a state directory; one runs its engine, one supervises."""

from __future__ import annotations

import errno
import fcntl
import os
import time
import weakref
from contextlib import suppress
from pathlib import Path

from system.errors import StateDirectoryError
from system.state_directory import file_id

LOCK_NAME = "lock"
#: Of the supervisor, and of the engine's arbiter: there is one of each, too.
SUPERVISOR_LOCK_NAME = "serve.lock"
ENGINE_LOCK_NAME = "engine.lock"
#: Of who serves Flight SQL, from the moment it does until it is told to stop.
FLIGHT_LOCK_NAME = "flight.lock"

#: Seconds that a start waits for the port and the lock of a predecessor that is just ending.
PREDECESSOR_WAIT_S = 5.0

_POLL_S = 0.05


class StateLock:
    """
    A lock of *state_dir*, by default that of who refreshes. The system frees it when its holder ends, however it ends.

    The lock file stays where it is and holds the holder's process id, for the message to the next one.
    """

    def __init__(self, state_dir: Path, name: str = LOCK_NAME) -> None:
        self._path = state_dir / name
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object has the lock."""
        return self._descriptor is not None

    def acquire(self, wait_s: float = 0.0) -> bool:
        """
        Take the lock, for which a predecessor that is just ending is given *wait_s* seconds; False: another has it.

        Raises:
            StateDirectoryError: The lock file cannot be used.
        """
        end = time.monotonic() + wait_s
        while not self._try():
            if time.monotonic() >= end:
                return False
            time.sleep(_POLL_S)
        return True

    def keep(self) -> bool:
        """
        Take the lock again if its file is gone or another has its name, as after a clean-up.

        Returns:
            Whether this object has it: not when another process was quicker, or there is no directory any more.
        """
        if self._descriptor is None or not self._is_named(self._descriptor):
            self.release()
            with suppress(StateDirectoryError):
                return self._try()
        return self.held

    def release(self) -> None:
        """Give the lock back, if it is held."""
        if self._descriptor is not None:
            _held.discard(self)
            os.close(self._descriptor)
            self._descriptor = None

    def holder(self) -> str:
        """Say who has the lock, as `process 123` or, when that cannot be told, `another process`."""
        try:
            pid = self._path.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            pid = ""
        return f"process {pid}" if pid.isdigit() else "another process"

    def is_taken(self) -> bool:
        """Say whether anybody has the lock now. Nobody is kept from taking it but for the moment of the look."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as exc:
            return exc.errno == errno.EWOULDBLOCK
        finally:
            os.close(descriptor)
        return False

    def _try(self) -> bool:
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise StateDirectoryError(f"The lock of the state directory cannot be used: {exc.strerror}.") from exc
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Of a file that has been deleted meanwhile, the lock is worth nothing.
            if not self._is_named(descriptor):
                os.close(descriptor)
                return False
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
        except OSError as exc:
            os.close(descriptor)
            if exc.errno == errno.EWOULDBLOCK:
                return False
            raise StateDirectoryError(f"The lock of the state directory cannot be used: {exc.strerror}.") from exc
        self._descriptor = descriptor
        _held.add(self)
        return True

    def _is_named(self, descriptor: int) -> bool:
        found = os.fstat(descriptor)
        return (found.st_dev, found.st_ino) == file_id(self._path)


_held: weakref.WeakSet[StateLock] = weakref.WeakSet()


def _let_go() -> None:
    """A child that was forked shares the lock and would keep it beyond the end of its parent."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_let_go)

"""Locks in the state directory. At most one process each refreshes the data, runs the engine, and supervises."""

import fcntl
import os
import time
import weakref
from contextlib import ExitStack, suppress
from pathlib import Path

from system.errors import StateDirectoryError
from system.state_directory import file_id

LOCK_NAME = "lock"
SUPERVISOR_LOCK_NAME = "serve.lock"
ENGINE_LOCK_NAME = "engine.lock"
#: Held by the Flight SQL server while it accepts calls.
FLIGHT_LOCK_NAME = "flight.lock"

#: How long startup waits for the port and the lock of a stopping predecessor.
PREDECESSOR_WAIT_S = 5.0

_POLL_S = 0.05


class StateLock:
    """
    A lock in *state_dir*, by default the refresher's. The kernel releases it when the holder ends for any reason.

    The lock file is never removed. It contains the holder's process id for the error message of the next process.
    """

    def __init__(self, state_dir: Path, name: str = LOCK_NAME) -> None:
        self._path = state_dir / name
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor is not None

    def acquire(self, wait_s: float = 0.0) -> bool:
        """
        Acquire the lock, waiting up to *wait_s* seconds. Return False if another process still holds it.

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
        Acquire the lock again if its file was removed or replaced, for example by a clean-up.

        Returns:
            Whether this object holds the lock. False if another process was faster or the directory is gone.
        """
        if self._descriptor is None or not self._is_named(self._descriptor):
            self.release()
            with suppress(StateDirectoryError):
                return self._try()
        return self.held

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._descriptor is not None:
            _held.discard(self)
            os.close(self._descriptor)
            self._descriptor = None

    def holder(self) -> str:
        """Return the holder as `process 123`, or `another process` if it is unknown."""
        try:
            pid = self._path.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            pid = ""
        return f"process {pid}" if pid.isdigit() else "another process"

    def holder_pid(self) -> int | None:
        """Return the holder's process id; None if nobody holds the lock or this process cannot see the holder."""
        with suppress(OSError, ValueError):
            if self.is_taken():
                pid = int(self._path.read_text(encoding="ascii"))
                # If the holder is in a container, another process may have its number here.
                if any(path.exists() and path.samefile(self._path) for path in Path(f"/proc/{pid}/fd").iterdir()):
                    return pid
        return None

    def is_taken(self) -> bool:
        """Return whether any process holds the lock. The check blocks others only for a moment."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as exc:
            return isinstance(exc, BlockingIOError)
        finally:
            os.close(descriptor)
        return False

    def _try(self) -> bool:
        with ExitStack() as opened:
            try:
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                opened.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # A lock on a file that has been deleted in the meantime protects nothing.
                if not self._is_named(descriptor):
                    return False
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
            except BlockingIOError:
                return False
            except OSError as exc:
                raise StateDirectoryError(f"The lock of the state directory cannot be used: {exc.strerror}.") from exc
            opened.pop_all()
        self._descriptor = descriptor
        _held.add(self)
        return True

    def _is_named(self, descriptor: int) -> bool:
        found = os.fstat(descriptor)
        return (found.st_dev, found.st_ino) == file_id(self._path)


_held: weakref.WeakSet[StateLock] = weakref.WeakSet()


def _release_inherited() -> None:
    """Release the locks in a forked child, which would otherwise keep them after its parent ends."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_release_inherited)

"""
When each key was last used, in a file of the state directory.

A request only notes the time in memory. Each process writes its notes `WRITE_AFTER_S` seconds after the first one, so
the file is at most that old, however the process ends.
"""

import json
import logging
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from system.errors import StateDirectoryError
from system.lock import StateLock

logger = logging.getLogger(__name__)

FILE_NAME = "key-use.json"
_LOCK_NAME = "key-use.lock"

#: Seconds from a use to the write that records it.
WRITE_AFTER_S = 30.0
_LOCK_WAIT_S = 5.0
#: The year 3000: a later time is damage.
_END = 32_503_680_000


class LastUse:
    """The last uses of keys that this process has not written to *state_dir* yet. Safe from any thread."""

    def __init__(self, state_dir: Path, write_after_s: float = WRITE_AFTER_S) -> None:
        self._state_dir = state_dir
        self._write_after_s = write_after_s
        self._used: dict[str, float] = {}
        self._is_due = False

    def note(self, fingerprint: str) -> None:
        """Note that the key is used now."""
        self._used[fingerprint] = time.time()
        if not self._is_due:
            self._is_due = True
            timer = threading.Timer(self._write_after_s, self.write)
            timer.daemon = True
            timer.start()

    def write(self) -> None:
        """Add what was noted to the file. A failure is logged, and the notes are kept for the next time."""
        self._is_due = False
        used, self._used = self._used, {}
        lock = StateLock(self._state_dir, _LOCK_NAME)
        try:
            if lock.acquire(_LOCK_WAIT_S):
                self._merge(used)
                return
            reason = "another process holds the lock"
        except (OSError, StateDirectoryError) as error:
            reason = str(error)
        finally:
            lock.release()
        self._used = used | self._used
        logger.warning("cannot save when keys were last used", extra={"fields": {"error": reason}})

    def _merge(self, used: dict[str, float]) -> None:
        known = read(self._state_dir)
        for fingerprint, moment in used.items():
            known[fingerprint] = max(moment, known.get(fingerprint, 0.0))
        temporary = self._state_dir / f"{FILE_NAME}.tmp"  # of the holder of the lock
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(known, file)
        temporary.replace(self._state_dir / FILE_NAME)


def read(state_dir: Path) -> dict[str, float]:
    """Return the times of last use, in seconds since 1970, by fingerprint; nothing if the file cannot be read."""
    with suppress(OSError, ValueError):
        found = json.loads((state_dir / FILE_NAME).read_bytes())
        if isinstance(found, dict):
            times = {key: moment for key, moment in found.items() if isinstance(moment, int | float)}
            return {key: float(moment) for key, moment in times.items() if 0 <= moment < _END}
    return {}

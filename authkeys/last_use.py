"""
Records when each key was last used, in a file in the state directory.

A request only notes the time in memory. Each process writes its notes `WRITE_AFTER_S` seconds after the first note, so
a process that is killed loses at most the last `WRITE_AFTER_S` seconds.
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

#: Seconds between the first unwritten use and the write.
WRITE_AFTER_S = 30.0
_LOCK_WAIT_S = 5.0
#: The year 3000. A later time means that the file is damaged.
_END = 32_503_680_000


class LastUse:
    """The key uses that this process has not yet written to *state_dir*. Thread-safe."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._used: dict[str, float] = {}
        self._is_due = False

    def note(self, fingerprint: str) -> None:
        """Note that the key was used now."""
        self._used[fingerprint] = time.time()
        if not self._is_due:
            self._is_due = True
            timer = threading.Timer(WRITE_AFTER_S, self.write)
            timer.daemon = True
            timer.start()

    def write(self) -> None:
        """Write the notes to the file. If that fails, log the error and keep the notes for the next attempt."""
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
        temporary = self._state_dir / f"{FILE_NAME}.tmp"  # only the holder of the lock uses it
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(known, file)
        temporary.replace(self._state_dir / FILE_NAME)


def read(state_dir: Path) -> dict[str, float]:
    """Return each key's last use in seconds since 1970, by fingerprint. If the file cannot be read, return no times."""
    with suppress(OSError, ValueError):
        found = json.loads((state_dir / FILE_NAME).read_bytes())
        if isinstance(found, dict):
            times = {key: moment for key, moment in found.items() if isinstance(moment, int | float)}
            return {key: float(moment) for key, moment in times.items() if 0 <= moment < _END}
    return {}

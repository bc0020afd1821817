"""The last refreshes of each dataset, kept over a restart."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

from datasets.control import RefreshRun, RefreshStatus
from datasets.errors import INTERRUPTED
from datasets.wallclock import seconds_since, utc_now

logger = logging.getLogger(__name__)

HISTORY_NAME = "refreshes.json"
FORMAT_VERSION = 1

#: Runs kept of each dataset.
MAX_RUNS = 100

_STATUSES = get_args(RefreshStatus)


class History:
    """
    Runs by dataset, newest first; every change is on disk before the call returns. Safe for threads.

    Making one reads what a predecessor left in *state_dir*. A run that it did not finish is listed as failed
    (`interrupted`). A history that cannot be read is given up with a warning: it is no reason not to start.
    """

    def __init__(self, state_dir: Path, datasets: Iterable[str]) -> None:
        self._path = state_dir / HISTORY_NAME
        self._lock = threading.Lock()
        self._is_saved = True
        found = self._read()
        self._runs = {name: found.get(name, []) for name in datasets}
        self.interrupt()

    def runs(self, dataset: str) -> tuple[RefreshRun, ...]:
        """Return the runs of *dataset*, newest first."""
        with self._lock:
            return tuple(self._runs[dataset])

    def put(self, dataset: str, run: RefreshRun) -> None:
        """Add *run*, or take it in place of the one with its id."""
        with self._lock:
            runs = self._runs[dataset]
            for index, other in enumerate(runs):
                if other.id == run.id:
                    runs[index] = run
                    break
            else:
                runs.insert(0, run)
                del runs[MAX_RUNS:]
            self._write()

    def interrupt(self) -> None:
        """List every run that has not finished as failed."""
        now = utc_now()
        with self._lock:
            for name, runs in self._runs.items():
                self._runs[name] = [
                    replace(run, status="failed", finished_at=now, error=INTERRUPTED)
                    if run.finished_at is None
                    else run
                    for run in runs
                ]
            self._write()

    def _read(self) -> dict[str, list[RefreshRun]]:
        try:
            document = json.loads(self._path.read_bytes())
            if document["format_version"] != FORMAT_VERSION:
                logger.warning("The list of past refreshes is of another release: it starts anew")
                return {}
            return {name: [_kept(item) for item in runs] for name, runs in document["datasets"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            logger.warning("The list of past refreshes cannot be read: it starts anew")
            return {}

    def _write(self) -> None:
        document = {
            "format_version": FORMAT_VERSION,
            "datasets": {name: [asdict(run) for run in runs] for name, runs in self._runs.items()},
        }
        temporary = self._path.with_name(f"{HISTORY_NAME}.tmp")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                json.dump(document, file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
            self._is_saved = True
        except OSError as exc:
            # The list in memory is right; a full disk must not stop the refresh that may be about to free it.
            if self._is_saved:
                logger.warning("The list of refreshes cannot be saved: %s", exc.strerror)
            self._is_saved = False
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def run_of(item: dict[str, Any]) -> RefreshRun:
    """
    Make a run of what JSON says of it.

    Raises:
        TypeError: It is not what `dataclasses.asdict` gives for a run.
        ValueError: Its status is unknown.
    """
    run = RefreshRun(**item)
    if run.status not in _STATUSES or not isinstance(run.id, str):
        raise ValueError("not a run")
    return run


def _kept(item: dict[str, Any]) -> RefreshRun:
    """Make a run as `run_of` does, and see that its end, of which the age of data is worked out, is a time."""
    run = run_of(item)
    if run.finished_at is not None:
        seconds_since(run.finished_at)
    return run

"""
The refresh history: the last runs of each dataset, which survive a restart.

The first line of the file is a JSON document. Each later line is a run that was added or updated since, so the cost of
a change does not depend on the number of runs. When the later lines outgrow the document, the file is rewritten as a
single document.
"""

import json
import logging
import os
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from datasources.control import RefreshRun
from datasources.errors import INTERRUPTED
from system.wallclock import seconds_since, utc_now

logger = logging.getLogger(__name__)

HISTORY_NAME = "refreshes.json"
FORMAT_VERSION = 1

#: Replaces the error of a run whose dataset was declared otherwise.
FORMER = "The refresh failed. The dataset was declared otherwise at that time."

#: Runs kept for each dataset.
MAX_RUNS = 100

#: The file is rewritten only when the later lines have at least this many bytes.
_LEAST_LINES_BYTES = 256 * 1024

#: Exceptions from reading a damaged file.
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, msgspec.ValidationError)


class History:
    """
    Runs by dataset, newest first. Every change is on disk before the call returns. Thread-safe.

    The constructor reads the file that a previous process left in *state_dir* and marks its unfinished runs as failed
    (`interrupted`). A damaged file or later line is dropped with a warning, because it must not prevent startup.
    """

    def __init__(self, state_dir: Path, datasets: Iterable[str]) -> None:
        self._path = state_dir / HISTORY_NAME
        self._lock = threading.Lock()
        self._is_saved = True
        self._room_bytes = 0  # for the lines after the document
        found = _read(self._path)
        self._runs = {name: found.get(name, []) for name in datasets}
        self.interrupt()

    def runs(self, dataset: str) -> tuple[RefreshRun, ...]:
        """Return the runs of *dataset*, newest first."""
        with self._lock:
            return tuple(self._runs[dataset])

    def put(self, *changes: tuple[str, RefreshRun]) -> None:
        """Add each run to its dataset, or replace the run with the same id."""
        with self._lock:
            new = [(dataset, run) for dataset, run in changes if run not in self._runs[dataset]]
            for dataset, run in new:
                _put(self._runs[dataset], run)
            if new:
                self._append(b"".join(_line({"dataset": dataset, "run": asdict(run)}) for dataset, run in new))

    def forget_figures(self, dataset: str, ids: Collection[str]) -> None:
        """Remove the figures and error texts of the runs *ids* of *dataset*, which were those of other data."""
        with self._lock:
            self._runs[dataset] = [without_figures(run) if run.id in ids else run for run in self._runs[dataset]]
            self._write()

    def interrupt(self) -> None:
        """Mark every unfinished run as failed."""
        with self._lock:
            self._runs = {name: _interrupted(runs) for name, runs in self._runs.items()}
            self._write()

    def _append(self, lines: bytes) -> None:
        if self._is_saved and len(lines) <= self._room_bytes:
            with suppress(OSError):  # Some of the lines may have been written.
                _write(self._path, os.O_APPEND, lines)
                self._room_bytes -= len(lines)
                return
        self._write()

    def _write(self) -> None:
        try:
            size = _save(self._path, self._runs)
        except OSError as exc:
            # The history in memory is complete. A full disk must not stop a refresh, which may free space.
            if self._is_saved:
                logger.warning("The refresh history cannot be saved: %s", exc.strerror)
            self._is_saved = False
        else:
            self._is_saved, self._room_bytes = True, max(size, _LEAST_LINES_BYTES)


def without_figures(run: RefreshRun) -> RefreshRun:
    """Return *run* without what it tells about the data."""
    return replace(run, rows=None, bytes=None, error=run.error and FORMER)


def ended_runs(state_dir: Path) -> dict[str, list[RefreshRun]]:
    """Return the runs saved in *state_dir* by dataset name, newest first. Unfinished runs are marked as failed."""
    return {name: _interrupted(runs) for name, runs in _read(state_dir / HISTORY_NAME).items()}


def adopt(state_dir: Path, runs: Mapping[str, Sequence[RefreshRun]]) -> None:
    """
    Save *runs* (by dataset name, newest first) as the initial content of the next `History` of *state_dir*.

    Raises:
        OSError: The file cannot be written.
    """
    _save(state_dir / HISTORY_NAME, runs)


def _save(path: Path, runs: Mapping[str, Sequence[RefreshRun]]) -> int:
    """Replace the file with one document, and return its size. Raises OSError."""
    listed = {name: [asdict(run) for run in of_one] for name, of_one in runs.items()}
    document = _line({"format_version": FORMAT_VERSION, "datasets": listed})
    temporary = path.with_name(f"{HISTORY_NAME}.tmp")
    try:
        _write(temporary, os.O_CREAT | os.O_TRUNC, document)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return len(document)


def _read(path: Path) -> dict[str, list[RefreshRun]]:
    try:
        first, *lines = path.read_bytes().split(b"\n")
        document = json.loads(first)
        if document["format_version"] != FORMAT_VERSION:
            logger.warning("The refresh history is from another release and was reset")
            return {}
        found = {name: [_run_of(item) for item in runs] for name, runs in document["datasets"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, *_UNREADABLE):
        logger.warning("The refresh history cannot be read and was reset")
        return {}
    damaged = 0
    for line in lines[:-1]:  # The last line is empty or truncated.
        try:
            change = json.loads(line)
            _put(found.setdefault(change["dataset"], []), _run_of(change["run"]))
        except _UNREADABLE:
            damaged += 1
    if damaged:
        logger.warning("Unreadable lines in the refresh history were skipped: %s", damaged)
    return found


def _run_of(item: Any) -> RefreshRun:
    """Return the run in the JSON object *item*. Its end must be a valid time, because ages are computed from it."""
    run = msgspec.convert(item, RefreshRun)
    if run.finished_at is not None:
        seconds_since(run.finished_at)
    return run


def _interrupted(runs: Iterable[RefreshRun]) -> list[RefreshRun]:
    """Return *runs* with unfinished runs marked as failed."""
    now = utc_now()
    return [
        run if run.finished_at else replace(run, status="failed", finished_at=now, error=INTERRUPTED) for run in runs
    ]


def _write(path: Path, flags: int, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode("ascii") + b"\n"


def _put(runs: list[RefreshRun], run: RefreshRun) -> None:
    at = next((index for index, other in enumerate(runs) if other.id == run.id), None)
    if at is None:
        runs[:] = [run, *runs[: MAX_RUNS - 1]]
    else:
        runs[at] = run

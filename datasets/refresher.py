"""
Keep the published data of every dataset fresh: one thread, one load at a time.

A refresh is a run that waits in one queue, whoever asked for it: the start of the runtime, the clock, or a caller.
Of a dataset at most one run is under way and one more waits; who asks again joins the one that waits. When the two
ask for different `refresh_sql`, the later one decides for both: a load replaces all data, so the earlier one's would
not have been seen beyond the end of the later one.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from datasets.control import DatasetState, DatasetStatus, RefreshRun
from datasets.deadline import Deadline
from datasets.declarations import StatementJudge, admit_refresh_sql
from datasets.errors import AccelerationDisabledError, DatasetError, SchemaChangedError, UnknownDatasetError
from datasets.history import History
from datasets.publication import Publication
from datasets.snapshots import Builder, SnapshotBuilder, compare_columns, refresh_sql_of, utc_now
from queryengine.catalog import Snapshot
from runtimeconf.model import DatasetConfig, RuntimeConfig

logger = logging.getLogger(__name__)

#: Seconds until a dataset that serves nothing yet and has no refresh_check_interval is tried again: doubled up to the
#: second number.
_FIRST_RETRY_S = 2.0
_LAST_RETRY_S = 60.0

#: At most one line of log about a failing dataset in so many seconds.
_LOG_INTERVAL_S = 60.0


@dataclass(slots=True)
class _Turn:
    """A run that waits, and the SELECT it is to run, None for all of the source."""

    entry: _Entry
    run: RefreshRun
    sql: str | None


@dataclass(slots=True)
class _Entry:
    """What the refresher knows of one dataset. Guarded by the refresher's condition."""

    config: DatasetConfig
    waiting: _Turn | None = None
    is_running: bool = False
    error: str | None = None
    failures: int = 0  # in a row
    loaded_here: bool = False
    due: float | None = None
    logged: float | None = None


class Refresher:
    """
    The `DatasetControl` of the process that holds the lock of the state directory.

    Args:
        config: The runtime's configuration.
        gate: Judges the `refresh_sql` of callers.
        builder: What loads; None: this process itself, in the refresher's thread.
        now: The clock of intervals, in seconds from anywhere, that never steps back.

    Raises:
        StateDirectoryError: The state directory cannot be written.
    """

    def __init__(
        self,
        config: RuntimeConfig,
        gate: StatementJudge,
        *,
        builder: Builder | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state_dir: Path = config.state_dir
        self._gate = gate
        self._now = now
        self._publication = Publication(config.state_dir, config.datasets)
        self._history = History(config.state_dir, [dataset.name for dataset in config.datasets])
        self._builder = builder or SnapshotBuilder.of(config)
        # As in SQL, case does not count in the name of a dataset.
        self._entries = {dataset.name.lower(): _Entry(dataset) for dataset in config.datasets}
        self._queue: deque[_Turn] = deque()
        self._condition = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="refresher", daemon=True)

    def start(self) -> None:
        """Load every dataset, in the order of the YAML, and keep them fresh."""
        with self._condition:
            for entry in self._entries.values():
                self._enqueue(entry, refresh_sql_of(entry.config))
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """
        Interrupt the load that is under way and end; False when it still runs after *timeout_s* seconds.

        What it did not finish is listed as failed (`interrupted`).
        """
        with self._condition:
            self._stop.set()
            self._condition.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        self._history.interrupt()
        return True

    def is_loaded(self) -> bool:
        """Say whether there is data to serve of every dataset."""
        return all(self._publication.snapshot(entry.config.name) is not None for entry in self._entries.values())

    def datasets(self) -> tuple[DatasetState, ...]:
        """As `DatasetControl.datasets`."""
        with self._condition:
            return tuple(map(self._state, self._entries.values()))

    def request_refresh(self, name: str, refresh_sql: str | None = None) -> RefreshRun:
        """
        As `DatasetControl.request_refresh`.

        Raises:
            StatementError: *refresh_sql* may not run.
            QueryError: It cannot be judged at the moment.
        """
        entry = self._entry(name)
        if not entry.config.acceleration.enabled:
            raise AccelerationDisabledError(entry.config.name)
        if refresh_sql is None:
            sql = entry.config.acceleration.refresh_sql
        else:
            sql = admit_refresh_sql(self._gate, entry.config, refresh_sql)
        with self._condition:
            return self._enqueue(entry, sql)

    def history(self, name: str) -> tuple[RefreshRun, ...]:
        """As `DatasetControl.history`."""
        return self._history.runs(self._entry(name).config.name)

    def _entry(self, name: str) -> _Entry:
        try:
            return self._entries[name.lower()]
        except KeyError:
            raise UnknownDatasetError(name) from None

    def _state(self, entry: _Entry) -> DatasetState:
        snapshot = self._publication.snapshot(entry.config.name)
        status: DatasetStatus
        if entry.is_running and snapshot is not None:
            status = "Refreshing"
        elif entry.error is not None:
            status = "Error"
        else:
            status = "Initializing" if snapshot is None else "Ready"
        return DatasetState(
            from_=entry.config.from_,
            name=entry.config.name,
            acceleration_enabled=entry.config.acceleration.enabled,
            status=status,
            rows=None if snapshot is None else snapshot.rows,
            refreshed_at=None if snapshot is None else snapshot.created_at,
            snapshot=None if snapshot is None else Path(snapshot.file).stem,
            error=entry.error,
            loaded_once=snapshot is not None,
        )

    def _enqueue(self, entry: _Entry, sql: str | None) -> RefreshRun:
        if entry.waiting is not None:
            entry.waiting.sql = sql
            return entry.waiting.run
        run = RefreshRun(id=secrets.token_hex(8), status="queued", requested_at=utc_now())
        entry.waiting = _Turn(entry, run, sql)
        self._queue.append(entry.waiting)
        self._history.put(entry.config.name, run)
        self._condition.notify_all()
        return run

    def _work(self) -> None:
        while (turn := self._next()) is not None:
            self._refresh(turn)

    def _next(self) -> _Turn | None:
        """Wait for the next turn; None when the refresher stops."""
        with self._condition:
            while not self._stop.is_set():
                now = self._now()
                for entry in self._entries.values():
                    if entry.due is not None and entry.due <= now:
                        entry.due = None
                        self._enqueue(entry, refresh_sql_of(entry.config))
                if self._queue:
                    return self._queue.popleft()
                next_due = min((entry.due for entry in self._entries.values() if entry.due is not None), default=None)
                self._condition.wait(None if next_due is None else max(0.0, next_due - now))
            return None

    def _refresh(self, turn: _Turn) -> None:
        entry = turn.entry
        with self._condition:
            run = replace(turn.run, status="running", started_at=utc_now())
            entry.waiting, entry.is_running, entry.due = None, True, None
            self._history.put(entry.config.name, run)
        began = time.monotonic()
        snapshot, error = self._load(entry, turn.sql)
        duration_ms = round((time.monotonic() - began) * 1000)
        run = replace(
            run,
            status="succeeded" if error is None else "failed",
            finished_at=utc_now(),
            rows=None if snapshot is None else snapshot.rows,
            duration_ms=duration_ms,
            error=error,
        )
        with self._condition:
            entry.is_running = False
            entry.error = error
            entry.failures = 0 if error is None else entry.failures + 1
            entry.loaded_here = entry.loaded_here or error is None
            entry.due = self._next_due(entry)
            self._history.put(entry.config.name, run)
        self._log(entry, run)

    def _load(self, entry: _Entry, sql: str | None) -> tuple[Snapshot | None, str | None]:
        """Build and publish; return the snapshot, or the sentence that says why there is none."""
        dataset = entry.config
        deadline = Deadline(dataset.acceleration.refresh_timeout_s, self._stop)
        try:
            snapshot = self._builder.build(dataset, sql, deadline)
            served = self._publication.snapshot(dataset.name)
            if served is not None and dataset.on_schema_change == "fail":
                try:
                    compare_columns(served, snapshot)
                except SchemaChangedError:
                    self._publication.discard(snapshot)
                    raise
            self._publication.publish(snapshot)
        except DatasetError as exc:
            return None, str(exc)
        except Exception:
            # One dataset's trouble must not end the refreshes of all.
            logger.exception("The refresh of dataset %s failed", dataset.name)
            return None, "The refresh failed for a reason that the log of the runtime tells."
        return snapshot, None

    def _next_due(self, entry: _Entry) -> float | None:
        acceleration = entry.config.acceleration
        if acceleration.enabled and acceleration.refresh_check_interval_s is not None:
            return self._now() + acceleration.refresh_check_interval_s
        served = self._publication.snapshot(entry.config.name) is not None
        # Without acceleration nobody can ask for another try, so it goes on until the one read at start succeeded.
        if entry.loaded_here or (served and acceleration.enabled):
            return None
        return self._now() + min(_LAST_RETRY_S, _FIRST_RETRY_S * 2.0 ** min(entry.failures - 1, 10))

    def _log(self, entry: _Entry, run: RefreshRun) -> None:
        fields = {"dataset": entry.config.name, "refresh": run.id, "duration_ms": run.duration_ms}
        if run.error is None:
            entry.logged = None
            logger.info("Dataset %s refreshed", entry.config.name, extra={"fields": {**fields, "rows": run.rows}})
            return
        now = self._now()
        if not self._stop.is_set() and (entry.logged is None or now - entry.logged >= _LOG_INTERVAL_S):
            entry.logged = now
            logger.warning(
                "Dataset %s cannot be refreshed: %s",
                entry.config.name,
                run.error,
                extra={"fields": {**fields, "failures": entry.failures}},
            )

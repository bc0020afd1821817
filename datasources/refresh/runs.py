"""
The runs of a refresher: waiting, running and finished runs, and the schedule of the next ones.

All refreshes go through one queue (`datasources.refresh.load_queue`), whether requested by startup, the schedule or a
caller. A dataset has at most one running and one queued run. A further request joins the queued run. If two callers
send different `refresh_sql`, the later SQL applies to both, because a load replaces all data and the earlier result
would be replaced immediately. The run is a full load if any request asks for one, and begins at the earliest requested
time. A scheduled request joins a queued run without changing it, except that the run may then begin immediately.

A run that no caller requested skips a source that has not changed since the last load.
"""

import math
import secrets
import time
from collections.abc import Callable, Collection
from threading import Condition
from typing import Unpack

from msgspec.structs import replace

from datasources.control import RefreshOptions, RefreshRun
from datasources.refresh import schedule
from datasources.refresh.entries import DatasetEntry, DatasetTable, QueueEntry, views_last
from datasources.refresh.history import History, without_figures
from datasources.refresh.load_queue import LoadQueue, joined
from datasources.snapshots.snapshot import refresh_sql_of
from runtimeconf.model import RefreshMode
from system.wallclock import utc_now


class Runs:
    """
    The runs of *datasets*. At most *places* loads run at once. Every change is saved in *history*.

    Guarded by *changed*, which is notified of new runs. For *now* and *chance*, see `Refresher`.
    """

    def __init__(  # noqa: PLR0913 (one per thing that a refresher owns)
        self,
        datasets: DatasetTable,
        history: History,
        places: int,
        changed: Condition,
        *,
        now: Callable[[], float],
        chance: Callable[[], float],
    ) -> None:
        self._datasets, self._history, self._changed = datasets, history, changed
        self._queue = LoadQueue(places, datasets.must_wait)
        self._now, self._chance = now, chance
        self.is_scheduled = True  # whether runs are scheduled
        for entry in datasets:
            succeeded = (run for run in history.runs(entry.config.name) if run.status == "succeeded")
            entry.checked_at = next((run.finished_at for run in succeeded), None)
        #: The finished runs of the datasets whose new data is not that of the declarations in effect.
        self._former = {
            entry.config.name: {run.id for run in history.runs(entry.config.name) if run.finished_at}
            for entry in datasets
            if entry.config.name in datasets.snapshots.changed | datasets.snapshots.staging
        }
        self._outdated = {name: ids for name, ids in self._former.items() if name in datasets.snapshots.changed}

    @property
    def are_running(self) -> bool:
        """Whether a load is running."""
        return any(entry.is_running for entry in self._datasets)

    @property
    def are_unfinished(self) -> bool:
        """Whether a load is running or waiting."""
        return self.are_running or any(entry.waiting for entry in self._datasets)

    def of(self, entry: DatasetEntry) -> tuple[RefreshRun, ...]:
        """Return the runs of a dataset with their progress, newest first, and without figures of other data."""
        outdated = self._outdated.get(entry.config.name, ())
        return tuple(
            self._datasets.with_progress(entry, run)
            if run.status == "running"
            else without_figures(run)
            if run.id in outdated
            else run
            for run in self._history.runs(entry.config.name)
        )

    def forget_outdated(self) -> None:
        """Remove what finished runs tell about data that the dataset's declaration does not describe any more."""
        for name, ids in self._outdated.items():
            self._history.forget_figures(name, ids)
        self._outdated = {}

    def forget_refused(self, refused: "Runs") -> None:
        """Remove what the runs of *refused*, whose declarations did not take effect, tell about other data."""
        for name, ids in refused._former.items():  # noqa: SLF001 (of this class)
            if name in self._datasets:
                ended = {run.id for run in self._history.runs(name) if run.finished_at}
                self._history.forget_figures(name, ended - ids)

    def take_over(self, former: "Runs") -> None:
        """
        Queue the callers' requests that *former* has not begun.

        They load as declared if the declaration has changed, or if they are not due yet: by then, their caller may long
        have lost the key.
        """
        for queued in former._queue:  # noqa: SLF001 (of this class)
            name = queued.entry.config.name
            if queued.skips or name not in self._datasets:
                continue
            entry = self._datasets[name]
            if entry.config.acceleration.enabled:
                # Its SQL, even if it was declared, was not meant for another declaration.
                if queued.entry is not entry or queued.begins > self._now():
                    queued.sql, queued.mode = refresh_sql_of(entry.config), entry.config.acceleration.refresh_mode
                queued.entry, entry.waiting = entry, queued
                self._queue.add(queued)
                self._history.put(*queued.recorded())

    def load_all(self) -> None:
        """Queue a load of every dataset that no predecessor has loaded."""
        first = []
        for entry in self._datasets:
            if entry.config.is_in_place:
                continue
            if entry.loaded_here and entry.error is None and self._datasets.snapshot(entry) is not None:
                continue
            delay_s = schedule.jitter_s(entry.config.acceleration, self._chance())
            if delay_s and self._datasets.snapshot(entry) is not None:
                entry.due = self._now() + delay_s
            elif self._datasets.can_load(entry):  # Otherwise the view is loaded as soon as its input is published.
                first.append(entry)
        self.load_soon(first)

    def load_soon(
        self, entries: Collection[DatasetEntry], *, skips: bool = True, caller: str | None = None
    ) -> list[tuple[str, RefreshRun]]:
        """Queue a load of each dataset as declared, views last, and save the runs in the history at once."""
        queued = [
            self._enqueue(entry, refresh_sql_of(entry.config), skips=skips, caller=caller)
            for entry in views_last(entries)
        ]
        runs = [(one.entry.config.name, one.run) for one in queued]
        self._history.put(*runs)
        return runs

    def request(
        self, entry: DatasetEntry, sql: str | None, *, run_id: str, **options: Unpack[RefreshOptions]
    ) -> RefreshRun:
        """See `Refresher.request_refresh`."""
        options.setdefault("caller", "")
        select = sql or entry.config.acceleration.refresh_sql
        queued = self._enqueue(entry, select, skips=False, run_id=run_id, **options)
        self._history.put(*queued.recorded())
        return queued.run

    def _enqueue(  # noqa: PLR0913 (by keyword)
        self,
        entry: DatasetEntry,
        sql: str | None,
        *,
        skips: bool,
        mode: RefreshMode | None = None,
        jitter_max_s: float = 0.0,
        caller: str | None = None,
        run_id: str = "",
    ) -> QueueEntry:
        """
        Queue a load of the dataset, or join the queued load. The caller saves the run in the history.

        *skips* marks a scheduled request, which changes a queued run only in that the run may begin sooner.
        """
        mode = mode or entry.config.acceleration.refresh_mode
        begins = self._now() + self._chance() * jitter_max_s
        queued = entry.waiting
        if queued is None:
            run = RefreshRun(id=run_id or secrets.token_hex(8), status="queued", requested_at=utc_now())
            queued = entry.waiting = QueueEntry(entry, run, sql, skips, mode, begins, caller=caller)
            self._queue.add(queued)
        elif run_id:
            queued.joined.append(run_id)
        queued.caller = joined(queued, caller, skips=skips)
        queued.begins = min(queued.begins, begins)
        if not skips:
            queued.sql, queued.skips = sql, False
            queued.mode = "full" if mode == "full" else queued.mode
        self._changed.notify_all()
        return queued

    def begin_next(self, patience_s: float = 0.0) -> QueueEntry | None:
        """Begin the next run, but a scheduled run only *patience_s* late. Return None if no run can begin now."""
        now = self._now()
        self._load_due(now)
        queued = self._queue.next(now)
        if queued is not None and queued.caller is None and now < queued.begins + patience_s:
            return None
        if queued is not None:
            self._queue.begin(queued)
            entry = queued.entry
            queued.run = replace(queued.run, status="running", started_at=utc_now())
            entry.waiting, entry.is_running, entry.due = None, True, None
            entry.began, entry.file, entry.is_publishing = time.monotonic(), None, False
            self._history.put(*queued.recorded())
        return queued

    def wait_s(self, patience_s: float = 0.0) -> float:
        """Return the seconds until another run may begin on schedule. For *patience_s*, see `begin_next`."""
        now = self._now()
        times = [entry.due for entry in self._datasets if entry.due is not None]
        times += [at for waiting in self._queue for at in (waiting.begins, waiting.begins + patience_s) if at > now]
        return min((at - now for at in times), default=math.inf)

    def _load_due(self, now: float) -> None:
        due = [entry for entry in self._datasets if entry.due is not None and entry.due <= now]
        for entry in due:
            entry.due = None
        self.load_soon(due)

    def end(self, queued: QueueEntry, run: RefreshRun) -> None:
        """Release the slot of *queued*, which ended as *run*. Queue loads of the views that read the new data."""
        entry, queued.run = queued.entry, run
        self._queue.end(queued)
        entry.is_running = False
        entry.error = run.error
        if run.error is None:
            entry.failures, entry.loaded_here, entry.checked_at = 0, True, run.finished_at
            if not run.unchanged:
                views = [view for view in self._datasets.views_of(entry.config.name) if self._datasets.can_load(view)]
                self.load_soon(views, caller=queued.caller)
        else:
            entry.failures += 1
            self._datasets.fail_views_of(entry)
        entry.due = self._next_due(entry)
        self._history.put(*queued.recorded())
        self._changed.notify_all()

    def _next_due(self, entry: DatasetEntry) -> float | None:
        if not self.is_scheduled:
            return None
        is_view = entry.config.view is not None
        pause_s = schedule.pause_s(
            entry.config.acceleration,
            entry.failures,
            has_data=not is_view and self._datasets.snapshot(entry) is not None,
            # The data that a view reads may not be published again for a long time.
            must_load=is_view or not entry.loaded_here,
            chance=self._chance(),
        )
        return None if pause_s is None else self._now() + pause_s

    def put_back(self, queued: QueueEntry) -> None:
        """Queue again a load that was stopped in favour of another."""
        queued.entry.is_running = False
        self._history.put(*self._queue.put_back(queued).recorded())
        self._changed.notify_all()

    def give_way(self) -> None:
        """Stop a load that has kept others waiting for too long."""
        now = self._now()
        self._load_due(now)
        if (run := self._queue.overdue(now)) is not None:
            run.stop.set()

    def stop(self) -> None:
        """Stop the running loads."""
        for run in self._queue.running:
            run.stop.set()

    def interrupt(self) -> None:
        """Mark every unfinished run as failed (`interrupted`)."""
        self._history.interrupt()

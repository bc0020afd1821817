"""
Keep the published data of every dataset fresh: at most two loads at once, and one per dataset.

All refreshes wait in one queue (`datasources.refresh.fair_queue`), whether requested by startup, the clock or a caller.
A dataset has at most one running and one queued run; a further request joins the queued one. If two callers send
different `refresh_sql`, the later one applies to both: a load replaces all data, so the result of the earlier one would
be replaced at once. The run is a full load if any of them requests one, and begins at the earliest time that any of
them asks for. A request by the clock joins a queued run without changing it, except that the run may then begin at
once.

A run that no caller requested skips a source that has not changed since it was loaded.
"""

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from datasources.control import AdmittedSql, DatasetState, RefreshPhase, RefreshRun, RefreshStatus
from datasources.errors import DatasetError, DatasetsUnavailableError, SnapshotError, UnknownDatasetError
from datasources.refresh import schedule
from datasources.refresh.declarations import check_refresh
from datasources.refresh.entries import DatasetEntry, QueueEntry, is_stale, reads, state_of, views_last
from datasources.refresh.fair_queue import FairQueue, joined
from datasources.refresh.history import History
from datasources.refresh.load_run import carry_out
from datasources.refresh.refresh_trace import RefreshTrace
from datasources.refresh.run_log import log_run
from datasources.snapshots.directory import Share, SnapshotDirectory
from datasources.snapshots.snapshot import Builder, SnapshotBuilder, refresh_sql_of
from queryengine.manifest import Snapshot
from runtimeconf.model import RefreshMode, RuntimeConfig
from system.wallclock import utc_now

logger = logging.getLogger(__name__)

#: Seconds between two checks whether loads that somebody waits for must end.
_CHECK_S = 0.1

#: The number of loads that run at once.
MAX_LOADS = 2

#: Seconds without a load after which builders release their resources.
REST_S = 20.0

#: Seconds that an interrupted load has to end.
_END_S = 10.0

#: Seconds between two checks of the published files.
POLL_S = 1.0

#: The error of a view. It names nothing: a key may see the view and not what it reads.
_UNREADABLE = "Something that it reads cannot be loaded."

_random = secrets.SystemRandom()


def _milliseconds_since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)


class Refresher:
    """
    The `DatasetManager` of a runtime without other nodes.

    Args:
        config: The runtime's configuration.
        builders: The builders to load with, each in a thread of its own. If there are none, this process does the
            loading itself.
        predecessor: A refresher that has finished; this one takes over what it knows and was asked for.
        share: Gives each snapshot to other nodes, before it is published here; None if there are none.
        now: The monotonic clock for intervals, in seconds.
        chance: Returns random numbers, from 0 to 1, for the jitter.

    Raises:
        StateDirectoryError: The state directory cannot be written.
    """

    def __init__(  # noqa: PLR0913 (by keyword)
        self,
        config: RuntimeConfig,
        *,
        builders: Sequence[Builder] = (),
        predecessor: "Refresher | None" = None,
        share: Share | None = None,
        now: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = _random.random,
    ) -> None:
        self.generation = config.generation
        self._now = now
        self._chance = chance
        self._share = share
        self._ready_state, self._max_staleness_s = config.ready_state, config.query.max_staleness_s
        self._successor: Refresher | None = None
        if predecessor is None:
            self._snapshots = SnapshotDirectory(config.state_dir, config.loaded_datasets)
        else:
            self._snapshots = predecessor._snapshots  # noqa: SLF001 (of this class)
            self._snapshots.redeclare(config.loaded_datasets)
        self._history = History(config.state_dir, [dataset.name for dataset in config.datasets])
        # Names of datasets are case-insensitive, as in SQL.
        self._entries = {dataset.name.lower(): DatasetEntry(dataset) for dataset in config.datasets}
        for entry in self._entries.values():
            succeeded = (run for run in self._history.runs(entry.config.name) if run.status == "succeeded")
            entry.checked_at = next((run.finished_at for run in succeeded), None)
        builders = builders or [SnapshotBuilder.of(config) for _ in range(MAX_LOADS)]
        self._queue = FairQueue(len(builders))
        self._condition = threading.Condition()
        self._stop = threading.Event()
        self._is_finishing = self._is_moving = False
        self._is_scheduled = True
        if predecessor is not None:
            self._take_over(predecessor)
        self._threads = [
            threading.Thread(target=self._work, args=(builder,), name="refresher", daemon=True) for builder in builders
        ]
        self._watcher = threading.Thread(target=self._watch, name="refresher", daemon=True)

    def _take_over(self, predecessor: "Refresher") -> None:
        """Continue with the datasets that are declared as before, and with what callers have requested."""
        for name, former in predecessor._entries.items():  # noqa: SLF001 (of this class)
            entry = self._entries.get(name)
            if entry is not None and replace(former.config, line=0) == replace(entry.config, line=0):
                former.config = entry.config
                if former.waiting is not None and former.waiting.skips:
                    former.due = self._now()
                former.waiting = None
                if former.holds_up_ready(self._ready_state) and self._snapshot(former) is None:
                    former.error = None  # Readiness waits for the load that begins now.
                self._entries[name] = former
        for queued in predecessor._queue:  # noqa: SLF001 (of this class)
            entry = self._entries.get(queued.entry.config.name.lower())
            if entry is not None and not queued.skips and entry.config.acceleration.enabled:
                queued.entry, entry.waiting = entry, queued
                self._queue.add(queued)
                self._history.put(*queued.recorded())

    def replace(self, config: RuntimeConfig, builders: Sequence[Builder], timeout_s: float) -> "Refresher":
        """As `DatasetManager.replace`: stop, and return a successor."""
        self._finish(timeout_s)
        successor = Refresher(config, builders=builders, predecessor=self, share=self._share)
        with self._condition:
            self._successor = successor
            self._condition.notify_all()
        successor.start()
        return successor

    def _finish(self, timeout_s: float) -> None:
        """
        Begin no more loads, and stop when those that run have ended; interrupt them after *timeout_s* seconds.

        Requests are still accepted. A successor takes them over.
        """
        with self._condition:
            self._is_finishing = True
            self._condition.wait_for(lambda: not any(one.is_running for one in self._entries.values()), timeout_s)
        if not self._end(_END_S):
            raise DatasetError("A load does not end.")
        with self._condition:
            self._is_moving = True

    def commit(self) -> None:
        """As `DatasetManager.commit`."""
        self._snapshots.drop_undeclared()

    def start(self) -> None:
        """Load every dataset, in the order of the YAML but for views, which come last, and keep them fresh."""
        with self._condition:
            first = []
            for entry in self._entries.values():
                if entry.config.is_in_place:
                    continue
                if entry.loaded_here and entry.error is None and self._snapshot(entry) is not None:
                    continue  # by the predecessor
                delay_s = schedule.jitter_s(entry.config.acceleration, self._chance())
                if delay_s and self._snapshots.snapshot(entry.config.name) is not None:
                    entry.due = self._now() + delay_s
                elif self._can_load(entry):  # Otherwise it is loaded as soon as what it reads is published.
                    first.append(entry)
            self._load_soon(views_last(first))
        for thread in (*self._threads, self._watcher):
            thread.start()

    def load_once(
        self, names: Collection[str], *, skip_unchanged: bool, check: Callable[[], None] = lambda: None
    ) -> tuple[tuple[str, RefreshRun], ...]:
        """
        Load the datasets with these *names* once, and return each name, as declared, with its run.

        Call this instead of `start`, and call `stop` afterwards. *check* is called several times a second, and ends the
        wait if it raises. Raises UnknownDatasetError if a name is unknown; then nothing was loaded.
        """
        entries = [self._entry(name) for name in dict.fromkeys(name.lower() for name in names)]
        with self._condition:
            self._is_scheduled = False
            asked = self._load_soon(views_last(entries), skips=skip_unchanged)
            for thread in self._threads:
                thread.start()
            # Views of what was loaded are loaded too.
            while any(entry.waiting or entry.is_running for entry in self._entries.values()):
                check()
                self._condition.wait(_CHECK_S)
        runs = {run.id: run for name, _ in asked for run in self._history.runs(name)}
        return tuple((name, runs[run.id]) for name, run in asked)

    def stop(self, timeout_s: float) -> bool:
        """
        Interrupt the running loads and stop; return False if one still runs after *timeout_s* seconds.

        Unfinished runs are listed as failed (`interrupted`).
        """
        has_ended = self._end(timeout_s)
        if has_ended:
            self._history.interrupt()
        return has_ended

    def _end(self, timeout_s: float) -> bool:
        with self._condition:
            self._stop.set()
            for run in self._queue.running:
                run.stop.set()
            self._condition.notify_all()
        end = time.monotonic() + timeout_s
        threads = [*self._threads, self._watcher]
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def waiting_for(self) -> tuple[str, ...]:
        """As `DatasetControl.waiting_for`."""
        with self._condition:
            return tuple(entry.config.name for entry in self._entries.values() if self._holds_up(entry))

    def _holds_up(self, entry: DatasetEntry) -> bool:
        snapshot = self._snapshot(entry)
        if snapshot is None:
            return entry.holds_up_ready(self._ready_state)
        return is_stale(entry.config, snapshot, entry.checked_at, self._max_staleness_s)

    def is_loaded(self) -> bool:
        """As `DatasetControl.is_loaded`."""
        return not self.waiting_for()

    def sharing(self) -> None:
        """As `DatasetControl.sharing`."""

    def datasets(self) -> tuple[DatasetState, ...]:
        """As `DatasetControl.datasets`."""
        with self._condition:
            return tuple(state_of(entry, self._snapshot(entry), self._now()) for entry in self._entries.values())

    def request_refresh(  # noqa: PLR0913 (by keyword)
        self,
        name: str,
        sql: AdmittedSql | None = None,
        *,
        mode: RefreshMode | None = None,
        jitter_max_s: float = 0.0,
        caller: str = "",
        run_id: str = "",
    ) -> RefreshRun:
        """As `DatasetControl.request_refresh`; *run_id* is the id that another node gave to the run."""
        entry = self._entry(name)
        check_refresh(entry.config, mode)
        with self._condition:
            # Between its end and the start of its successor: the request would be lost.
            self._condition.wait_for(lambda: self._successor is not None or not self._is_moving)
            if self._successor is not None:
                later = self._successor
                return later.request_refresh(
                    name, sql, mode=mode, jitter_max_s=jitter_max_s, caller=caller, run_id=run_id
                )
            if self._stop.is_set() and not self._is_finishing:
                raise DatasetsUnavailableError  # Nobody would carry it out, or list how it ended.
            select, delay_s = sql or entry.config.acceleration.refresh_sql, self._chance() * jitter_max_s
            queued = self._enqueue(entry, select, skips=False, mode=mode, delay_s=delay_s, caller=caller, run_id=run_id)
            self._history.put(*queued.recorded())
            return queued.run

    def history(self, name: str) -> tuple[RefreshRun, ...]:
        """As `DatasetControl.history`."""
        entry = self._entry(name)
        with self._condition:
            return tuple(
                self._with_progress(entry, run) if run.status == "running" else run
                for run in self._history.runs(entry.config.name)
            )

    def _with_progress(self, entry: DatasetEntry, run: RefreshRun) -> RefreshRun:
        written = None if entry.file is None else self._snapshots.built_bytes(entry.file)
        phase: RefreshPhase = "publishing" if entry.is_publishing else "opening" if written is None else "loading"
        return replace(run, phase=phase, bytes=written, duration_ms=_milliseconds_since(entry.began))

    def _entry(self, name: str) -> DatasetEntry:
        try:
            return self._entries[name.lower()]
        except KeyError:
            raise UnknownDatasetError(name) from None

    def _snapshot(self, entry: DatasetEntry) -> Snapshot | None:
        return self._snapshots.snapshot(entry.config.name)

    def _load_soon(
        self, entries: Collection[DatasetEntry], *, skips: bool = True, caller: str | None = None
    ) -> list[tuple[str, RefreshRun]]:
        """Queue a load of each dataset as declared, and save the runs in the history at once."""
        queued = [self._enqueue(entry, refresh_sql_of(entry.config), skips=skips, caller=caller) for entry in entries]
        runs = [(one.entry.config.name, one.run) for one in queued]
        self._history.put(*runs)
        return runs

    def _enqueue(  # noqa: PLR0913 (by keyword)
        self,
        entry: DatasetEntry,
        sql: str | None,
        *,
        skips: bool,
        mode: RefreshMode | None = None,
        delay_s: float = 0.0,
        caller: str | None = None,
        run_id: str = "",
    ) -> QueueEntry:
        """
        Queue a load of the dataset, or join the queued one; the caller saves its run in the history.

        *skips* marks a request by the clock, which changes a queued run only in that it may begin sooner.
        """
        mode = mode or entry.config.acceleration.refresh_mode
        begins = self._now() + delay_s
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
        self._condition.notify_all()
        return queued

    def _work(self, builder: Builder) -> None:
        while not self._stop.is_set():
            queued = self._next(REST_S)
            if queued is None:
                builder.close()
                queued = self._next(math.inf)
            if queued is not None:
                self._refresh(queued, builder)

    def _next(self, patience_s: float) -> QueueEntry | None:
        """Wait for the next run and begin it. Return None if none comes within *patience_s* or the refresher stops."""
        end = time.monotonic() + patience_s
        with self._condition:
            while not self._stop.is_set():
                now = self._now()
                self._load_due(now)
                queued = None if self._is_finishing else self._queue.next(now)
                if queued is not None:
                    self._queue.begin(queued)
                    self._begin(queued)
                    return queued
                left_s = end - time.monotonic()
                if left_s <= 0:
                    return None
                times = [entry.due for entry in self._entries.values() if entry.due is not None]
                times += [waiting.begins for waiting in self._queue if waiting.begins > now]
                wait_s = min([left_s, *(at - now for at in times)])
                self._condition.wait(max(0.0, wait_s) if wait_s < math.inf else None)
            return None

    def _load_due(self, now: float) -> None:
        due = [entry for entry in self._entries.values() if entry.due is not None and entry.due <= now]
        for entry in due:
            entry.due = None
        self._load_soon(due)

    def _begin(self, queued: QueueEntry) -> None:
        entry = queued.entry
        queued.run = replace(queued.run, status="running", started_at=utc_now())
        entry.waiting, entry.is_running, entry.due = None, True, None
        entry.began, entry.file, entry.is_publishing = time.monotonic(), None, False
        self._history.put(*queued.recorded())

    def _refresh(self, queued: QueueEntry, builder: Builder) -> None:
        entry = queued.entry
        trace = RefreshTrace()
        run = carry_out(queued, builder, self._snapshots, self._share, trace)
        if run.error is not None and queued.stop.is_set() and not self._stop.is_set():
            self._put_back(queued)
            return
        trace.end(entry.config.name, run)
        status: RefreshStatus = "succeeded" if run.error is None else "failed"
        spent_ms = _milliseconds_since(entry.began)
        queued.run = run = replace(run, status=status, finished_at=utc_now(), duration_ms=spent_ms)
        with self._condition:
            self._queue.end(queued)
            entry.is_running = False
            entry.error = run.error
            if run.error is None:
                entry.failures, entry.loaded_here, entry.checked_at = 0, True, run.finished_at
                if not run.unchanged:
                    views = [view for view in self._views_of(entry.config.name) if self._can_load(view)]
                    self._load_soon(views, caller=queued.caller)
            else:
                entry.failures += 1
                self._fail_views_of(entry)
            entry.due = self._next_due(entry)
            self._history.put(*queued.recorded())
            self._condition.notify_all()
        log_run(entry, run, trace, self._now(), is_stopping=self._stop.is_set())

    def _put_back(self, queued: QueueEntry) -> None:
        """Queue a load again that was stopped for the sake of another."""
        with self._condition:
            queued.entry.is_running = False
            self._history.put(*self._queue.put_back(queued).recorded())
            self._condition.notify_all()
        logger.info(
            "The load of dataset %s was stopped for another one that waits: it begins again", queued.entry.config.name
        )

    def _give_way(self) -> None:
        """Stop a load that keeps others waiting for too long."""
        with self._condition:
            now = self._now()
            self._load_due(now)
            if (run := self._queue.overdue(now)) is not None:
                run.stop.set()

    def _watch(self) -> None:
        """Until the refresher stops, reload published data that has been lost, and record why."""
        while not self._stop.wait(POLL_S):
            try:
                self._give_way()
                faults = self._snapshots.withdraw_damaged()
                with self._condition:
                    for name, fault in faults.items():
                        logger.warning("%s It is loaded from the source again.", fault)
                        entry = self._entry(name)
                        entry.error, entry.loaded_here = fault, False
                        self._load_soon([entry])
                self._snapshots.restore()
            except SnapshotError as exc:
                logger.warning("%s", exc)
            except Exception:  # For example, out of memory or descriptors; the next check may succeed.
                logger.exception("The published data cannot be looked at")

    def _views_of(self, name: str) -> list[DatasetEntry]:
        """Return the materialized views that read the dataset *name*."""
        return [entry for entry in self._entries.values() if name.lower() in reads(entry)]

    def _fail_views_of(self, entry: DatasetEntry) -> None:
        """Record why the views that read *entry*, directly or by another view, cannot be loaded."""
        failed = [entry]
        for one in failed:  # grows while it is read
            for view in self._views_of(one.config.name):
                if view.error != _UNREADABLE and not self._can_load(view):
                    view.error = _UNREADABLE
                    failed.append(view)

    def _can_load(self, entry: DatasetEntry) -> bool:
        """Return whether everything that a materialized view reads is published; True for a dataset with a source."""
        names = [self._entry(name).config.name for name in reads(entry)]
        return all(self._snapshots.snapshot(name) is not None for name in names)

    def _next_due(self, entry: DatasetEntry) -> float | None:
        if not self._is_scheduled:
            return None
        is_view = entry.config.view is not None
        pause_s = schedule.pause_s(
            entry.config.acceleration,
            entry.failures,
            has_data=not is_view and self._snapshots.snapshot(entry.config.name) is not None,
            # What a view reads may not be published again for long.
            must_load=is_view or not entry.loaded_here,
            chance=self._chance(),
        )
        return None if pause_s is None else self._now() + pause_s

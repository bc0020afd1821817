"""
Keeps the published data of every dataset fresh, with loading threads.

Each configuration has its own refresher. After a reload, the new refresher takes over from its predecessor.
"""

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Unpack

from msgspec.structs import replace

from datasources.control import AdmittedSql, DatasetState, RefreshOptions, RefreshRun, RefreshStatus
from datasources.errors import DatasetError, DatasetsUnavailableError, SnapshotError
from datasources.refresh.declarations import check_refresh
from datasources.refresh.entries import DatasetEntry, DatasetTable, QueueEntry, changed_since, milliseconds_since
from datasources.refresh.history import History
from datasources.refresh.load_run import carry_out
from datasources.refresh.refresh_trace import RefreshTrace
from datasources.refresh.run_log import log_run
from datasources.refresh.runs import Runs
from datasources.snapshots.directory import Share, SnapshotDirectory
from datasources.snapshots.snapshot import Builder, SnapshotBuilder
from runtimeconf.model import DatasetConfig, RuntimeConfig
from system.wallclock import utc_now

logger = logging.getLogger(__name__)

#: Seconds between calls of the `load_once` check.
_CHECK_S = 0.1

#: The maximum number of concurrent loads.
MAX_LOADS = 2

#: Seconds without a load after which builders release their resources.
REST_S = 20.0

#: Seconds that a scheduled run waits for a started builder before another one starts. A start takes as much CPU as ten
#: small loads, and after a start of the runtime most runs only find that the source has not changed.
_START_S = 2.0

#: Seconds within which an interrupted load must end.
_END_S = 10.0

#: Seconds between two checks of the published files.
POLL_S = 1.0

_random = secrets.SystemRandom()


class Refresher:
    """
    The `DatasetManager` of a runtime without other nodes.

    Args:
        config: The runtime's configuration.
        builders: The builders, each of which loads in its own thread. If there are none, this process loads the data
            itself.
        predecessor: A finished refresher whose state and requests this refresher takes over.
        snapshots: The snapshots as `redeclare` left them during a reload, if no refresher was there to be replaced.
        in_effect: The declarations in effect, if they are not those of *config*, because of such a reload.
        share: Publishes each snapshot to other nodes before it is published here; None if there are no other nodes.
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
        snapshots: SnapshotDirectory | None = None,
        in_effect: Sequence[DatasetConfig] | None = None,
        share: Share | None = None,
        now: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = _random.random,
    ) -> None:
        self.generation = config.generation
        self._config, self._now, self._share = config, now, share
        self._successor: Refresher | None = None
        if predecessor is not None:
            snapshots = predecessor._datasets.snapshots  # noqa: SLF001 (of this class)
            in_effect = predecessor._in_effect  # noqa: SLF001 (as above)
            snapshots.redeclare(config.loaded_datasets)
            snapshots.hold(changed_since(in_effect, config.datasets))
        elif snapshots is None:
            snapshots = SnapshotDirectory(config.state_dir, config.loaded_datasets)
        #: The declarations that are in effect. What others load is staged until `commit`.
        self._in_effect: Sequence[DatasetConfig] = config.datasets if in_effect is None else in_effect
        builders = builders or [SnapshotBuilder.of(config) for _ in range(MAX_LOADS)]
        self._builders = builders
        self._datasets: DatasetTable = DatasetTable(config, snapshots)
        self._condition = threading.Condition()  # held while reading or changing the datasets and the runs
        history = History(config.state_dir, [dataset.name for dataset in config.datasets])
        self._runs = Runs(self._datasets, history, len(builders), self._condition, now=now, chance=chance)
        self._stop = threading.Event()
        self._is_finishing = self._is_moving = False
        if self._in_effect is config.datasets:
            self._runs.forget_outdated()
        if predecessor is not None:
            if predecessor._config.datasets is not predecessor._in_effect:  # noqa: SLF001 (as above)
                self._runs.forget_refused(predecessor._runs)  # noqa: SLF001 (as above)
            self._datasets.take_over(predecessor._datasets, now())  # noqa: SLF001 (as above)
            self._runs.take_over(predecessor._runs)  # noqa: SLF001 (as above)
        self._threads = [
            threading.Thread(target=self._work, args=(builder,), name="refresher", daemon=True) for builder in builders
        ]
        self._watcher = threading.Thread(target=self._watch, name="refresher", daemon=True)

    def replace(self, config: RuntimeConfig, builders: Sequence[Builder], timeout_s: float) -> "Refresher":
        """Stop, and return a successor; see `DatasetManager.replace`."""
        self._finish(timeout_s)
        if self._share is not None:
            self._share.unstage()
        successor = Refresher(config, builders=builders, predecessor=self, share=self._share)
        with self._condition:
            self._successor = successor
            self._condition.notify_all()
        successor.start()
        return successor

    def _finish(self, timeout_s: float) -> None:
        """
        Start no more loads, and stop when running loads have ended. Interrupt them after *timeout_s* seconds.

        Requests are still accepted. A successor takes them over.
        """
        with self._condition:
            self._is_finishing = True
            self._condition.wait_for(lambda: not self._runs.are_running, timeout_s)
        if not self._end(_END_S):
            raise DatasetError("A load has not ended.")
        with self._condition:
            self._is_moving = True

    def commit(self) -> None:
        """See `DatasetManager.commit`."""
        self._datasets.snapshots.drop_undeclared()
        with self._condition:
            self._in_effect = self._config.datasets
            self._runs.forget_outdated()
            self._condition.notify_all()  # Loads that waited for this can begin.

    def start(self) -> None:
        """Load all datasets in configuration order, with views last, and keep them fresh."""
        with self._condition:
            self._runs.load_all()
        for thread in (*self._threads, self._watcher):
            thread.start()

    def load_once(
        self, names: Collection[str], *, skip_unchanged: bool, check: Callable[[], None] = lambda: None
    ) -> tuple[tuple[str, RefreshRun], ...]:
        """
        Load the datasets *names* once, and return each declared name with its run.

        Call this instead of `start`, and call `stop` afterwards. *check* is called several times a second. If it
        raises, the wait ends. If a name is unknown, UnknownDatasetError is raised before anything is loaded.
        """
        entries = [self._datasets[name] for name in dict.fromkeys(name.lower() for name in names)]
        with self._condition:
            self._runs.is_scheduled = False
            asked = self._runs.load_soon(entries, skips=skip_unchanged)
            for thread in self._threads:
                thread.start()
            # Views of the loaded datasets are also loaded.
            while self._runs.are_unfinished:
                check()
                self._condition.wait(_CHECK_S)
        runs = {run.id: run for entry in entries for run in self._runs.of(entry)}
        return tuple((name, runs[run.id]) for name, run in asked)

    def stop(self, timeout_s: float) -> bool:
        """
        Interrupt the running loads and stop. Return False if a load is still running after *timeout_s* seconds.

        Unfinished runs are marked as failed (`interrupted`).
        """
        has_ended = self._end(timeout_s)
        if has_ended:
            self._runs.interrupt()
        return has_ended

    def _end(self, timeout_s: float) -> bool:
        with self._condition:
            self._stop.set()
            self._runs.stop()
            self._condition.notify_all()
        end = time.monotonic() + timeout_s
        threads = [*self._threads, self._watcher]
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    @property
    def staging(self) -> frozenset[str]:
        """The datasets that are not served as they are declared here, until `commit`."""
        return self._datasets.snapshots.staging

    def waiting_for(self) -> tuple[str, ...]:
        """See `DatasetControl.waiting_for`."""
        with self._condition:
            return self._datasets.waiting_for()

    def is_loaded(self) -> bool:
        """See `DatasetControl.is_loaded`."""
        return not self.waiting_for()

    def sharing(self) -> None:
        """See `DatasetControl.sharing`."""

    def datasets(self) -> tuple[DatasetState, ...]:
        """See `DatasetControl.datasets`."""
        with self._condition:
            return self._datasets.states(self._now())

    def request_refresh(
        self, name: str, sql: AdmittedSql | None = None, *, run_id: str = "", **options: Unpack[RefreshOptions]
    ) -> RefreshRun:
        """See `DatasetControl.request_refresh`. *run_id* is the id that another node assigned to the run."""
        entry = self._datasets[name]
        check_refresh(entry.config, options.get("mode"))
        with self._condition:
            # Between this refresher's end and its successor's start, the request would be lost.
            self._condition.wait_for(lambda: self._successor is not None or not self._is_moving)
            if (new := self._successor) is not None:
                if not new.has(entry) or options.get("jitter_max_s"):  # See `Runs.take_over`.
                    sql = options["mode"] = None
                return new.request_refresh(name, sql, run_id=run_id, **options)
            if self._stop.is_set() and not self._is_finishing:
                raise DatasetsUnavailableError  # Nothing would run the request or record its result.
            return self._runs.request(entry, sql, run_id=run_id, **options)

    def has(self, entry: DatasetEntry) -> bool:
        """Return whether *entry* is one of this refresher, because its declaration has not changed."""
        return any(one is entry for one in self._datasets)

    def history(self, name: str) -> tuple[RefreshRun, ...]:
        """See `DatasetControl.history`."""
        entry = self._datasets[name]
        with self._condition:
            return self._runs.of(entry)

    def _work(self, builder: Builder) -> None:
        while not self._stop.is_set():
            queued = self._next(builder, REST_S)
            if queued is None:
                builder.close()
                queued = self._next(builder, math.inf)
            if queued is not None:
                self._refresh(queued, builder)

    def _next(self, builder: Builder, rest_s: float) -> QueueEntry | None:
        """Wait for *builder*'s next run and begin it. Return None after *rest_s*, or if the refresher stops."""
        end = time.monotonic() + rest_s
        with self._condition:
            while not self._stop.is_set():
                leaves = not builder.is_started and any(other.is_started for other in self._builders)
                patience_s = _START_S if leaves else 0.0
                queued = None if self._is_finishing else self._runs.begin_next(patience_s)
                if queued is not None:
                    return queued
                left_s = end - time.monotonic()
                if left_s <= 0:
                    return None
                wait_s = left_s if self._is_finishing else min(left_s, self._runs.wait_s(patience_s))
                self._condition.wait(max(0.0, wait_s) if wait_s < math.inf else None)
            return None

    def _refresh(self, queued: QueueEntry, builder: Builder) -> None:
        entry = queued.entry
        trace = RefreshTrace()
        run = carry_out(queued, builder, self._datasets.snapshots, self._share, trace)
        if run.error is not None and queued.stop.is_set() and not self._stop.is_set():
            with self._condition:
                self._runs.put_back(queued)
            name = entry.config.name
            logger.info("The load of dataset %s was stopped so that a waiting load can run; it was queued again", name)
            return
        trace.end(entry.config.name, run)
        status: RefreshStatus = "succeeded" if run.error is None else "failed"
        run = replace(run, status=status, finished_at=utc_now(), duration_ms=milliseconds_since(entry.began))
        with self._condition:
            self._runs.end(queued, run)
        log_run(entry, run, trace, self._now(), is_stopping=self._stop.is_set())

    def _watch(self) -> None:
        """Until the refresher stops, stop overdue loads, reload damaged published data, and record the reasons."""
        snapshots = self._datasets.snapshots
        while not self._stop.wait(POLL_S):
            try:
                with self._condition:
                    self._runs.give_way()
                faults = snapshots.withdraw_damaged()
                if faults and self._share is not None:
                    self._share.reread()  # before a load, which would replace what the other nodes have
                with self._condition:
                    for name, fault in faults.items():
                        place = "source" if self._share is None else "shared storage"
                        logger.warning("%s It will be reloaded from the %s.", fault, place)
                        entry = self._datasets[name]
                        entry.error, entry.loaded_here = fault, False
                        if self._share is None:
                            self._runs.load_soon([entry])
                snapshots.restore()
            except SnapshotError as exc:
                logger.warning("%s", exc)
            except Exception:  # For example, out of memory or descriptors; the next check may succeed.
                logger.exception("The published data cannot be checked")

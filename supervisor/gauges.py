"""
Collects gauges about datasets, the engine, processes and the disk every few seconds, in the `watch` process.

The metrics endpoint returns the latest collected values, so a scrape never waits for another process. Collecting the
gauges takes at most two per cent of one CPU, regardless of the number of datasets.
"""

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from datasources.control import DatasetState
from datasources.errors import DatasetsUnavailableError
from datasources.refresh.control_socket import ControlClient
from queryengine.pool.broker_client import TICK_S, BrokerLink
from queryengine.pool.messages import Said
from runtimeconf.model import RuntimeConfig
from supervisor.parts import part_of
from supervisor.version import version
from system.process_usage import arguments, children, started_at, usage_of
from system.wallclock import seconds_since, since_boot
from telemetry import metrics
from telemetry.metrics import Labels, Metric

logger = logging.getLogger(__name__)

#: Seconds between two collections. The interval is longer if a collection is slow.
LOOK_S = 5.0
_REST = 50

Series = dict[Labels, float]

#: The name and the expiry time, in seconds since 1970, of each named key.
Keys = Sequence[tuple[str, float | None]]


class Gauges:
    """
    The latest gauge values. A thread collects them from `adopt` to `stop`.

    *supervisor* is the process id of the supervisor; None if there is none.
    """

    def __init__(self, supervisor: int | None) -> None:
        self._supervisor = supervisor
        self._found: dict[Metric, Series] = {}
        self._checked: dict[str, float] = {}  # the time of each dataset's last check, in seconds since 1970
        # On the clock of `since_boot`: until when no other node can publish, and when the shared storage last
        # responded.
        self._publishes_until: float | None = None
        self._answered_at: float | None = None
        self._cpu = _ProcessorTime()
        self._config: RuntimeConfig | None = None
        self._keys: Keys = ()
        self._control: ControlClient | None = None
        self._link: BrokerLink | None = None
        self._woken = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="gauges", daemon=True)

    def adopt(self, config: RuntimeConfig, keys: Keys) -> None:
        """From now on, collect the values of the runtime with *config*."""
        former = self._link
        self._config, self._keys = config, keys
        self._control = ControlClient(config.state_dir)
        self._link = BrokerLink(config.engine_dir, _NoStatements())
        self._link.start()
        if former is not None:
            former.close()
        self._woken.set()
        if self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped = True
        self._woken.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._link is not None:
            self._link.close()

    def series(self) -> dict[Metric, Series]:
        """Return the latest values. Values that depend on the time are computed now."""
        now = time.time()
        ages: Series = {(name,): round(max(0.0, now - at), 3) for name, at in self._checked.items()}
        return {**self._found, metrics.DATASET_AGE: ages, **self._sharing(), **self._engine()}

    def _sharing(self) -> dict[Metric, Series]:
        now, until, answered_at = since_boot(), self._publishes_until, self._answered_at
        found: dict[Metric, Series] = {}
        if until is not None:
            found[metrics.NODE_PUBLISHES] = {(): float(now < until)}
        if answered_at is not None:
            found[metrics.SHARED_STORAGE_AGE] = {(): round(now - answered_at, 3)}
        return found

    def _engine(self) -> dict[Metric, Series]:
        if self._link is None or self._config is None:
            return {}
        status, limits = self._link.status, self._config.query
        idle = max(0, status.workers_alive - status.workers_busy)
        return {
            metrics.STATEMENTS_RUNNING: {(): status.running},
            metrics.STATEMENTS_QUEUED: {(): status.queued},
            metrics.QUEUE_LIMIT: {(): limits.max_queued},
            metrics.WORKERS: {
                ("busy",): status.workers_busy,
                ("idle",): idle,
                ("missing",): max(0, limits.workers - status.workers_busy - idle),
            },
        }

    def _run(self) -> None:
        while not self._stopped:
            began = time.thread_time()  # not the time spent waiting for a process that does not respond
            try:
                self._look()
            except Exception:
                logger.exception("Gauges could not be read")
            self._woken.wait(max(LOOK_S, _REST * (time.thread_time() - began)))
            self._woken.clear()

    @cached_property
    def _versions(self) -> Labels:
        import platform  # noqa: PLC0415 (only for metrics, and slow to import)
        from importlib import metadata  # noqa: PLC0415 (as above)

        return version() or "unknown", platform.python_version(), metadata.version("duckdb")

    def _look(self) -> None:
        config, keys, control = self._config, self._keys, self._control
        if config is None or control is None:
            return
        found: dict[Metric, Series] = {
            metrics.BUILD: {self._versions: 1.0},
            metrics.CONFIG: {_described(config): 1.0},
            metrics.KEY_EXPIRES: {(name,): at for name, at in keys if at is not None},
            metrics.DATASET_INTERVAL: {
                (dataset.name,): dataset.acceleration.refresh_check_interval_s
                for dataset in config.datasets
                if dataset.acceleration.refresh_check_interval_s is not None
            },
            **self._processes(),
            **_disk(config.state_dir),
        }
        try:
            asked_at = since_boot()
            if config.snapshots is None:
                self._publishes_until = self._answered_at = None
            elif (sharing := control.sharing()) is not None:
                self._publishes_until = asked_at + sharing.publishes_s
                if sharing.answered_s is not None:
                    self._answered_at = asked_at - sharing.answered_s
            states = control.datasets()
        except DatasetsUnavailableError:  # The known values are still valid, and the ages keep growing.
            kept = (metrics.DATASET_ROWS, metrics.DATASET_BYTES, metrics.DATASET_STATE)
            found |= {metric: self._found[metric] for metric in kept if metric in self._found}
        else:
            found |= _datasets(states)
            now = time.time()
            self._checked = {
                state.name: now - seconds_since(state.checked_at) for state in states if state.checked_at is not None
            }
        self._found = found

    def _processes(self) -> dict[Metric, Series]:
        parts: dict[str, list[int]] = {}
        if self._supervisor is None:
            parts["watch"] = [os.getpid()]
        else:
            for pid in children(self._supervisor):
                parts.setdefault(part_of(arguments(pid), "serve"), []).append(pid)
        usages = [(part, pid, usage_of(pid)) for part, pids in parts.items() for pid in pids]
        resident, processes = Counter[Labels](), Counter[Labels]()
        for part, pid, usage in usages:
            self._cpu.add(part, pid, usage.cpu_s)
            resident[part,] += usage.resident_bytes
            processes[part,] += usage.processes
        return {
            metrics.CPU_SECONDS: self._cpu.seconds(),
            metrics.MEMORY_BYTES: dict(resident),
            metrics.PROCESSES: dict(processes),
        }


class _NoStatements:
    """The listener of a connection that only receives the engine status."""

    def take(self, message: Said) -> None:
        """Ignore it."""

    def lost(self) -> None:
        """Do nothing: nothing was agreed."""

    def tick(self, now: float) -> float:
        """Do nothing: nothing is due."""
        return TICK_S


class _ProcessorTime:
    """Adds up the CPU time of a part's processes, including processes that have ended."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, int, str | None], float] = {}
        self._ended = Counter[str]()
        self._seen: set[tuple[str, int, str | None]] = set()

    def add(self, part: str, pid: int, cpu_s: float) -> None:
        """Record the CPU time that the process *pid* has used so far."""
        life = (part, pid, started_at(pid))
        self._of[life] = max(cpu_s, self._of.get(life, 0.0))
        self._seen.add(life)

    def seconds(self) -> Series:
        """Return the sums. Processes not recorded since the last call have ended."""
        for life in set(self._of) - self._seen:
            self._ended[life[0]] += self._of.pop(life)  # type: ignore[assignment]  # seconds
        self._seen = set()
        sums: Series = {(part,): float(cpu_s) for part, cpu_s in self._ended.items()}
        for (part, _, _), cpu_s in self._of.items():
            sums[part,] = sums.get((part,), 0.0) + cpu_s
        return sums


def _datasets(states: Sequence[DatasetState]) -> dict[Metric, Series]:
    return {
        metrics.DATASET_ROWS: {(state.name,): state.rows for state in states if state.rows is not None},
        metrics.DATASET_BYTES: {(state.name,): state.bytes for state in states if state.bytes is not None},
        metrics.DATASET_STATE: {(state.name, state.status): 1 for state in states},
    }


def _disk(directory: Path) -> dict[Metric, Series]:
    found: dict[Metric, Series] = {}
    with suppress(OSError):
        system = os.statvfs(directory)
        found[metrics.DISK_FREE] = {(): system.f_bavail * system.f_frsize}
        found[metrics.DISK_SIZE] = {(): system.f_blocks * system.f_frsize}
        found[metrics.DISK_USED] = {(): _bytes_in(directory)}
    return found


def _bytes_in(directory: Path) -> int:
    total = 0
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError):  # It has been removed.
                if entry.is_dir(follow_symlinks=False):
                    total += _bytes_in(Path(entry.path))
                else:
                    total += entry.stat(follow_symlinks=False).st_size
    return total


def _described(config: RuntimeConfig) -> Labels:
    on = (config.auth.enabled, config.flight.enabled, config.tls.enabled, config.results_cache.enabled)
    return (str(config.generation), *("on" if is_on else "off" for is_on in on))

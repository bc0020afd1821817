"""The runtime that uses the state directory, if there is one."""

import os
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from datasources.control import DatasetState
from datasources.errors import NOT_WRITTEN, DatasetsUnavailableError
from datasources.refresh.control_socket import ControlClient
from runtime_site.doctor.findings import Finding, duration, error, note, ok, warning
from runtimeconf.model import DatasetConfig, RuntimeConfig
from supervisor.parts import part_of
from supervisor.reload import Report
from system.lock import SUPERVISOR_LOCK_NAME, StateLock
from system.process_usage import STARTED, STATE, TICKS_PER_S, arguments, family, stat_fields

_TIMEOUT_S = 4.0
#: The start of a process is known to a hundredth of a second, and a YAML may be written just before.
_TOLERANCE_S = 1.0
#: A dataset is old if this many refreshes were missed.
_MISSED = 3
#: A process in one of these states (proc(5)) does not run.
_STOPPED = frozenset("TtZ")
_CODE = Path(__file__).resolve().parents[2]
_PACKAGES = ("runtime_site", "httpserver", "sqlapi", "flightapi", "datasources", "queryengine", "authkeys", "system")


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the runtime; `part` is its name, such as `engine`, and `started` is `time.time()` of its start."""

    number: int
    part: str
    state: str
    started: float


@dataclass(frozen=True, slots=True)
class Runtime:
    """
    What runs on a state directory.

    `is_running` is True also if its processes cannot be seen from here; `is_supervised` tells `serve` from a single
    process. The first of `processes` started the others.
    """

    is_running: bool = False
    is_supervised: bool = False
    processes: tuple[Process, ...] = ()

    @property
    def own(self) -> frozenset[int]:
        """The ids of its processes."""
        return frozenset(process.number for process in self.processes)


def find(state_dir: Path) -> Runtime:
    """Return what runs on *state_dir*."""
    locks = {name: StateLock(state_dir, name) for name in (SUPERVISOR_LOCK_NAME, "lock")}
    for name, lock in locks.items():
        if lock.is_taken():
            holder = lock.holder_pid()
            found = () if holder is None else tuple(_processes(holder))
            return Runtime(True, name == SUPERVISOR_LOCK_NAME, found)
    return Runtime()


def _processes(root: int) -> Iterator[Process]:
    """Yield the process *root* and all below it."""
    for number in family(root):
        if (fields := stat_fields(number)) is not None:
            age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[STARTED]) / TICKS_PER_S
            yield Process(number, part_of(arguments(number), "process"), fields[STATE], time.time() - age_s)


class Running:
    """The *runtime* with the configuration *config*, which it may not have read yet."""

    def __init__(self, runtime: Runtime, config: RuntimeConfig) -> None:
        self._runtime = runtime
        self._config = config

    def check(self) -> Iterator[Finding]:
        """Yield whether it runs, is ready and is current, and how old its data is."""
        about = "runtime"
        if not self._runtime.is_running:
            if not os.access(self._config.state_dir, os.F_OK) or os.access(self._config.state_dir, os.R_OK | os.X_OK):
                yield note(about, "No runtime runs on this state directory.")
            return
        if not self._runtime.processes:
            text = "A runtime runs on this state directory, and its processes cannot be seen from here."
            yield note(about, text, "Run this command as its user, and in its container.")
        for process in self._runtime.processes:
            if process.state in _STOPPED:
                text = f"Its process {process.number} ({process.part}) is stopped or dead (state {process.state})."
                yield error(about, text, f"kill -CONT {process.number}, or restart the runtime.")
        if self._runtime.processes[:1] and self._runtime.processes[0].part == "refresh":
            yield note(about, "`runrefresh` runs on this state directory, without a server.")
        else:
            yield from self._answers()
        yield from self._datasets()
        if self._runtime.processes:
            yield from self._is_current(self._runtime.processes[0])

    def _answers(self) -> Iterator[Finding]:
        about, config = "runtime", self._config
        url = f"{'https' if config.tls.enabled else 'http'}://{config.http.bind.local}/v1/ready"
        try:
            # As `healthcheck`: the certificate is for the names that callers use.
            answer = httpx.get(url, timeout=_TIMEOUT_S, trust_env=False, verify=False)  # noqa: S501
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            remedy = "Look at its log, and whether runtime.http.bind or runtime.tls was changed without a restart."
            yield error(about, f"It does not answer {url} ({type(exc).__name__}).", remedy)
            return
        if answer.status_code == 200:
            yield ok(about, f"It is ready ({len(self._runtime.processes)} processes).")
        else:
            yield error(about, f"It is not ready: {url} answers {answer.status_code}.", self._held_up_by())
        if config.tls.enabled and config.tls.certificate_file is not None:
            address = config.http.bind.local
            served = ssl.get_server_certificate((address.host, address.port), timeout=_TIMEOUT_S)
            first, end, _ = config.tls.certificate_file.read_text(errors="replace").partition(ssl.PEM_FOOTER)
            if ssl.PEM_cert_to_DER_cert(first[first.index(ssl.PEM_HEADER) :] + end) != ssl.PEM_cert_to_DER_cert(served):
                text = "It serves another certificate than that in certificate_file."
                yield warning(about, text, "Run `querykeep reload`.")

    def _held_up_by(self) -> str:
        try:
            control = ControlClient(self._config.state_dir)
            awaited = control.waiting_for()
        except DatasetsUnavailableError:
            return "The part that loads data does not answer: look at its log, or restart it."
        if awaited:
            return f"It waits for {', '.join(awaited)}: see the findings about these datasets."
        return "All datasets are there: look in its log for the engine and for Flight SQL."

    def _datasets(self) -> Iterator[Finding]:
        try:
            states = ControlClient(self._config.state_dir).datasets()
        except DatasetsUnavailableError:
            text = "The part that loads data does not answer: the data is served, but no longer refreshed."
            yield error("runtime", text, "Look at its log, or restart the runtime.")
            return
        declared = {dataset.name: dataset for dataset in self._config.datasets}
        judged = [finding for state in states for finding in _judged(state, declared.get(state.name))]
        yield from judged
        if not judged:
            yield ok("runtime", "All of its datasets are loaded and current.")

    def _is_current(self, first: Process) -> Iterator[Finding]:
        about, read_at = "runtime", first.started
        report = Report.read(self._config.state_dir) if self._runtime.is_supervised else None
        asked_at = time.time() - (time.monotonic() - report.began) if report is not None else 0.0
        # A report from before its start is about another runtime.
        if report is not None and asked_at >= first.started:
            if report.state == "failed":
                text = f"Its last reload failed: {' '.join(report.errors)}"
                remedy = "Correct the YAML, then run `querykeep reload`."
                yield warning(about, text, remedy, shared="Its last reload failed.")
            elif report.state == "running":
                yield note(about, f"A reload is under way: it {report.step}.")
            else:
                read_at = asked_at
                yield ok(about, f"Its last reload, {duration(time.time() - asked_at)} ago, was done.")
        if self._config.file.stat().st_mtime > read_at + _TOLERANCE_S:
            yield note(about, "The YAML has changed since the runtime read it.", "Run `querykeep reload`.")
        if _installed_at() > first.started:
            text = "The installed code is newer than the running processes: it runs another version."
            yield warning(about, text, "Restart the runtime: a reload does not change its version.")


#: What to do about errors that are not those of a source, by a part of their text.
_REMEDIES = {
    NOT_WRITTEN: "Make room on the disk of the state directory, or make it writable",
    "query.memory_limit": "Raise the limit, or have the refresh_sql read less",
    "not enough memory": "Look into the log of the system for a process that was killed for its memory",
    "the refresh_timeout of the dataset": "Raise refresh_timeout, or have the refresh_sql read less",
    "storage of shared snapshots": "See params of runtime.snapshots and the network",
    "runtime.snapshots": "See params of runtime.snapshots",
    "see the log of the runtime": "Look into that log",
    "The process that loads data cannot be started": "Look at the limits of the system for processes and descriptors",
    "on_schema_change is fail": "Restore its columns, or set on_schema_change to accept",
    "on_empty is fail": "Restore its rows, or set on_empty to accept",
}


def _remedy(error: str) -> str:
    return next((remedy for part, remedy in _REMEDIES.items() if part in error), "Correct its source")


def _judged(state: DatasetState, dataset: DatasetConfig | None) -> Iterator[Finding]:
    about = f"dataset {state.name}"
    if state.status == "Error":
        remedy = f"{_remedy(state.error or '')}, then run `querykeep refresh {state.name}`."
        yield warning(about, f"Its last refresh failed: {state.error}", remedy, shared="Its last refresh failed.")
    interval_s = None if dataset is None else dataset.acceleration.refresh_check_interval_s
    if interval_s and state.age_s is not None and state.age_s > _MISSED * interval_s:
        text = f"It was last checked {duration(state.age_s)} ago; its interval is {duration(interval_s)}."
        yield warning(about, text, "Look at the runtime's log; a longer interval may suit its source.")


def _installed_at() -> float:
    """Return when the newest file of the code was installed (`time.time()`); wheels may set other times of change."""
    files = (file for package in _PACKAGES for file in (_CODE / package).rglob("*.py"))
    return max((file.stat().st_ctime for file in files), default=0.0)

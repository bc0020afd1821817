"""The runtime that uses the state directory, if there is one."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
from msgspec import Struct

from datasources.control import DatasetState
from datasources.errors import NOT_WRITTEN, DatasetsUnavailableError
from datasources.refresh.control_socket import ControlClient
from doctor.findings import Finding, duration
from runtimeconf.model import RuntimeConfig
from supervisor.parts import part_of
from supervisor.reload import Report
from system.lock import SUPERVISOR_LOCK_NAME, StateLock
from system.process_usage import STARTED, STATE, TICKS_PER_S, arguments, family, stat_fields

_TIMEOUT_S = 4.0
#: A process's start time is known to a hundredth of a second, and the configuration file may have been written just
#: before.
_TOLERANCE_S = 1.0
#: A dataset is outdated if this many refreshes were missed.
_MISSED = 3
#: A process in one of these states (proc(5)) is not running.
_STOPPED = frozenset("TtZ")

#: What to do about errors that are not source errors, by a substring of their text.
_REMEDIES = {
    NOT_WRITTEN: "Free space on the disk of the state directory, or make it writable",
    "query.memory_limit": "Raise the limit, or make the refresh_sql read less data",
    "not enough memory": "Check the system log for a process that was killed for its memory use",
    "the refresh_timeout of the dataset": "Raise refresh_timeout, or make the refresh_sql read less data",
    "on_schema_change is fail": "Restore its columns, or set on_schema_change to accept",
    "on_empty is fail": "Restore its rows, or set on_empty to accept",
}


class Runtime(Struct, frozen=True):
    """The runtime that uses a state directory. If its processes are not visible from here, `processes` is empty."""

    is_running: bool = False
    processes: tuple[int, ...] = ()


def find(state_dir: Path) -> Runtime:
    """Return the runtime that uses *state_dir*. The first of its processes started the others."""
    for name in (SUPERVISOR_LOCK_NAME, "lock"):
        lock = StateLock(state_dir, name)
        if lock.is_taken():
            holder = lock.holder_pid()
            return Runtime(True, () if holder is None else tuple(family(holder)))
    return Runtime()


def check(runtime: Runtime, config: RuntimeConfig) -> Iterator[Finding]:
    """
    Yield findings about the readiness of *runtime*, its configuration and the age of its data.

    The runtime may not have read *config* yet.
    """
    about = "runtime"
    if not runtime.is_running:
        yield Finding("note", about, "No runtime is running on this state directory.")
        return
    if not runtime.processes:
        yield Finding("note", about, "Its processes cannot be seen.", "Run this as its user, and in its container.")
    for pid in runtime.processes:
        if (fields := stat_fields(pid)) is not None and fields[STATE] in _STOPPED:
            text = f"Its process {pid} ({part_of(arguments(pid), 'process')}) is stopped or dead."
            yield Finding("error", about, text, f"kill -CONT {pid}, or restart the runtime.")
    control = ControlClient(config.state_dir)
    yield _answer(config, control)
    yield from _datasets(config, control)
    if runtime.processes:
        yield from _reloads(config, runtime.processes[0])


def _answer(config: RuntimeConfig, control: ControlClient) -> Finding:
    url = f"{'https' if config.tls.enabled else 'http'}://{config.http.bind.local}/v1/ready"
    try:
        # As in `healthcheck`, the certificate is for the names that callers use.
        answer = httpx.get(url, timeout=_TIMEOUT_S, trust_env=False, verify=False)  # noqa: S501
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        remedy = "Check its log, and check whether runtime.http.bind or runtime.tls was changed without a restart."
        return Finding("error", "runtime", f"It does not respond to {url} ({type(exc).__name__}).", remedy)
    if answer.status_code == 200:
        return Finding("ok", "runtime", "It is ready.")
    try:
        awaited = control.waiting_for()
    except DatasetsUnavailableError:
        awaited = ()
    remedy = f"It is waiting for {', '.join(awaited)}: see these datasets." if awaited else "Check its log."
    return Finding("error", "runtime", f"It is not ready: {url} returns {answer.status_code}.", remedy)


def _datasets(config: RuntimeConfig, control: ControlClient) -> Iterator[Finding]:
    try:
        states = control.datasets()
        sharing = None if config.snapshots is None else control.sharing()
    except DatasetsUnavailableError:
        text = "The process that loads data does not respond: the data is served, but no longer refreshed."
        yield Finding("error", "runtime", text, "Check its log, or restart the runtime.")
        return
    if sharing is not None and sharing.error is not None:
        yield Finding(
            "error", "shared storage", sharing.error, "Check the params of runtime.snapshots and the network."
        )
    intervals_s = {dataset.name: dataset.acceleration.refresh_check_interval_s for dataset in config.datasets}
    found = [finding for state in states for finding in judged(state, intervals_s.get(state.name))]
    yield from found or [Finding("ok", "runtime", "All of its datasets are loaded and current.")]


def judged(state: DatasetState, interval_s: float | None) -> Iterator[Finding]:
    """Yield findings on whether the last refresh of a dataset failed, or was too long ago for its interval."""
    about = f"dataset {state.name}"
    if state.status == "Error":
        error = state.error or ""
        remedy = next((remedy for part, remedy in _REMEDIES.items() if part in error), "Correct its source")
        text = f"Its last refresh failed: {error}"
        yield Finding("warning", about, text, f"{remedy}, then run `querykeep refresh {state.name}`.")
    if interval_s and state.age_s is not None and state.age_s > _MISSED * interval_s:
        text = f"It was last checked {duration(state.age_s)} ago; its interval is {duration(interval_s)}."
        yield Finding("warning", about, text, "Check the runtime's log; a longer interval may suit its source.")


def _reloads(config: RuntimeConfig, first: int) -> Iterator[Finding]:
    fields = stat_fields(first)
    if fields is None:  # The process has just ended.
        return
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[STARTED]) / TICKS_PER_S
    started = read_at = time.time() - age_s
    report = Report.read(config.state_dir)
    asked_at = 0.0 if report is None else time.time() - (time.monotonic() - report.began)
    # A report from before this runtime's start is about another runtime.
    if report is not None and asked_at >= started:
        if report.state == "failed":
            text = f"Its last reload failed: {' '.join(report.errors)}"
            yield Finding("warning", "runtime", text, "Correct the configuration, then run `querykeep reload`.")
        elif report.state == "done":
            read_at = asked_at
    if config.file.stat().st_mtime > read_at + _TOLERANCE_S:
        yield Finding(
            "note",
            "runtime",
            "The configuration file has changed since the runtime read it.",
            "Run `querykeep reload`.",
        )

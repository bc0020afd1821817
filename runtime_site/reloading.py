"""
The configurations of a supervised runtime: the one in force, and another one during a reload.

A reload checks the YAML in a process of its own, has refresh take the new configuration, starts a second engine, waits
until the runtime would be ready with both, and then puts the configuration in force for all processes at once. Web and
flight keep their processes and connections. Until that moment everything can be undone; after it, the former engine
finishes the statements that run on it. `docs/decisions/0020-reload.md` has the states and what happens if a process
dies in each.
"""

import fcntl
import json
import logging
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from authkeys import access
from authkeys.access import Access
from httpserver.gunicorn_server import web_workers
from runtime_site import parts
from runtime_site.following import DONE
from runtime_site.supervisor import Part, PartCommand, Supervisor, reason_of
from runtimeconf.errors import ConfigError
from runtimeconf.exposure import check_listener
from runtimeconf.handover import Handover, new_file, read, write
from runtimeconf.model import MIB, RuntimeConfig
from system.addresses import bound_address
from system.heartbeat import HUNG_S, Heartbeat
from system.state_directory import remove_ours

logger = logging.getLogger(__name__)

#: The file in the state directory that says how the last reload went.
REPORT_NAME = "reload.json"
_ENGINE_DIRECTORIES = re.compile("e[0-9]+")

#: Seconds between two looks at a reload under way.
_POLL_S = 0.05
#: Seconds until the YAML must have been read and checked.
_PREPARE_S = 120.0
#: Seconds until refresh must have taken a configuration, beyond the time that its loads may take to finish.
_TAKE_S = 60.0
#: Seconds until every process must have changed over. They look every `following.POLL_S`.
_CHANGE_S = 10.0

#: Bytes of a message that a part parses in a second, on a busy machine and in one call, which delays its heartbeats.
_PARSED_BYTES_PER_S = 16 * MIB

#: More than fits into a pipe.
_REPORTS_BYTES = 1024 * 1024
#: The room for spans in the pipe to the part that exports them.
_SPANS_BYTES = 1024 * 1024

#: The parts whose handover changes while they run.
_FOLLOWING: tuple[parts.OptionalPartName, ...] = ("watch", "refresh", "web", "flight", "traces")

Step = Literal["idle", "preparing", "taking", "starting", "changing", "draining"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How a reload goes. `began` is the monotonic time, in seconds, after which the YAML was read."""

    state: Literal["running", "done", "failed"]
    began: float
    step: str = ""
    errors: list[str] = field(default_factory=list)

    def write(self, state_dir: Path) -> None:
        """Replace the report in *state_dir*. If that fails, there is none, and the failure is logged."""
        temporary = state_dir / f"{REPORT_NAME}.tmp"
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                json.dump(asdict(self), file)
            temporary.replace(state_dir / REPORT_NAME)
        except OSError as error:
            logger.warning("the outcome of the reload cannot be written: %s", error.strerror)
            with suppress(OSError):
                (state_dir / REPORT_NAME).unlink()

    @classmethod
    def read(cls, state_dir: Path) -> Self | None:
        """Return the report in *state_dir*; None if there is none that can be read."""
        try:
            return cls(**json.loads((state_dir / REPORT_NAME).read_bytes()))
        except (OSError, ValueError, TypeError):
            return None


def needs_restart(running: RuntimeConfig, new: RuntimeConfig) -> list[str]:
    """Return a sentence for each setting in which *new* differs from *running* and that only a restart can change."""
    fixed = {
        "runtime.state_dir": (running.state_dir, new.state_dir),
        "runtime.http.bind": (running.http.bind, new.http.bind),
        "runtime.flight.enabled": (running.flight.enabled, new.flight.enabled),
        "runtime.flight.bind": (running.flight.bind, new.flight.bind),
        "runtime.flight.max_message_bytes": (running.flight.max_message_bytes, new.flight.max_message_bytes),
        "runtime.tls.enabled": (running.tls.enabled, new.tls.enabled),
        "runtime.snapshots": (_shared(running), _shared(new)),
        "runtime.traces": ("on" if running.traces else "off", "on" if new.traces else "off"),
    }
    return [
        f"{name} has changed from {before} to {after}, which needs a restart."
        for name, (before, after) in fixed.items()
        if before != after
    ]


def _shared(config: RuntimeConfig) -> str:
    return "off" if config.snapshots is None else f"{config.snapshots.role} of {config.snapshots.location}"


class Generations:
    """
    The parts of a runtime with *config*, its callers *who*, and its reloads.

    Args:
        config: The checked configuration, without keys.
        who: The callers to accept.
        listener: The descriptor of the socket on which web accepts.
        environment: The descriptor from `parts.keep_environment`.

    Raises:
        OSError: The system has no space for the handovers.
    """

    def __init__(self, config: RuntimeConfig, who: Access, listener: int, environment: int) -> None:
        self.config, self.who = config, who
        self._environment = environment
        self._environ = dict(os.environ)
        self._verified, self._ready = (os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(2))
        self._reports, reports = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reports, False)
        self._fixed: dict[str, dict[str, int]] = {
            "watch": {"reports": reports},
            "refresh": {"verified": self._verified, "reports": reports},
            "web": {"ready": self._ready, "reports": reports, "listener": listener},
            "flight": {"reports": reports},
        }
        self._ready_workers = 0
        absent = {name for name, is_on in (("flight", config.flight.enabled), ("traces", config.traces)) if not is_on}
        following = [name for name in _FOLLOWING if name not in absent]
        if config.traces is not None:
            spans, writer = os.pipe2(os.O_CLOEXEC)
            with suppress(OSError):  # The system may allow a user less.
                fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _SPANS_BYTES)
            for part in self._fixed.values():
                part["spans"] = writer
            self._fixed["traces"] = {"spans": spans, "reports": reports}
        for fixed in self._fixed.values():
            fixed["heartbeat"] = Heartbeat.new_file()
        self._handovers = {name: Handover.of(*self._content(name, config, who)) for name in following}
        self._engine_command = self._engine_of(config, who)
        self._last = config.generation
        self._is_asked = False
        self._step: Step = "idle"
        self._new: tuple[RuntimeConfig, Access] = (config, who)
        self._began = self._deadline = 0.0
        self._done: set[int] = set()  # the processes that have reported
        self._drain_s = config.shutdown_timeout_s
        self._preparing: tuple[Part, int] | None = None
        self._engine: Part | None = None
        self._remove_engine_directories()
        self._new_engine: Part | None = None

    def commands(self) -> Iterator[PartCommand]:
        """Yield how to start each part, in the order of their start."""
        watch, refresh, *others = [self._command(name) for name in self._handovers]
        yield from (watch, refresh, self._engine_command, *others)

    def supervise(self, supervisor: Supervisor) -> None:
        """Use *supervisor*, which runs the parts, for reloads."""
        self._supervisor = supervisor
        self._engine = next(part for part in supervisor.parts if part.command is self._engine_command)

    def close(self) -> None:
        """Remove the sockets of engines that have ended. Call it when no part runs any more."""
        remove_ours(self.config.state_dir, _ENGINE_DIRECTORIES)

    def are_ready(self) -> bool:
        """Return whether every web worker has found the runtime ready after its start."""
        with suppress(BlockingIOError):
            self._ready_workers += os.eventfd_read(self._ready)
        return self._ready_workers >= web_workers()

    # The steps of a reload.

    def ask(self) -> None:
        """Reload, as soon as the reload under way has ended or can be given up."""
        self._is_asked = True

    def advance(self) -> float:
        """Do what is due, and return the seconds until the next look."""
        if self._is_asked and self._step in ("taking", "starting"):
            self._fail(["a newer reload took its place"])
        if self._is_asked and self._step == "idle":
            self._is_asked = False
            self._prepare()
        match self._step:
            case "preparing":
                self._wait_for_check()
            case "taking":
                self._take()
            case "starting":
                self._wait_for_start()
            case "changing":
                self._wait_for_change()
        return _POLL_S if self._step not in ("idle", "draining") else math.inf

    def _prepare(self) -> None:
        """Begin: read and check the YAML in a process with the environment that this runtime was started with."""
        self._began = time.monotonic()
        self._deadline = self._began + _PREPARE_S
        self._tell("preparing", "checks the YAML")
        answer, running = new_file(), self._handovers["web"].for_readers()
        try:
            command = parts.preparing(self._environ, self._environment, running, answer)
            self._preparing = self._supervisor.start(command, self._prepared), answer
        finally:
            os.close(running)

    def _wait_for_check(self) -> None:
        if time.monotonic() > self._deadline and self._preparing is not None:
            (part, answer), self._preparing = self._preparing, None
            self._supervisor.kill(part)
            os.close(answer)
            self._fail([f"the YAML and the secrets could not be read within {_PREPARE_S:g} s"])

    def _prepared(self, code: int) -> None:
        assert self._preparing is not None  # noqa: S101 (`_prepare` has started it)
        (_, answer), self._preparing = self._preparing, None
        try:
            if code != 0:
                text = os.pread(answer, os.fstat(answer).st_size, 0).decode()
                self._fail(text.splitlines() or [f"the process that checks the YAML ended early ({reason_of(code)})"])
                return
            config, extra = read(answer)
            who = access.from_handover(config, extra["access"])
        except (LookupError, TypeError, ValueError):
            self._fail(["the installed release is another one than that which runs: restart"])
            return
        finally:
            os.close(answer)
        try:
            if (address := bound_address(self._fixed["web"]["listener"])) is not None:
                check_listener(address, config.auth, config.file)
        except ConfigError as error:
            self._fail(error.lines())
            return
        self._last += 1
        self._new = replace(config, generation=self._last), who
        self._environ = extra["environ"]
        self._deadline = time.monotonic() + self.config.shutdown_timeout_s + _TAKE_S
        self._offer("refresh")
        self._new_engine = self._supervisor.start(self._engine_of(*self._new), self._engine_failed)
        self._tell("taking", "loads what has changed")

    def _take(self) -> None:
        """Wait until refresh loads by the new configuration."""
        if self._counted(1):
            self._offer("watch", "web", "flight", "traces")
            self._tell("starting", "waits until the runtime is ready")
        elif time.monotonic() > self._deadline:
            self._fail(["the part that loads data does not take the new configuration"])

    def _wait_for_start(self) -> None:
        if self._counted(self._followers):
            for handover in self._handovers.values():
                handover.enact()
            self._drain_s = self.config.shutdown_timeout_s
            self.config, self.who = self._new
            self._supervisor.shutdown_timeout_s = self.config.shutdown_timeout_s
            self._done, self._deadline = set(), time.monotonic() + _CHANGE_S
            self._step = "changing"

    def _wait_for_change(self) -> None:
        """Retire the former engine when no new statement can reach it, and refresh serves what was staged."""
        if self._counted(self._followers + 1) or time.monotonic() > self._deadline:
            former, self._engine, self._new_engine = self._engine, self._new_engine, None
            assert former is not None  # noqa: S101 (`supervise` was called)
            assert self._engine is not None  # noqa: S101 (a reload has started it)
            self._engine.on_end = None
            self._step = "draining"
            Report(state="done", began=self._began).write(self.config.state_dir)
            logger.info("The configuration has been reloaded", extra={"fields": {"generation": self._last}})
            self._supervisor.retire(former, self._drain_s, lambda _: self._drained(former))

    def _drained(self, former: Part) -> None:
        _close(former.command)
        self._remove_engine_directories()
        self._step = "idle"

    def _engine_failed(self, code: int) -> None:
        if self._step == "changing":  # The new configuration is in force: this is the engine of the runtime.
            assert self._new_engine is not None  # noqa: S101 (it has just ended)
            self._new_engine = Part(self._new_engine.command)
            self._supervisor.parts.append(self._new_engine)
            self._new_engine.start_later(reason_of(code))
            return
        failed, self._new_engine = self._new_engine, None
        if failed is not None:
            _close(failed.command)
        self._fail([f"the new engine ended ({reason_of(code)}): see the log"])

    def _fail(self, errors: Sequence[str]) -> None:
        """Give the reload up: everything stays as it was."""
        for handover in self._handovers.values():
            handover.withdraw()
        if self._new_engine is not None:
            self._supervisor.kill(self._new_engine)
            _close(self._new_engine.command)
            self._new_engine = None
        self._remove_engine_directories()
        self._step = "idle"
        for error in errors:
            logger.error("The configuration is not reloaded: %s", error)
        Report(state="failed", began=self._began, errors=list(errors)).write(self.config.state_dir)

    # Helpers.

    @property
    def _followers(self) -> int:
        return web_workers() + ("flight" in self._handovers)

    def _tell(self, step: Step, text: str) -> None:
        self._step = step
        Report(state="running", began=self._began, step=text).write(self.config.state_dir)

    def _offer(self, *names: parts.OptionalPartName) -> None:
        self._read_reports()  # that were late for an earlier reload
        self._done = set()
        for name in names:
            if name in self._handovers:
                self._handovers[name].offer(self._last, *self._content(name, *self._new))

    def _counted(self, wanted: int) -> bool:
        """Count the processes that are done, and return whether *wanted* of them are. A failure ends the reload."""
        failures: list[str] = []
        for line in self._read_reports():
            number, process, text = line.split(" ", 2)
            if int(number) != self._last:  # A process that was restarted has caught up.
                continue
            if text == DONE:
                self._done.add(int(process))
            else:
                failures.append(text)
        if failures and self._step != "changing":  # It cannot be undone then.
            self._fail(list(dict.fromkeys(failures)))
            return False
        # One that has died does not count: the one in its place reports too.
        return sum(Path(f"/proc/{process}").exists() for process in self._done) >= wanted

    def _read_reports(self) -> list[str]:
        with suppress(BlockingIOError):
            return os.read(self._reports, _REPORTS_BYTES).decode(errors="replace").splitlines()
        return []

    def _remove_engine_directories(self) -> None:
        remove_ours(self.config.state_dir, _ENGINE_DIRECTORIES, keep={self.config.engine_dir.name})

    def _content(
        self, name: parts.OptionalPartName, config: RuntimeConfig, who: Access
    ) -> tuple[RuntimeConfig, dict[str, Any]]:
        extra: dict[str, Any] = {**self._fixed[name], "supervisor": os.getpid()}
        if name == "refresh":
            extra["environ"] = parts.environment(name, config, self._environ)
        return parts.content(name, config, who, **extra)

    def _command(self, name: parts.OptionalPartName) -> PartCommand:
        descriptor = self._handovers[name].for_readers()
        return self._part(name, self.config, descriptor, self._fixed[name])

    def _engine_of(self, config: RuntimeConfig, who: Access) -> PartCommand:
        fixed = {"verified": self._verified, "heartbeat": Heartbeat.new_file()}
        content = parts.content("engine", config, who, supervisor=os.getpid(), **fixed)
        return self._part("engine", config, write(*content), fixed)

    def _part(
        self, name: parts.OptionalPartName, config: RuntimeConfig, handover: int, others: Mapping[str, int]
    ) -> PartCommand:
        return PartCommand(
            name=name,
            arguments=parts.command(name),
            environ={**parts.environment(name, config, self._environ), parts.HANDOVER_VARIABLE: str(handover)},
            descriptors=(handover, *others.values()),
            fatal=parts.CANNOT_START,
            heartbeat=others["heartbeat"],
            hung_s=HUNG_S + config.flight.max_message_bytes / _PARSED_BYTES_PER_S,
        )


def _close(engine: PartCommand) -> None:
    """Close the handover and the heartbeat of an engine that is not started again."""
    assert engine.heartbeat is not None  # noqa: S101 (every part has one)
    for descriptor in (engine.descriptors[0], engine.heartbeat):
        os.close(descriptor)

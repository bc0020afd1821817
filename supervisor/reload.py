"""
The reloads of a supervised runtime, from one state to the next.

A reload checks the configuration file in a separate process, passes the new configuration to refresh, starts a second
engine, waits until the runtime would be ready with both, and then puts the configuration into effect for all processes
at once. Web and flight keep their processes and connections. Until that moment the reload can be undone. Afterwards,
the previous engine finishes its running statements. `docs/internals/decisions/0020-reload.md` lists the states, and
what happens if a process dies in each of them.
"""

import json
import logging
import math
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from authkeys import access
from queryengine.manifest import REPLACED_NAME
from runtimeconf.errors import ConfigError
from runtimeconf.exposure import check_listener
from runtimeconf.handover import new_file, read
from supervisor import preparation
from supervisor.handovers import Checked, Handovers
from supervisor.process_tree import Part, PartCommand, Supervisor, reason_of
from system.addresses import bound_address
from system.state_directory import remove_ours

logger = logging.getLogger(__name__)

#: The file in the state directory with the result of the last reload.
REPORT_NAME = "reload.json"
#: The directories of engines, and the mark of the first engine, which has no directory of its own.
_OF_ENGINES = re.compile(f"e[0-9]+|{REPLACED_NAME}")

#: Seconds between two checks of a reload in progress.
_POLL_S = 0.05
#: Timeout in seconds for reading and checking the configuration file.
_PREPARE_S = 120.0
#: Seconds that refresh has to adopt a configuration, in addition to the time that its loads may take to finish.
_TAKE_S = 60.0
#: Seconds that every process has to switch. Processes check every `hot_reload.POLL_S`.
_CHANGE_S = 10.0


class Report(Struct, frozen=True, kw_only=True):
    """The state of a reload. `began` is a monotonic time in seconds; the configuration file was read after it."""

    state: Literal["running", "done", "failed"]
    began: float
    step: str = ""
    errors: list[str] = field(default_factory=list)

    def write(self, state_dir: Path) -> None:
        """Replace the report in *state_dir*. If that fails, no report is left, and the failure is logged."""
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
        """Return the report in *state_dir*; None if there is no readable report."""
        try:
            return cls(**json.loads((state_dir / REPORT_NAME).read_bytes()))
        except (OSError, ValueError, TypeError):
            return None


class Reloads:
    """
    The reloads of the runtime that *supervisor* runs, one after the other.

    Args:
        supervisor: The supervisor of the parts.
        handovers: The configurations that the parts inherit.
        in_force: The configuration that the parts were started with.
        environment: The descriptor from `preparation.keep_environment`.
    """

    def __init__(self, supervisor: Supervisor, handovers: Handovers, in_force: Checked, environment: int) -> None:
        self.supervisor = supervisor
        self.handovers = handovers
        self.in_force = in_force
        self.environment = environment
        self.is_asked = False
        self.number = in_force.config.generation
        self._state: _State = _Idle(self)
        self.remove_other_engines()

    def ask(self) -> None:
        """Reload as soon as the current reload has ended or can be abandoned."""
        self.is_asked = True

    def advance(self) -> float:
        """Perform the actions that are due, and return the seconds until the next check."""
        while (following := self._state.advance()) is not self._state:
            self._state = following
        return self._state.poll_s

    def close(self) -> None:
        """Remove the files of engines that have ended. Call this when no part is running any more."""
        remove_ours(self.in_force.config.state_dir, _OF_ENGINES)

    def remove_other_engines(self) -> None:
        """Remove the files of all engines except the one with the configuration in effect."""
        config = self.in_force.config
        remove_ours(config.state_dir, _OF_ENGINES, keep={config.engine_dir.name})


@dataclass
class _State(ABC):
    """One state of `reloads`."""

    poll_s: ClassVar[float] = _POLL_S

    reloads: Reloads

    @abstractmethod
    def advance(self) -> "_State":
        """Perform the actions that are due, and return the next state, or this state if it continues."""


class _Idle(_State):
    """No reload is in progress."""

    poll_s = math.inf

    def advance(self) -> _State:
        if not self.reloads.is_asked:
            return self
        self.reloads.is_asked = False
        return _Preparing.begin(self.reloads)


@dataclass
class _Reloading(_State):
    """A reload has been in progress since `began` (a monotonic time) and must end by `deadline`."""

    began: float
    deadline: float

    @property
    def is_late(self) -> bool:
        return time.monotonic() > self.deadline

    def _report(self, step: str) -> None:
        Report(state="running", began=self.began, step=step).write(self.reloads.in_force.config.state_dir)

    def _fail(self, errors: Sequence[str]) -> _Idle:
        """Abandon the reload. Nothing changes."""
        self.reloads.handovers.withdraw()
        self.reloads.remove_other_engines()
        for error in errors:
            logger.error("The configuration is not reloaded: %s", error)
        report = Report(state="failed", began=self.began, errors=list(errors))
        report.write(self.reloads.in_force.config.state_dir)
        return _Idle(self.reloads)


@dataclass
class _Preparing(_Reloading):
    """The process `check` reads and checks the configuration file with the original environment of this runtime."""

    check: Part
    answer: int

    @classmethod
    def begin(cls, reloads: Reloads) -> Self:
        now = time.monotonic()
        answer, running = new_file(), reloads.handovers.for_preparation()
        try:
            command = preparation.command(reloads.in_force.environ, reloads.environment, running, answer)
            check = reloads.supervisor.start(command)
        finally:
            os.close(running)
        state = cls(reloads, now, now + _PREPARE_S, check, answer)
        state._report("checks the configuration")
        return state

    def advance(self) -> _State:
        if self.check.exit_code is None and not self.is_late:
            return self
        try:
            return self._next()
        finally:
            os.close(self.answer)

    def _next(self) -> _State:
        code = self.check.exit_code
        if code is None:
            self.reloads.supervisor.kill(self.check)
            return self._fail([f"the configuration and the secrets could not be read within {_PREPARE_S:g} s"])
        if code != 0:
            text = os.pread(self.answer, os.fstat(self.answer).st_size, 0).decode()
            ended = f"the process that checks the configuration ended early ({reason_of(code)})"
            return self._fail(text.splitlines() or [ended])
        try:
            config, extra = read(self.answer)
            new = Checked(config, access.from_handover(config, extra["access"]), extra["environ"])
        except (LookupError, TypeError, ValueError):
            return self._fail(["the installed release is not the one that is running: restart"])
        try:
            if (address := bound_address(self.reloads.handovers.listener)) is not None:
                check_listener(address, config.auth, config.file)
        except ConfigError as error:
            return self._fail(error.lines())
        return _Taking.begin(self, new)


@dataclass
class _Started(_Reloading):
    """The engine of the configuration `new` has been started."""

    new: Checked
    engine: Part

    def advance(self) -> _State:
        if self.reloads.is_asked:
            return self._undo(["a newer reload took its place"])
        if (code := self.engine.exit_code) is not None:
            return self._undo([f"the new engine ended ({reason_of(code)}): see the log"])
        if failures := self.reloads.handovers.reports.failures():
            return self._undo(failures)
        return self._next()

    @abstractmethod
    def _next(self) -> _State:
        """Return the next state if everything that this state waits for has happened."""

    def _undo(self, errors: Sequence[str]) -> _Idle:
        self.reloads.supervisor.kill(self.engine)
        _close(self.engine.command)
        return self._fail(errors)


class _Taking(_Started):
    """Refresh adopts the new configuration and loads with it."""

    @classmethod
    def begin(cls, prepared: _Preparing, new: Checked) -> Self:
        reloads = prepared.reloads
        reloads.number += 1
        new = replace(new, config=replace(new.config, generation=reloads.number))
        deadline = time.monotonic() + reloads.in_force.config.shutdown_timeout_s + _TAKE_S
        reloads.handovers.offer(new, "refresh")
        # An engine of a reload that cannot start must not stop the runtime.
        engine = reloads.supervisor.start(replace(reloads.handovers.engine(new), fatal=None))
        state = cls(reloads, prepared.began, deadline, new, engine)
        state._report("loads what has changed")
        return state

    def _next(self) -> _State:
        if self.reloads.handovers.reports.count() >= 1:
            self.reloads.handovers.offer(self.new, "watch", "web", "flight", "traces")
            self._report("waits until the runtime is ready")
            return _Starting(self.reloads, self.began, math.inf, self.new, self.engine)
        if self.is_late:
            return self._undo(["the process that loads data did not accept the new configuration"])
        return self


class _Starting(_Started):
    """The runtime becomes ready with the new configuration."""

    def _next(self) -> _State:
        handovers, supervisor = self.reloads.handovers, self.reloads.supervisor
        if handovers.reports.count() < handovers.followers:
            return self
        try:  # before anything can be published that is only for the new configuration
            (self.reloads.in_force.config.engine_dir / REPLACED_NAME).touch(mode=0o600)
        except OSError as error:
            return self._undo([f"the state directory cannot be written: {error.strerror}"])
        handovers.reports.expect(self.new.config.generation)  # before a process can report that it has switched
        handovers.enact()
        drain_s = self.reloads.in_force.config.shutdown_timeout_s
        former = next(part for part in supervisor.parts if part.command.name == "engine" and part is not self.engine)
        self.engine.is_restarted = True
        self.reloads.in_force = self.new
        supervisor.shutdown_timeout_s = self.new.config.shutdown_timeout_s
        return _Changing(self.reloads, self.began, time.monotonic() + _CHANGE_S, former, drain_s)


@dataclass
class _Changing(_Reloading):
    """The new configuration is in effect and cannot be undone. The processes switch to it."""

    former: Part
    drain_s: float

    def advance(self) -> _State:
        # By now no new statement can reach the previous engine, and refresh serves the staged data.
        handovers = self.reloads.handovers
        handovers.reports.failures()
        if handovers.reports.count() <= handovers.followers and not self.is_late:
            return self
        config = self.reloads.in_force.config
        Report(state="done", began=self.began).write(config.state_dir)
        logger.info("The configuration has been reloaded", extra={"fields": {"generation": config.generation}})
        self.reloads.supervisor.retire(self.former, self.drain_s)
        return _Draining(self.reloads, self.former)


@dataclass
class _Draining(_State):
    """The engine `former` finishes its running statements."""

    poll_s = math.inf

    former: Part

    def advance(self) -> _State:
        if self.former.exit_code is None:
            return self
        _close(self.former.command)
        self.reloads.remove_other_engines()
        return _Idle(self.reloads)


def _close(engine: PartCommand) -> None:
    """Close the handover and the heartbeat of an engine that will not be started again."""
    assert engine.heartbeat is not None  # noqa: S101 (every part has one)
    for descriptor in (engine.descriptors[0], engine.heartbeat):
        os.close(descriptor)

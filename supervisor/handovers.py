"""The configuration that the parts of a runtime inherit from their supervisor, and the reports that they send back."""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from authkeys.access import Access
from httpserver.connection_counts import web_workers
from runtimeconf.handover import Handover, write
from runtimeconf.model import MIB, RuntimeConfig
from supervisor import parts
from supervisor.hot_reload import DONE
from supervisor.process_tree import PartCommand
from system.heartbeat import HUNG_S, Heartbeat

#: Bytes of a message that a part parses per second on a busy machine. Parsing is one call, which delays heartbeats.
_PARSED_BYTES_PER_S = 16 * MIB

#: More than fits into a pipe.
_REPORTS_BYTES = 1024 * 1024
#: Bytes of the pipe that carries spans to the exporter.
_SPANS_BYTES = 1024 * 1024

#: The parts whose handover changes while they run.
_FOLLOWING: tuple[parts.OptionalPartName, ...] = ("watch", "refresh", "web", "flight", "traces")


class Checked(Struct, frozen=True):
    """A checked configuration without keys, the callers to accept, and the environment of the runtime."""

    config: RuntimeConfig
    who: Access
    environ: Mapping[str, str]


class Reports:
    """The pipe to which processes write when they are prepared for a configuration, or have switched to it."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reader, False)
        self._number = 0
        self._done: set[int] = set()

    def expect(self, number: int) -> None:
        """Count reports on configuration *number* from now on, and discard earlier reports."""
        self._lines()
        self._number, self._done = number, set()

    def failures(self) -> list[str]:
        """Read the pending reports, and return the reasons why processes cannot use the configuration."""
        failures: dict[str, None] = {}
        for line in self._lines():
            number, process, text = line.split(" ", 2)
            if int(number) != self._number:  # A process that was restarted has caught up.
                continue
            if text == DONE:
                self._done.add(int(process))
            else:
                failures[text] = None
        return list(failures)

    def count(self) -> int:
        """Return how many processes have reported that they are done, as of the last call of `failures`."""
        # A dead process does not count because its replacement reports too.
        return sum(Path(f"/proc/{process}").exists() for process in self._done)

    def _lines(self) -> list[str]:
        with suppress(BlockingIOError):
            return os.read(self._reader, _REPORTS_BYTES).decode(errors="replace").splitlines()
        return []


class Handovers:
    """
    The descriptors that each part keeps, and the inherited configurations that a reload changes.

    Args:
        checked: The configuration to start with.
        listener: The descriptor of the socket on which the web process accepts connections.

    Raises:
        OSError: The system has no space for the handovers.
    """

    def __init__(self, checked: Checked, listener: int) -> None:
        self._verified, self._ready = (os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(2))
        self._ready_workers = 0
        self.listener = listener
        self.reports = Reports()
        reports = self.reports.writer
        self._fixed: dict[str, dict[str, int]] = {
            "watch": {"reports": reports},
            "refresh": {"verified": self._verified, "reports": reports},
            "web": {"ready": self._ready, "reports": reports, "listener": listener},
            "flight": {"reports": reports},
        }
        config = checked.config
        absent = {name for name, is_on in (("flight", config.flight.enabled), ("traces", config.traces)) if not is_on}
        if config.traces is not None:
            spans, writer = os.pipe2(os.O_CLOEXEC)
            with suppress(OSError):  # The system may limit the user to less.
                fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _SPANS_BYTES)
            for part in self._fixed.values():
                part["spans"] = writer
            self._fixed["traces"] = {"spans": spans, "reports": reports}
        for fixed in self._fixed.values():
            fixed["heartbeat"] = Heartbeat.new_file()
        self._handovers = {
            name: Handover.of(*self._content(name, checked)) for name in _FOLLOWING if name not in absent
        }

    @property
    def followers(self) -> int:
        """The number of processes, not counting refresh, that switch when a configuration takes effect."""
        return web_workers() + ("flight" in self._handovers)

    def are_ready(self) -> bool:
        """Return whether every web worker has found the runtime ready after its start."""
        with suppress(BlockingIOError):
            self._ready_workers += os.eventfd_read(self._ready)
        return self._ready_workers >= web_workers()

    def commands(self, checked: Checked) -> Iterator[PartCommand]:
        """Yield the command that starts each part with *checked*, in startup order."""
        watch, refresh, *others = [
            self._command(name, checked, handover.for_readers(), self._fixed[name])
            for name, handover in self._handovers.items()
        ]
        yield from (watch, refresh, self.engine(checked), *others)

    def engine(self, checked: Checked) -> PartCommand:
        """Return the command that starts an engine with *checked*. An engine keeps its configuration until it ends."""
        fixed = {"verified": self._verified, "heartbeat": Heartbeat.new_file()}
        content = parts.content("engine", checked.config, checked.who, supervisor=os.getpid(), **fixed)
        return self._command("engine", checked, write(*content), fixed)

    def for_preparation(self) -> int:
        """Return another descriptor of the current configuration, for the process that prepares a reload."""
        return self._handovers["web"].for_readers()

    def offer(self, checked: Checked, *names: parts.OptionalPartName) -> None:
        """Offer *checked* to the existing parts among *names*, and count their reports from now on."""
        number = checked.config.generation
        self.reports.expect(number)
        for name in names:
            if name in self._handovers:
                self._handovers[name].offer(number, *self._content(name, checked))

    def enact(self) -> None:
        """Put the offered configuration into effect for all parts."""
        for handover in self._handovers.values():
            handover.enact()

    def withdraw(self) -> None:
        """Withdraw the offered configuration."""
        for handover in self._handovers.values():
            handover.withdraw()

    def _content(self, name: parts.OptionalPartName, checked: Checked) -> tuple[RuntimeConfig, dict[str, Any]]:
        extra: dict[str, Any] = {**self._fixed[name], "supervisor": os.getpid()}
        if name == "refresh":
            extra["environ"] = parts.environment(name, checked.config, checked.environ)
        return parts.content(name, checked.config, checked.who, **extra)

    def _command(
        self, name: parts.OptionalPartName, checked: Checked, handover: int, others: Mapping[str, int]
    ) -> PartCommand:
        environ = parts.environment(name, checked.config, checked.environ)
        return PartCommand(
            name=name,
            arguments=parts.command(name),
            environ={**environ, parts.HANDOVER_VARIABLE: str(handover)},
            descriptors=(handover, *others.values()),
            fatal=parts.CANNOT_START,
            heartbeat=others["heartbeat"],
            hung_s=HUNG_S + checked.config.flight.max_message_bytes / _PARSED_BYTES_PER_S,
        )

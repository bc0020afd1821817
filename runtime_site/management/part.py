"""
The option `--config`, and the base of `serve` and of the commands that run one part (`runrefresh`, `runengine`, ...).

`serve` starts the parts; they can also be started by hand.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser

import authkeys.state
import runtimeconf.state
from runtime_site import parts, startup
from runtime_site.reloading import needs_restart
from runtimeconf import handover
from runtimeconf.model import MetricsConfig, RuntimeConfig
from system.addresses import bind_problem, wait_until_bindable
from system.heartbeat import Heartbeat
from system.state_directory import prepare_state_dir


def add_config_option(parser: CommandParser) -> None:
    """Declare `--config FILE`; its value, `config`, is for `use_config`."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="the runtime YAML (default: the file named by RUNTIME_CONFIG, else runtime.yaml)",
    )


def use_config(file: Path | None) -> None:
    """Read the configuration of this process from *file*, if given."""
    if file is not None:
        os.environ[runtimeconf.state.ENVIRONMENT_VARIABLE] = str(file)
        runtimeconf.state.set_config(None)
        authkeys.state.set_access(None)  # It may have been built from another file when Django was set up.


class StopSignal:
    """
    The first SIGTERM or SIGINT from now on, for the main thread.

    The interpreter writes it to a pipe as soon as it comes. A handler would run only between two steps of the main
    thread: too late for a wait that has just begun, and perhaps in the middle of one, where the lock of an event that
    it sets is held.
    """

    def __init__(self) -> None:
        self._arrivals, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._number = 0
        signal.set_wakeup_fd(write_end)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)  # The interpreter looks only for signals that have a handler.

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for it, at most *timeout_s* seconds, and return its number; 0 if it has not come."""
        if not self._number and select.select([self._arrivals], [], [], timeout_s)[0]:
            self._number = os.read(self._arrivals, 1)[0]
        return self._number


def heartbeat(extra: Mapping[str, Any]) -> Callable[[], None]:
    """
    Return what a part calls at least every few seconds, as long as it works, by the content of its handover.

    It does nothing if no supervisor started the part.
    """
    return Heartbeat(extra["heartbeat"]).beat if "heartbeat" in extra else lambda: None


def _prepare(preparation: parts.Preparation) -> None:
    """Check the YAML for a reload and answer with the configuration, or with its faults."""
    try:
        restarts = needs_restart(preparation.running, runtimeconf.state.get_config())
        if restarts:
            sys.exit(_refused(preparation, "\n".join(restarts)))
        config = startup.checked_config()
        _check_metrics_endpoint(preparation.running.metrics, config.metrics)
        startup.log_warnings(config)
        parts.answer(preparation, config, authkeys.state.get_access())
    except startup.StartError as error:
        sys.exit(_refused(preparation, str(error)))


def _check_metrics_endpoint(before: MetricsConfig, after: MetricsConfig) -> None:
    """Raise OSError if the metrics endpoint cannot listen where *after* says."""
    if not after.enabled:
        return
    if before.enabled and before.bind.port == after.bind.port:  # It may be free as soon as the former endpoint is gone.
        if (problem := bind_problem(after.bind)) is not None:
            raise OSError(problem)
    else:
        wait_until_bindable(after.bind, "runtime.metrics.bind", time.monotonic())


def _refused(preparation: parts.Preparation, reason: str) -> int:
    os.pwrite(preparation.answer, reason.encode(), 0)
    return 1


class PartBase(BaseCommand):
    """Runs one part of the runtime, or their supervisor, until SIGTERM."""

    part: ClassVar[parts.Program]
    exit_code: ClassVar[int] = parts.CANNOT_START  # if it cannot start
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        add_config_option(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve with the handover; without one, check the YAML and execute this part again with only what it needs."""
        handed = handover.received()
        try:
            if handed is None:
                began = time.monotonic()
                use_config(options["config"])
                if (preparation := parts.preparation()) is not None:
                    _prepare(preparation)
                    return
                config = startup.checked_config()
                if self.part != "serve":  # It logs them once it can start.
                    startup.log_warnings(config)
                parts.execute(self.part, config, authkeys.state.get_access(), began=began, **self.handed(options))
            prepare_state_dir(handed[0].state_dir)  # It may have been removed or changed since the runtime started.
            self.serve(*handed)
        except startup.StartError as error:
            self.stderr.write(str(error))
            sys.exit(self.exit_code)

    def handed(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON values that `serve` needs from the *options*."""
        return {}

    def serve(self, config: RuntimeConfig, extra: dict[str, Any]) -> None:
        """
        Serve until SIGTERM.

        Raises:
            StartError: It cannot start, and a restart would not help.
        """
        raise NotImplementedError

"""`manage.py serve`: the runtime for production, all parts under one supervisor."""

import logging
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

import authkeys.state
from authkeys.access import Access
from httpserver.gunicorn_server import web_workers
from runtime_site import parts, startup
from runtime_site.management.part import PartBase
from runtime_site.supervisor import PartCommand, Supervisor
from runtimeconf.model import RuntimeConfig
from system.addresses import wait_until_bindable
from system.errors import StateDirectoryError
from system.lock import PREDECESSOR_WAIT_S, SUPERVISOR_LOCK_NAME, StateLock
from system.process_limits import give_memory_back

logger = logging.getLogger(__name__)

#: Statements finish first, then their answers are sent, and loads stop last.
STOP_ORDER: tuple[parts.PartName, ...] = ("engine", "flight", "web", "refresh")


class Command(PartBase):
    """Check the configuration, start the parts, and serve until SIGTERM."""

    help = "Starts the runtime: checks the YAML, binds, loads the datasets and serves until SIGTERM or Ctrl-C."
    part = "serve"
    exit_code = 1

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        super().add_arguments(parser)
        parser.add_argument(
            "--ready-message",
            metavar="TEXT",
            default="",
            help="more to print once every dataset is loaded and statements are answered",
        )

    def handed(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return what to print when the runtime is ready."""
        return {"ready_message": options["ready_message"]}

    def serve(self, config: RuntimeConfig, extra: dict[str, Any]) -> None:
        """Supervise the parts; exit with 0 after SIGTERM, with 1 if one cannot start or after a second SIGTERM."""
        deadline = time.monotonic() + PREDECESSOR_WAIT_S
        lock = _take_state_dir(config, deadline)
        wait_until_bindable(config.http.bind, "runtime.http.bind", deadline)
        if config.flight.enabled:
            wait_until_bindable(config.flight.bind, "runtime.flight.bind", deadline)
        started = _Parts(config, authkeys.state.ensure_built())
        self._announce(config)

        def report_ready() -> None:
            more = [extra["ready_message"]] if extra["ready_message"] else []
            self._print(f"Ready     after {time.monotonic() - extra['began']:.1f} s", *more)

        names = {command.name for command in started.commands}
        supervisor = Supervisor(
            started.commands,
            stop_order=[name for name in STOP_ORDER if name in names],
            shutdown_timeout_s=config.shutdown_timeout_s,
            is_ready=started.are_ready,
            on_ready=report_ready,
            each_day=partial(startup.log_expiring_keys, started.who),
        )
        parts.leave_no_core()
        give_memory_back()
        code = supervisor.run()
        lock.release()
        sys.exit(code)

    def _announce(self, config: RuntimeConfig) -> None:
        scheme = "https" if config.tls.enabled else "http"
        names = ", ".join(dataset.name for dataset in config.datasets) or "none"
        self._print(
            f"HTTP      {scheme}://{config.http.bind}",
            f"Flight    {'grpc+tls' if config.tls.enabled else 'grpc'}://{config.flight.bind}"
            if config.flight.enabled
            else "Flight    off",
            f"Keys      {startup.describe_keys()}",
            f"Datasets  {names}",
        )
        startup.log_warnings(config)

    def _print(self, *lines: str) -> None:
        """Print *lines* if possible; the runtime does not depend on standard output."""
        try:
            for line in lines:
                self.stdout.write(line)
            self.stdout.flush()
        except OSError as error:
            logger.warning("cannot write to standard output: %s", error.strerror)
            # Python would try to flush the buffer again at exit, and fail.
            with Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _take_state_dir(config: RuntimeConfig, deadline: float) -> StateLock:
    """
    Wait until no other runtime uses the state directory, and return the lock that marks it as used by this one.

    The part that loads data acquires the lock of the data itself.

    Raises:
        StateDirectoryError: Another runtime still uses it at *deadline*, a `time.monotonic()` value.
    """
    ours, data = StateLock(config.state_dir, SUPERVISOR_LOCK_NAME), StateLock(config.state_dir)
    for lock in (ours, data):
        if not lock.acquire(max(0.0, deadline - time.monotonic())):
            raise StateDirectoryError(
                f"The state directory {config.state_dir} is in use by {lock.holder()}: stop that runtime first, or "
                "set another state_dir."
            )
    data.release()
    return ours


class _Parts:
    """
    The commands of all parts of *config*, and the events by which parts report.

    Raises:
        OSError: The system has no space for their handovers.
    """

    def __init__(self, config: RuntimeConfig, who: Access) -> None:
        self._config = config
        self.who = who
        self._verified = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ready = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ready_workers = 0
        self.commands = (
            self._command("refresh", verified=self._verified),
            self._command("engine", verified=self._verified),
            self._command("web", ready=self._ready),
            *([self._command("flight")] if config.flight.enabled else []),
        )

    def are_ready(self) -> bool:
        """Return whether every web worker has found the runtime ready."""
        try:
            self._ready_workers += os.eventfd_read(self._ready)
        except BlockingIOError:
            return False
        return self._ready_workers >= web_workers()

    def _command(self, name: parts.PartName, **events: int) -> PartCommand:
        descriptor = parts.hand_over(name, self._config, self.who, supervisor=os.getpid(), **events)
        return PartCommand(
            name=name,
            arguments=parts.command(name),
            environ=parts.environment(name, self._config, os.environ, descriptor),
            descriptors=(descriptor, *events.values()),
            fatal=parts.CANNOT_START,
        )

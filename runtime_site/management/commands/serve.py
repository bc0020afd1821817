"""`manage.py serve`: the runtime for production."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter

import runtimeconf.state
from datasets.errors import StateDirectoryError
from datasets.lock import StateLock
from runtime_site import gunicorn_web, startup
from runtime_site.ports import wait_until_bindable
from runtimeconf.model import RuntimeConfig
from sqlapi.readiness import is_ready

#: Seconds that a start waits for the ports and the lock of a predecessor that is just ending.
PREDECESSOR_WAIT_S = 5.0

READY_POLL_S = 0.05


class Command(BaseCommand):
    """Check the configuration, bind, and serve until SIGTERM."""

    help = "Starts the runtime: checks the YAML, binds, loads the datasets and serves until SIGTERM or Ctrl-C."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--config",
            metavar="FILE",
            type=Path,
            help="the runtime YAML (default: the file named by RUNTIME_CONFIG, else runtime.yaml)",
        )
        parser.add_argument(
            "--ready-message",
            metavar="TEXT",
            default="",
            help="more to print once every dataset is loaded and statements are answered",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve; the process ends with 0 after SIGTERM, 1 when it cannot start."""
        if options["config"] is not None:
            os.environ["RUNTIME_CONFIG"] = str(options["config"])
            runtimeconf.state.set_config(None)
        try:
            config = startup.checked_config()
            deadline = time.monotonic() + PREDECESSOR_WAIT_S
            wait_until_bindable(config.http.bind, deadline)
            _wait_for_state_dir(config, deadline)
        except startup.StartError as error:
            self.stderr.write(str(error))
            sys.exit(1)
        self._announce(config)
        sys.stdout.flush()
        _Server(config, options["ready_message"]).run()

    def _announce(self, config: RuntimeConfig) -> None:
        scheme = "https" if config.tls.enabled else "http"
        names = ", ".join(dataset.name for dataset in config.datasets) or "none"
        self.stdout.write(f"HTTP      {scheme}://{config.http.bind}")
        self.stdout.write(f"Keys      {startup.describe_keys()}")
        self.stdout.write(f"Datasets  {names}")
        startup.log_warnings(config)


def _wait_for_state_dir(config: RuntimeConfig, deadline: float) -> None:
    """
    Return as soon as no other runtime holds the state directory; the process that will hold it takes the lock itself.

    Raises:
        StateDirectoryError: Another runtime holds it still at *deadline*, a `time.monotonic()` value.
    """
    lock = StateLock(config.state_dir)
    if not lock.acquire(max(0.0, deadline - time.monotonic())):
        raise StateDirectoryError(
            f"The state directory {config.state_dir} is in use by {lock.holder()}: stop that runtime first, or set "
            "another state_dir."
        )
    lock.release()


class _Server(BaseApplication):
    """gunicorn with the settings of the YAML and no command line of its own."""

    def __init__(self, config: RuntimeConfig, ready_message: str) -> None:
        self._config = config
        self._ready_message = ready_message
        self._began = time.monotonic()
        super().__init__()

    def load_config(self) -> None:
        for name, value in gunicorn_web.options(self._config).items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        startup.start_or_exit(exclusive=True)
        threading.Thread(target=self._say_when_ready, name="ready-message", daemon=True).start()
        from runtime_site.wsgi import application  # noqa: PLC0415 (loading it would start the runtime shared)

        return application

    def run(self) -> None:
        _Arbiter(self).run()

    def _say_when_ready(self) -> None:
        while not is_ready():
            time.sleep(READY_POLL_S)
        sys.stdout.write(f"Ready     after {time.monotonic() - self._began:.1f} s\n")
        if self._ready_message:
            sys.stdout.write(f"{self._ready_message}\n")
        sys.stdout.flush()


class _Arbiter(Arbiter):
    """
    gunicorn's parent process without the signals that make no sense for one worker that holds the state directory.

    SIGHUP starts workers anew beside the old ones, SIGTTIN and SIGTTOU change their number, SIGUSR2 starts a second
    parent.
    """

    def handle_hup(self) -> None:
        """Do nothing: what the YAML says is read at startup only."""

    handle_ttin = handle_ttou = handle_usr2 = handle_hup

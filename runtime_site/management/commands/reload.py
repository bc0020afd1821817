"""`manage.py reload`: make the running runtime read its configuration file again."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from runtime_site.management.base import add_config_option
from runtimeconf.errors import ConfigError
from runtimeconf.loader import state_dir_of
from runtimeconf.state import config_path
from supervisor.reload import Report
from system.lock import SUPERVISOR_LOCK_NAME, StateLock

_POLL_S = 0.05


class Command(BaseCommand):
    """Ask the supervisor for a reload, and wait until it ends."""

    help = (
        "Makes the running `serve` reload its configuration without refusing or cutting off requests. Waits until the "
        "new configuration is in effect. If it cannot be used, prints the reason and exits with 1; the runtime keeps "
        "its current configuration."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        add_config_option(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Send SIGHUP, print each step, and exit with 1 if the configuration is not reloaded."""
        file: Path = options["config"] or config_path(os.environ)
        try:
            state_dir = state_dir_of(file)
        except ConfigError as error:
            raise CommandError(str(error)) from error
        lock = StateLock(state_dir, SUPERVISOR_LOCK_NAME)
        supervisor = lock.holder_pid()
        if supervisor is None:
            if lock.is_taken():
                raise CommandError(f"The `serve` that uses {state_dir} cannot be seen from here: send it SIGHUP.")
            raise CommandError(f"No `serve` uses {state_dir}, the state directory of {file}.")
        began = time.monotonic()
        try:
            os.kill(supervisor, signal.SIGHUP)
        except OSError as error:
            raise CommandError(f"The runtime, process {supervisor}, cannot be signalled: {error.strerror}.") from error
        step = ""
        while (report := _report(state_dir)).began < began or report.state == "running":
            if report.began >= began and report.step != step:
                step = report.step
                self._say(began, step)
            if lock.holder_pid() != supervisor:
                raise CommandError("The runtime has ended.")
            time.sleep(_POLL_S)
        if report.state == "failed":
            self.stderr.write(
                "\n".join([*report.errors, "Nothing has been reloaded: the runtime keeps its current configuration."])
            )
            sys.exit(1)
        self._say(began, "done: the new configuration is in effect")

    def _say(self, began: float, text: str) -> None:
        self.stdout.write(f"{time.monotonic() - began:5.1f} s  {text}")
        self.stdout.flush()


def _report(state_dir: Path) -> Report:
    report = Report.read(state_dir)
    if report is None:
        raise CommandError(f"The runtime cannot write to {state_dir}: its log says whether it has reloaded.")
    return report

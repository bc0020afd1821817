"""`manage.py refresh`: load a dataset again from its source."""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import CommandParser

from runtimeclient.client import RuntimeClient
from runtimeclient.command import ClientCommand
from runtimeclient.output import Output
from runtimeclient.resources import RefreshRun
from runtimeclient.screen import visible


class Command(ClientCommand):
    """Ask for a refresh of a dataset, and wait for it if told so."""

    help = (
        "Ask a runtime to load a dataset again from its source. Without --wait the\n"
        "command ends as soon as the runtime has taken the request; with it, when that\n"
        "refresh is finished, with status 1 if it failed."
    )
    examples = (
        ("flights", "ask for a refresh"),
        ("flights --wait", "wait for it, and show how many rows it loaded and how long it took"),
        ('flights --refresh-sql "SELECT * FROM flights WHERE year = 2013"', "load only these rows this time"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add what is special to `refresh`."""
        parser.add_argument("dataset", metavar="DATASET", help="the name of the dataset")
        parser.add_argument("--wait", action="store_true", help="wait until the refresh is finished")
        parser.add_argument(
            "--refresh-sql", metavar="SQL", help="what to load this time, instead of what is configured"
        )
        super().add_arguments(parser)

    def run(self, client: RuntimeClient, output: Output, options: dict[str, Any]) -> None:
        """Ask, and wait if told so."""
        name = options["dataset"]
        request = client.request_refresh(name, options["refresh_sql"])
        output.write(f"{visible(request.message)}\n")
        output.flush()
        if not options["wait"]:
            return
        run = self._wait(client, name, request.id)
        seconds = "" if run.duration_ms is None else f" in {run.duration_ms / 1000:.3f} s"
        rows = f"{'an unknown number of' if run.rows is None else run.rows} row{'' if run.rows == 1 else 's'}"
        output.write(f"Nothing new: {rows} as before.\n" if run.unchanged else f"Loaded {rows}{seconds}.\n")
        output.flush()

    def _wait(self, client: RuntimeClient, name: str, refresh_id: str) -> RefreshRun:
        """Wait for a run, and show on a terminal how far it is."""
        if not self.stderr.isatty():
            return client.wait_for_refresh(name, refresh_id)
        start = time.monotonic()

        def show(run: RefreshRun) -> None:
            size = "" if run.bytes is None else f", {run.bytes / 1e6:.1f} MB"
            how_far = "" if run.phase is None else f": {run.phase}{size}"
            text = f"{run.status} for {time.monotonic() - start:.0f} s{how_far}"
            self.stderr.write(f"\r{visible(text)}\x1b[K", ending="")
            self.stderr.flush()

        try:
            return client.wait_for_refresh(name, refresh_id, show)
        finally:
            self.stderr.write("\r\x1b[K", ending="")

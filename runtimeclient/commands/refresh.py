"""`refresh`: refresh datasets from their sources."""

from __future__ import annotations

import argparse

from runtimeclient.client import RuntimeClient
from runtimeclient.commands.base import ClientCommand, Invocation
from runtimeclient.errors import ClientError, RefreshFailedError, RequestRefusedError, UsageError
from runtimeclient.http.resources import RefreshRun, RequestedRefresh
from runtimeclient.output.humanize import duration, plural, size
from runtimeclient.output.terminal_text import visible


class RefreshCommand(ClientCommand):
    """Request a refresh of datasets, and wait for it with `--wait`."""

    name = "refresh"
    summary = "refresh datasets"
    description = (
        "Ask a runtime to refresh datasets from their sources. Without --wait, the\n"
        "command ends as soon as the runtime has accepted the requests; with it, when the\n"
        "refreshes are finished, with exit status 1 if any failed."
    )
    examples = (
        ("flights", "request a refresh"),
        ("flights --wait", "wait for it, and show how many rows it loaded and how long it took"),
        ("--all --wait", "refresh all accelerated datasets"),
        ('flights --sql "SELECT * FROM flights WHERE year = 2013"', "load only these rows this time"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of `refresh`."""
        parser.add_argument("datasets", metavar="DATASET", nargs="*", help="the name of a dataset")
        parser.add_argument("--all", action="store_true", help="refresh all accelerated datasets")
        parser.add_argument("--wait", action="store_true", help="wait until the refresh is finished")
        parser.add_argument(
            "--sql",
            "--refresh-sql",
            dest="refresh_sql",
            metavar="SQL",
            help="the query to load this time, instead of the configured one",
        )
        parser.add_argument(
            "--refresh-mode",
            choices=("full", "append"),
            help="replace all rows or append newer ones, whatever is configured",
        )
        parser.add_argument(
            "--refresh-jitter-max",
            metavar="TIME",
            help="start after a random delay of up to this time, such as 30s",
        )

    def run(self, invocation: Invocation) -> None:
        """Request all refreshes, then wait for each with `--wait`."""
        options = invocation.options
        if bool(options.datasets) == options.all:
            raise UsageError("Name the datasets to refresh, or give --all.")
        with invocation.connect() as client:
            names = _accelerated(client) if options.all else list(dict.fromkeys(options.datasets))
            refreshing = _Refreshing(client, invocation, is_single=len(names) == 1 and not options.all)
            runs = [(name, refreshing.request(name)) for name in names]
            if options.wait:
                for name, request in runs:
                    if request is not None:
                        refreshing.wait(name, request)
        if refreshing.failures:
            raise RefreshFailedError(f"{refreshing.failures} of {len(names)} refreshes failed.")


class _Refreshing:
    """The refreshes of one invocation: a failure is raised if there is only one refresh, and counted otherwise."""

    def __init__(self, client: RuntimeClient, invocation: Invocation, *, is_single: bool) -> None:
        self.failures = 0
        self._client = client
        self._invocation = invocation
        self._is_single = is_single

    def request(self, name: str) -> RequestedRefresh | None:
        """Request the refresh of a dataset; None if the runtime rejects it."""
        options = self._invocation.options
        try:
            request = self._client.request_refresh(
                name,
                options.refresh_sql,
                refresh_mode=options.refresh_mode,
                refresh_jitter_max=options.refresh_jitter_max,
            )
        except RequestRefusedError as exc:
            self._fail(exc)
            return None
        if not self._invocation.console.is_quiet:
            self._invocation.console.write_line(visible(request.message))
        return request

    def wait(self, name: str, request: RequestedRefresh) -> None:
        """Wait until a refresh is finished, and show its result."""
        prefix = "" if self._is_single else f"{visible(name)}: "
        last: RefreshRun | None = None

        def on_poll(run: RefreshRun) -> None:
            nonlocal last
            last = run

        def progress(elapsed_s: float) -> str:
            status = request.status if last is None else last.status
            return f"{visible(name)}: {visible(status)} for {duration(elapsed_s)}{_phase(last)}"

        try:
            with self._invocation.console.progress(progress):
                run = self._client.wait_for_refresh(name, request.id, on_poll)
        except RefreshFailedError as exc:
            self._fail(exc)
            return
        took = "" if run.duration_ms is None else f" in {duration(run.duration_ms / 1000)}"
        rows = "an unknown number of rows" if run.rows is None else plural(run.rows, "row")
        result = f"Nothing new: {rows} as before." if run.unchanged else f"Loaded {rows}{took}."
        self._invocation.console.write_line(prefix + result)

    def _fail(self, exc: ClientError) -> None:
        if self._is_single:
            raise exc
        self.failures += 1
        self._invocation.console.error(exc)


def _phase(run: RefreshRun | None) -> str:
    """Describe the phase of a run and the size of its snapshot so far, if the runtime reports them."""
    if run is None or run.phase is None:
        return ""
    return f": {visible(run.phase)}" + ("" if run.bytes is None else f", {size(run.bytes)}")


def _accelerated(client: RuntimeClient) -> list[str]:
    names = [dataset.name for dataset in client.datasets() if dataset.acceleration_enabled]
    if not names:
        raise UsageError("No dataset of this runtime is accelerated: there is nothing to refresh.")
    return names


COMMAND = RefreshCommand()

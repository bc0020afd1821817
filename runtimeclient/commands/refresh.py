"""`refresh`: load datasets again from their sources."""

from __future__ import annotations

import argparse

from runtimeclient.client import RuntimeClient
from runtimeclient.command import ClientCommand, Invocation
from runtimeclient.errors import ClientError, RefreshFailedError, RequestRefusedError, UsageError
from runtimeclient.output import Output
from runtimeclient.quantities import duration, plural, size
from runtimeclient.resources import RefreshRun, RequestedRefresh
from runtimeclient.screen import visible


class RefreshCommand(ClientCommand):
    """Ask for a refresh of datasets, and wait for it if told so."""

    name = "refresh"
    summary = "have datasets loaded again"
    description = (
        "Ask a runtime to load datasets again from their sources. Without --wait the\n"
        "command ends as soon as the runtime has taken the requests; with it, when these\n"
        "refreshes are finished, with status 1 if any failed."
    )
    examples = (
        ("flights", "ask for a refresh"),
        ("flights --wait", "wait for it, and show how many rows it loaded and how long it took"),
        ("--all --wait", "load all accelerated datasets again"),
        ('flights --sql "SELECT * FROM flights WHERE year = 2013"', "load only these rows this time"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what is special to `refresh`."""
        parser.add_argument("datasets", metavar="DATASET", nargs="*", help="the name of a dataset")
        parser.add_argument("--all", action="store_true", help="all datasets that are accelerated")
        parser.add_argument("--wait", action="store_true", help="wait until the refresh is finished")
        parser.add_argument(
            "--sql",
            "--refresh-sql",
            dest="refresh_sql",
            metavar="SQL",
            help="what to load this time, instead of what is configured",
        )
        parser.add_argument(
            "--refresh-mode",
            choices=("full", "append"),
            help="replace all rows or add the newer ones, whatever is configured",
        )
        parser.add_argument(
            "--refresh-jitter-max",
            metavar="TIME",
            help="begin up to this much later, by chance, such as 30s",
        )

    def run(self, invocation: Invocation) -> None:
        """Ask for all, then wait for each if told so."""
        options = invocation.options
        if bool(options.datasets) == options.all:
            raise UsageError("Name the datasets to refresh, or say --all.")
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
    """Refreshes of one invocation: the first failure ends it when there is just one, and is counted when not."""

    def __init__(self, client: RuntimeClient, invocation: Invocation, *, is_single: bool) -> None:
        self.failures = 0
        self._client = client
        self._invocation = invocation
        self._output: Output = invocation.console.output()
        self._is_single = is_single

    def request(self, name: str) -> RequestedRefresh | None:
        """Ask for the refresh of a dataset; None when the runtime does not take it."""
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
            self._show(visible(request.message))
        return request

    def wait(self, name: str, request: RequestedRefresh) -> None:
        """Wait for the end of a refresh, and tell it."""
        prefix = "" if self._is_single else f"{visible(name)}: "
        seen: RefreshRun | None = None

        def look(run: RefreshRun) -> None:
            nonlocal seen
            seen = run

        def told(elapsed_s: float) -> str:
            status = request.status if seen is None else seen.status
            return f"{visible(name)}: {visible(status)} for {duration(elapsed_s)}{_how_far(seen)}"

        try:
            with self._invocation.console.progress(told):
                run = self._client.wait_for_refresh(name, request.id, look)
        except RefreshFailedError as exc:
            self._fail(exc)
            return
        took = "" if run.duration_ms is None else f" in {duration(run.duration_ms / 1000)}"
        rows = "an unknown number of rows" if run.rows is None else plural(run.rows, "row")
        self._show(f"{prefix}Nothing new: {rows} as before." if run.unchanged else f"{prefix}Loaded {rows}{took}.")

    def _fail(self, exc: ClientError) -> None:
        if self._is_single:
            raise exc
        self.failures += 1
        self._invocation.console.error(exc)

    def _show(self, line: str) -> None:
        self._output.write(line + "\n")
        self._output.flush()


def _how_far(run: RefreshRun | None) -> str:
    """Tell what a run does and how large its snapshot is by now, where the runtime says so."""
    if run is None or run.phase is None:
        return ""
    return f": {visible(run.phase)}" + ("" if run.bytes is None else f", {size(run.bytes)}")


def _accelerated(client: RuntimeClient) -> list[str]:
    names = [dataset.name for dataset in client.datasets() if dataset.acceleration_enabled]
    if not names:
        raise UsageError("No dataset of this runtime is accelerated: there is nothing to refresh.")
    return names


COMMAND = RefreshCommand()

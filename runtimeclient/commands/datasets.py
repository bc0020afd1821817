"""`datasets` and `refresh`: list the datasets of a runtime, and refresh them from their sources."""

import argparse
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from runtimeclient.commands.base import Command, Invocation, add_list_format
from runtimeclient.errors import ClientError, RefreshFailedError, RequestRefusedError, UsageError
from runtimeclient.http.resources import DatasetStatus, RefreshRun, RequestedRefresh
from runtimeclient.output.formats import write_list
from runtimeclient.output.terminal import Console
from runtimeclient.output.text import dataset_age, duration, plural, size, visible

if TYPE_CHECKING:
    from runtimeclient.client import RuntimeClient

_DATASET_COLUMNS = tuple(field.name.rstrip("_") for field in fields(DatasetStatus))
_DATASET_TABLE_COLUMNS = ("name", "status", "rows", "size", "age", "error", "from")


def _datasets(invocation: Invocation) -> None:
    with invocation.connect() as client:
        datasets = client.datasets()
    items = [dict(zip(_DATASET_COLUMNS, astuple(dataset), strict=True)) for dataset in datasets]
    style = invocation.console.style(invocation.options.format)
    is_table, now = style.format == "table", datetime.now(UTC)
    if is_table:
        for item, dataset in zip(items, datasets, strict=True):
            item |= {"size": dataset.bytes and size(dataset.bytes), "age": dataset_age(dataset, now)}
    write_list(_DATASET_TABLE_COLUMNS if is_table else _DATASET_COLUMNS, items, style, invocation.console.stdout)


_DATASETS = Command(
    name="datasets",
    description="List the datasets of a runtime with their status, rows, size and age.",
    examples=(("", "the datasets as a table"), ("--format csv > datasets.csv", "all fields, as CSV")),
    add_arguments=add_list_format,
    call=_datasets,
)


def _add_refresh_arguments(parser: argparse.ArgumentParser) -> None:
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
        help="replace all rows or append newer ones, instead of the configured mode",
    )
    parser.add_argument(
        "--refresh-jitter-max",
        metavar="TIME",
        help="start after a random delay of up to this time, such as 30s",
    )


def _refresh(invocation: Invocation) -> None:
    options, console = invocation.options, invocation.console
    if bool(options.datasets) == options.all:
        raise UsageError("Name the datasets to refresh, or use --all.")
    failures: list[ClientError] = []

    @contextmanager
    def counting(kind: type[ClientError]) -> Iterator[None]:
        """Raise an error of this *kind* if there is only one refresh. Otherwise show and count it."""
        try:
            yield
        except kind as exc:
            if is_single:
                raise
            failures.append(exc)
            console.error(exc)

    with invocation.connect() as client:
        names = _accelerated(client) if options.all else list(dict.fromkeys(options.datasets))
        is_single = len(names) == 1 and not options.all
        requests: dict[str, RequestedRefresh] = {}
        fields = {name: getattr(options, name) for name in ("refresh_sql", "refresh_mode", "refresh_jitter_max")}
        for name in names:
            with counting(RequestRefusedError):
                requests[name] = client.request_refresh(name, **fields)
                if not console.is_quiet:
                    console.write_line(visible(requests[name].message))
        for name, request in requests.items() if options.wait else ():
            with counting(RefreshFailedError):
                result = _wait(client, console, name, request)
                console.write_line(result if is_single else f"{visible(name)}: {result}")
    if failures:
        raise RefreshFailedError(f"{len(failures)} of {len(names)} refreshes failed.")


def _wait(client: "RuntimeClient", console: Console, name: str, request: RequestedRefresh) -> str:
    """Wait until a refresh is finished, and describe its result."""
    last: deque[RefreshRun] = deque([request], maxlen=1)
    with console.progress(lambda elapsed_s: f"{visible(name)}: {_state(last[0], elapsed_s)}"):
        run = client.wait_for_refresh(name, request.id, last.append)
    took = "" if run.duration_ms is None else f" in {duration(run.duration_ms / 1000)}"
    rows = "an unknown number of rows" if run.rows is None else plural(run.rows, "row")
    return f"Nothing new: {rows} as before." if run.unchanged else f"Loaded {rows}{took}."


def _state(run: RefreshRun, elapsed_s: float) -> str:
    """Describe a run with its phase and the size of its snapshot so far, if the runtime reports them."""
    phase = "" if run.phase is None else f": {visible(run.phase)}"
    written = "" if not phase or run.bytes is None else f", {size(run.bytes)}"
    return f"{visible(run.status)} for {duration(elapsed_s)}{phase}{written}"


def _accelerated(client: "RuntimeClient") -> list[str]:
    names = [dataset.name for dataset in client.datasets() if dataset.acceleration_enabled]
    if not names:
        raise UsageError("No dataset of this runtime is accelerated: there is nothing to refresh.")
    return names


_REFRESH = Command(
    name="refresh",
    description=(
        "Ask a runtime to refresh datasets from their sources. Without --wait, the\n"
        "command ends as soon as the runtime has accepted the requests; with it, when the\n"
        "refreshes are finished, with exit status 1 if any failed."
    ),
    examples=(
        ("flights", "request a refresh"),
        ("flights --wait", "wait for it, and show how many rows it loaded and how long it took"),
        ("--all --wait", "refresh all accelerated datasets"),
        ('flights --sql "SELECT * FROM flights WHERE year = 2013"', "load only these rows this time"),
    ),
    add_arguments=_add_refresh_arguments,
    call=_refresh,
)

COMMANDS = {"datasets": _DATASETS, "refresh": _REFRESH}

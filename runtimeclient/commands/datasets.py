"""`datasets`: what a runtime serves, and how fresh it is."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from datetime import UTC, datetime

from runtimeclient.command import ClientCommand, Invocation, add_list_format
from runtimeclient.formats import write_list
from runtimeclient.quantities import age, elapsed, size
from runtimeclient.resources import DatasetStatus

_COLUMNS = (
    *("from", "name", "acceleration_enabled", "status", "rows", "refreshed_at", "snapshot", "error"),
    *("checked_at", "next_refresh_at", "age_s", "bytes"),
)
_TABLE_COLUMNS = ("name", "status", "rows", "size", "age", "error", "from")


class DatasetsCommand(ClientCommand):
    """List the datasets of a runtime."""

    name = "datasets"
    summary = "list the datasets: state, rows, age"
    description = "List the datasets of a runtime: how each is, how many rows and bytes it has, and\nhow old they are."
    examples = (
        ("", "the datasets as a table"),
        ("--format csv > datasets.csv", "all that is known of them, as CSV"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what is special to `datasets`."""
        add_list_format(parser)

    def run(self, invocation: Invocation) -> None:
        """Ask and show."""
        with invocation.connect() as client:
            datasets = client.datasets()
        items = [{name.rstrip("_"): value for name, value in asdict(dataset).items()} for dataset in datasets]
        style = invocation.console.style(invocation.options.format)
        columns: tuple[str, ...] = _COLUMNS
        if style.format == "table":
            columns = _TABLE_COLUMNS
            now = datetime.now(UTC)
            for item, dataset in zip(items, datasets, strict=True):
                item |= {"size": dataset.bytes and size(dataset.bytes), "age": _age(dataset, now)}
        write_list(columns, items, style, invocation.console.output())


def _age(dataset: DatasetStatus, now: datetime) -> str | None:
    """Tell how old the rows are: by the clock of the runtime where it says so."""
    if dataset.age_s is not None:
        return elapsed(dataset.age_s)
    return None if dataset.refreshed_at is None else age(dataset.refreshed_at, now)


COMMAND = DatasetsCommand()

"""`datasets`: what a runtime serves, and how fresh it is."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from datetime import UTC, datetime

from runtimeclient.command import ClientCommand, Invocation, add_list_format
from runtimeclient.formats import write_list
from runtimeclient.quantities import age

_COLUMNS = ("from", "name", "acceleration_enabled", "status", "rows", "refreshed_at", "snapshot", "error")
_TABLE_COLUMNS = ("name", "status", "rows", "age", "error", "from")


class DatasetsCommand(ClientCommand):
    """List the datasets of a runtime."""

    name = "datasets"
    summary = "list the datasets: state, rows, age"
    description = "List the datasets of a runtime: how each is, how many rows it has and how old\nthey are."
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
            for item in items:
                item["age"] = item["refreshed_at"] and age(item["refreshed_at"], now)
        write_list(columns, items, style, invocation.console.output())


COMMAND = DatasetsCommand()

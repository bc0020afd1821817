"""`manage.py datasets`: what a runtime serves, and how fresh it is."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandParser

from runtimeclient.client import RuntimeClient
from runtimeclient.command import ClientCommand, add_list_format
from runtimeclient.formats import write_list
from runtimeclient.output import Output

_COLUMNS = (
    *("from", "name", "acceleration_enabled", "status", "rows", "refreshed_at", "snapshot", "error"),
    *("checked_at", "next_refresh_at", "age_s", "bytes"),
)


class Command(ClientCommand):
    """List the datasets of a runtime."""

    help = (
        "List the datasets of a runtime: where each comes from, how it is, how many rows\n"
        "and bytes it has, how old they are, and when they are loaded next."
    )
    examples = (
        ("", "the datasets as a table"),
        ("--format csv > datasets.csv", "as CSV"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add what is special to `datasets`."""
        add_list_format(parser)
        super().add_arguments(parser)

    def run(self, client: RuntimeClient, output: Output, options: dict[str, Any]) -> None:
        """Ask and show."""
        items = [{name.rstrip("_"): value for name, value in asdict(dataset).items()} for dataset in client.datasets()]
        write_list(_COLUMNS, items, options["format"], output)

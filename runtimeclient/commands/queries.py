"""`queries`: list queued and running statements."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from datetime import UTC, datetime

from runtimeclient.commands.base import ClientCommand, Invocation, add_list_format
from runtimeclient.output.formats import write_list
from runtimeclient.output.humanize import age

# Length of a statement in the table; --format json shows all that the runtime reports.
_SHOWN_CHARACTERS = 80


class QueriesCommand(ClientCommand):
    """List the queued and running statements of this key."""

    name = "queries"
    summary = "list queued and running statements"
    description = (
        "List the queued and running statements that were sent with the same key, oldest\n"
        "first. If authentication is off, list those of all callers."
    )
    examples = (("", "the statements as a table"), ("--format json", "all fields, as JSON"))

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add `--format`."""
        add_list_format(parser)

    def run(self, invocation: Invocation) -> None:
        """Fetch and show the list."""
        with invocation.connect() as client:
            queries = client.active_queries()
        style = invocation.console.style(invocation.options.format)
        columns = ("id", "started", "state", "sql")
        items = [asdict(query) for query in queries]
        if style.format == "table":
            columns = ("id", "state", "for", "sql")
            now = datetime.now(UTC)
            items = [item | {"for": age(item["started"], now), "sql": _beginning(item["sql"])} for item in items]
        write_list(columns, items, style, invocation.console.output())


def _beginning(sql: str) -> str:
    text = " ".join(sql.split())
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


COMMAND = QueriesCommand()

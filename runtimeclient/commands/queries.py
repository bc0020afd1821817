"""`queries`: the statements that wait or run now."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from datetime import UTC, datetime

from runtimeclient.command import ClientCommand, Invocation, add_list_format
from runtimeclient.formats import write_list
from runtimeclient.quantities import age

# A statement is known by its beginning; --format json shows all that the runtime tells of it.
_SHOWN_CHARACTERS = 80


class QueriesCommand(ClientCommand):
    """List the statements of this key that wait or run now."""

    name = "queries"
    summary = "list the statements that run now"
    description = (
        "List the statements that came with the same key and wait or run now, oldest\n"
        "first; while authentication is off, those of everybody."
    )
    examples = (("", "the statements as a table"), ("--format json", "with all that the runtime tells of them"))

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what is special to `queries`."""
        add_list_format(parser)

    def run(self, invocation: Invocation) -> None:
        """Ask and show."""
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

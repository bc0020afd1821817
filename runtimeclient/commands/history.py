"""`history`: list the last statements."""

import argparse
from dataclasses import asdict, fields
from datetime import UTC, datetime

from runtimeclient.commands.base import Command, Invocation, add_list_format
from runtimeclient.http.resources import FinishedQuery
from runtimeclient.output.formats import write_list
from runtimeclient.output.humanize import age, beginning, duration, size

_DEFAULT_LIMIT = 20
_MAX_LIMIT = 1000

_COLUMNS = tuple(field.name for field in fields(FinishedQuery))
_TABLE_COLUMNS = ("id", "started", "verdict", "time", "queued", "rows", "size", "cache")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_list_format(parser)
    parser.add_argument(
        "--limit",
        metavar="N",
        type=limit,
        default=_DEFAULT_LIMIT,
        help=f"how many statements, from 1 to {_MAX_LIMIT}; {_DEFAULT_LIMIT} by default",
    )


def limit(text: str) -> int:
    """Parse a number of rows that a runtime gives."""
    value = int(text)
    if not 1 <= value <= _MAX_LIMIT:
        raise argparse.ArgumentTypeError(f"must be from 1 to {_MAX_LIMIT}")
    return value


def _call(invocation: Invocation) -> None:
    with invocation.connect() as client:
        queries = client.history(invocation.options.limit)
    items = [asdict(query) for query in queries]
    style = invocation.console.style(invocation.options.format)
    columns: tuple[str, ...] = _COLUMNS
    if style.format == "table":
        columns = (*_TABLE_COLUMNS, "sql" if any(query.sql for query in queries) else "statement")
        now = datetime.now(UTC)
        items = [item | _shown(query, now) for item, query in zip(items, queries, strict=True)]
    write_list(columns, items, style, invocation.console.stdout)
    if columns[-1] == "statement" and items and not invocation.console.is_quiet:
        invocation.console.message(
            "The runtime keeps digests of the statements. runtime.history: {sql: true} in its YAML keeps their SQL."
        )


def _shown(query: FinishedQuery, now: datetime) -> dict[str, str | None]:
    return {
        "started": f"{age(query.started, now)} ago",
        "time": duration(query.total_ms / 1000),
        "queued": duration(query.queued_ms / 1000),
        "size": size(query.bytes),
        "sql": query.sql and beginning(query.sql),
    }


COMMAND = Command(
    name="history",
    summary="list the last statements that have ended",
    description=(
        "List the last statements that were sent with the same key and have ended, newest\n"
        "first. If authentication is off, list those that were sent without a key. The\n"
        "text is shown only if the YAML has runtime.history: {sql: true}; else its digest."
    ),
    examples=(
        ("", "the last 20 statements as a table"),
        ("--limit 1000 --format json", "the last 1000 with all fields, as JSON"),
    ),
    add_arguments=_add_arguments,
    call=_call,
)

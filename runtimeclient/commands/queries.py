"""`queries`, `cancel` and `history`: the running and the finished statements of a key."""

import argparse
from dataclasses import asdict, fields
from datetime import UTC, datetime

from runtimeclient.commands.base import Command, Invocation, add_list_format, whole_number
from runtimeclient.http.resources import FinishedQuery
from runtimeclient.output.formats import write_list
from runtimeclient.output.text import age, beginning, duration, one_line, size


def _queries(invocation: Invocation) -> None:
    with invocation.connect() as client:
        items = [asdict(query) for query in client.active_queries()]
    style = invocation.console.style(invocation.options.format)
    columns = ("id", "started", "state", "sql")
    if style.format == "table":
        columns = ("id", "state", "for", "sql")
        now = datetime.now(UTC)
        items = [item | {"for": age(item["started"], now), "sql": beginning(item["sql"])} for item in items]
    write_list(columns, items, style, invocation.console.stdout)


_QUERIES = Command(
    name="queries",
    description=(
        "List the queued and running statements that were sent with the same key, oldest\n"
        "first. If authentication is off, list those of all callers."
    ),
    examples=(("", "the statements as a table"), ("--format json", "all fields, as JSON")),
    add_arguments=add_list_format,
    call=_queries,
)


def _cancel(invocation: Invocation) -> None:
    with invocation.connect() as client:
        message = client.cancel_query(invocation.options.query_id)
    invocation.console.write_line(one_line(message))


_CANCEL = Command(
    name="cancel",
    description=(
        "Cancel a queued or running statement that was sent with the same key. It\n"
        "disappears from `queries` within two seconds."
    ),
    examples=(("9f2c41d07be84a53a1c6f0e2d9a48370", "cancel the statement with this id"),),
    add_arguments=lambda parser: parser.add_argument(
        "query_id", metavar="ID", help="the id of the statement, as shown by `queries`"
    ),
    call=_cancel,
)


_DEFAULT_LIMIT = 20
_MAX_LIMIT = 1000

_HISTORY_COLUMNS = tuple(field.name for field in fields(FinishedQuery))
_HISTORY_TABLE_COLUMNS = ("id", "started", "outcome", "time", "queued", "rows", "size", "cache")


def _add_history_arguments(parser: argparse.ArgumentParser) -> None:
    add_list_format(parser)
    parser.add_argument(
        "--limit",
        metavar="N",
        type=whole_number(1, _MAX_LIMIT),
        default=_DEFAULT_LIMIT,
        help=f"how many statements, from 1 to {_MAX_LIMIT}; {_DEFAULT_LIMIT} by default",
    )


def _history(invocation: Invocation) -> None:
    with invocation.connect() as client:
        queries = client.history(invocation.options.limit)
    items = [asdict(query) for query in queries]
    style = invocation.console.style(invocation.options.format)
    columns: tuple[str, ...] = _HISTORY_COLUMNS
    if style.format == "table":
        columns = (*_HISTORY_TABLE_COLUMNS, "sql" if any(query.sql for query in queries) else "statement")
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


_HISTORY = Command(
    name="history",
    description=(
        "List the last statements that were sent with the same key and have ended, newest\n"
        "first. If authentication is off, list those that were sent without a key. The\n"
        "text is shown only if the configuration has runtime.history: {sql: true}; else its digest."
    ),
    examples=(
        ("", "the last 20 statements as a table"),
        ("--limit 1000 --format json", "the last 1000 with all fields, as JSON"),
    ),
    add_arguments=_add_history_arguments,
    call=_history,
)

COMMANDS = {"queries": _QUERIES, "cancel": _CANCEL, "history": _HISTORY}

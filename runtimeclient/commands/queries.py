"""`queries`: list queued and running statements."""

from dataclasses import asdict
from datetime import UTC, datetime

from runtimeclient.commands.base import Command, Invocation, add_list_format
from runtimeclient.output.formats import write_list
from runtimeclient.output.humanize import age, beginning


def _call(invocation: Invocation) -> None:
    with invocation.connect() as client:
        items = [asdict(query) for query in client.active_queries()]
    style = invocation.console.style(invocation.options.format)
    columns = ("id", "started", "state", "sql")
    if style.format == "table":
        columns = ("id", "state", "for", "sql")
        now = datetime.now(UTC)
        items = [item | {"for": age(item["started"], now), "sql": beginning(item["sql"])} for item in items]
    write_list(columns, items, style, invocation.console.stdout)


COMMAND = Command(
    name="queries",
    summary="list queued and running statements",
    description=(
        "List the queued and running statements that were sent with the same key, oldest\n"
        "first. If authentication is off, list those of all callers."
    ),
    examples=(("", "the statements as a table"), ("--format json", "all fields, as JSON")),
    add_arguments=add_list_format,
    call=_call,
)

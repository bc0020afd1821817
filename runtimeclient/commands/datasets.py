"""`datasets`: list the datasets of a runtime and their freshness."""

from dataclasses import astuple, fields
from datetime import UTC, datetime

from runtimeclient.commands.base import Command, Invocation, add_list_format
from runtimeclient.http.resources import DatasetStatus
from runtimeclient.output.formats import write_list
from runtimeclient.output.humanize import age, elapsed, size

_COLUMNS = tuple(field.name.rstrip("_") for field in fields(DatasetStatus))
_TABLE_COLUMNS = ("name", "status", "rows", "size", "age", "error", "from")


def _call(invocation: Invocation) -> None:
    with invocation.connect() as client:
        datasets = client.datasets()
    items = [dict(zip(_COLUMNS, astuple(dataset), strict=True)) for dataset in datasets]
    style = invocation.console.style(invocation.options.format)
    is_table, now = style.format == "table", datetime.now(UTC)
    if is_table:
        for item, dataset in zip(items, datasets, strict=True):
            item |= {"size": dataset.bytes and size(dataset.bytes), "age": _age(dataset, now)}
    write_list(_TABLE_COLUMNS if is_table else _COLUMNS, items, style, invocation.console.stdout)


def _age(dataset: DatasetStatus, now: datetime) -> str | None:
    """Return the age of the rows, by the runtime's clock if it reports one."""
    if dataset.age_s is not None:
        return elapsed(dataset.age_s)
    return None if dataset.refreshed_at is None else age(dataset.refreshed_at, now)


COMMAND = Command(
    name="datasets",
    summary="list the datasets: status, rows, age",
    description="List the datasets of a runtime with their status, rows, size and age.",
    examples=(("", "the datasets as a table"), ("--format csv > datasets.csv", "all fields, as CSV")),
    add_arguments=add_list_format,
    call=_call,
)

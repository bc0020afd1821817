"""Draws a snapshot as lines of text."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from runtimeclient.dashboard.snapshot import Snapshot
from runtimeclient.http.resources import ActiveQuery, ComponentStatus, DatasetStatus, StatementStatistics
from runtimeclient.output.text import age, dataset_age, duration, one_line, size, visible

_COLORS = {"Ready": "green", "Refreshing": "cyan", "Initializing": "yellow", "Error": "bold red", "Disabled": "dim"}
HELP = "↑ ↓ choose · c cancel · q leave"

#: The rows that each table keeps on a small screen.
_LEAST_ROWS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The content of a screen: the runtime `url`, the `chosen` statement (an id), and a line for the user."""

    url: str
    snapshot: Snapshot | None
    chosen: str = ""
    message: str = HELP


def render(view: View, columns: int, lines: int | None, *, has_color: bool) -> str:
    """Return the screen as text with *columns* and up to *lines* (None shows everything)."""
    console = Console(
        file=io.StringIO(),
        width=columns,
        force_terminal=has_color,
        color_system="standard" if has_color else None,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )

    def drawn(part: RenderableType) -> list[str]:
        with console.capture() as capture:
            console.print(part, no_wrap=True, overflow="crop", crop=True)
        return capture.get().splitlines()

    if lines is None:
        return "\n".join(drawn(layout(view, None)))
    message = Text(one_line(view.message), style="reverse", overflow="ellipsis")
    return "\n".join([*drawn(layout(view, lines - 1))[: lines - 1], *drawn(message)])


def layout(view: View, lines: int | None) -> RenderableType:
    """Return the screen content within *lines*, without the line for the user."""
    snapshot = view.snapshot
    if snapshot is None:
        return Group(_head(view), Text(f"Waiting for {view.url}", style="yellow"))
    parts: list[RenderableType] = [_head(view), _components(snapshot.components)]
    parts += [Text(one_line(problem), style="bold red", overflow="ellipsis") for problem in snapshot.problems]
    tables: list[tuple[Sequence[object], Callable[[int], RenderableType]]] = [
        (snapshot.queries, lambda rows: _queries(snapshot, view.chosen, rows)),
        (snapshot.statements, lambda rows: _statements(snapshot.statements, rows)),
        (snapshot.datasets, lambda rows: _datasets(snapshot.datasets, snapshot.taken, rows)),
    ]
    # Each table has a blank line, a title, a header, and a line that counts the omitted rows.
    room = None if lines is None else lines - len(parts) - 4 * len(tables)
    for rows, (_, draw) in zip(_shares([len(all_rows) for all_rows, _ in tables], room), tables, strict=True):
        parts += [Text(""), draw(rows)]
    return Group(*parts)


def _shares(wanted: Sequence[int], room: int | None) -> list[int]:
    """Divide *room* lines between tables with *wanted* rows. Tables share the lines that others leave unused."""
    if room is None:
        return list(wanted)
    shares = [min(rows, _LEAST_ROWS) for rows in wanted]
    left = room - sum(shares)
    while left > 0 and shares != list(wanted):
        for index, rows in enumerate(wanted):
            if shares[index] < rows and left > 0:
                shares[index] += 1
                left -= 1
    return shares


def _head(view: View) -> Text:
    head = Text("querykeep top", style="bold", overflow="ellipsis")
    head.append(f"  {visible(view.url)}", style="not bold")
    snapshot = view.snapshot
    if snapshot is not None:
        head.append(f"  key {visible(snapshot.key or '-')}", style="not bold")
        ready = {True: ("ready", "green"), False: ("not ready", "bold red"), None: ("no connection", "bold red")}
        text, style = ready[snapshot.is_ready]
        head.append(f"  {text}", style=style)
        head.append(f"  {snapshot.taken:%H:%M:%S} UTC", style="not bold dim")
    return head


def _components(components: Sequence[ComponentStatus]) -> Text:
    line = Text(overflow="ellipsis")
    for component in components:
        line.append(f"{visible(component.name)} ")
        line.append(visible(component.status), style=_COLORS.get(component.status, ""))
        line.append("   ")
        if component.workers_alive is not None:
            line.append(f"workers {component.workers_busy or 0} busy of {component.workers_alive}")
            line.append(f", {component.workers_killed or 0} killed   ")
            line.append(f"statements {component.statements_running or 0} running")
            line.append(f", {component.statements_queued or 0} queued   ")
        if component.waiting_for:
            line.append(f"waits for {visible(', '.join(component.waiting_for))}   ", style="yellow")
    return line


def _table(title: str, *columns: str, right: str = "") -> Table:
    heading = Text(title, no_wrap=True, overflow="ellipsis")
    table = Table(title=heading, title_justify="left", title_style="bold", box=None, pad_edge=False, expand=True)
    for name in columns:
        is_last = name == columns[-1]
        table.add_column(
            name,
            justify="right" if name in right.split() else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if is_last else None,
            header_style="dim",
        )
    return table


def _more(table: Table, total: int, shown: int) -> RenderableType:
    if total <= shown:
        return table
    return Group(table, Text(f"... and {total - shown:,} more", style="dim"))


def _queries(snapshot: Snapshot, chosen: str, rows: int) -> RenderableType:
    queries = snapshot.queries
    table = _table(f"Statements of this key that run or wait: {len(queries)}", "state", "for", "id", "sql", right="for")
    first = max(0, next((index for index, query in enumerate(queries) if query.id == chosen), 0) - rows + 1)
    for query in queries[first : first + rows]:
        table.add_row(*_query_cells(query, snapshot.taken), style="reverse" if query.id == chosen else "")
    return _more(table, len(queries), rows)


def _query_cells(query: ActiveQuery, now: datetime) -> list[Text]:
    return [
        Text(visible(query.state), style="green" if query.state == "running" else "yellow"),
        Text(age(query.started, now)),
        Text(visible(query.id)),
        Text(visible(" ".join(query.sql.split()))),
    ]


def _statements(statements: Sequence[StatementStatistics], rows: int) -> RenderableType:
    names = ("calls", "errors", "hits", "rows", "mean", "p95", "queued", "run")
    title = "Statements that took longest in all"
    if statements and not any(row.sql for row in statements):
        title += " (digests; history: {sql: true} keeps SQL)"
    table = _table(title, *names, "statement", right=" ".join(names))
    for row in statements[:rows]:
        table.add_row(
            f"{row.calls:,}",
            Text(f"{row.errors:,}", style="red" if row.errors else ""),
            f"{row.cache_hits:,}",
            f"{row.rows:,}",
            duration(row.mean_total_ms / 1000),
            duration(row.p95_total_ms / 1000),
            _time(row.mean_queued_ms),
            _time(row.mean_run_ms),
            Text(visible(" ".join(row.sql.split()) if row.sql else row.statement or "refused")),
        )
    return _more(table, len(statements), rows)


def _datasets(datasets: Sequence[DatasetStatus], now: datetime, rows: int) -> RenderableType:
    table = _table("Datasets", "name", "status", "rows", "size", "age", "error", right="rows size age")
    # Datasets with a problem come first.
    for row in sorted(datasets, key=lambda row: row.error is None)[:rows]:
        table.add_row(
            Text(visible(row.name)),
            Text(visible(row.status), style=_COLORS.get(row.status, "")),
            "" if row.rows is None else f"{row.rows:,}",
            "" if row.bytes is None else size(row.bytes),
            dataset_age(row, now) or "",
            Text(one_line(row.error or ""), style="red"),
        )
    return _more(table, len(datasets), rows)


def _time(time_ms: float | None) -> str:
    return "" if time_ms is None else duration(time_ms / 1000)

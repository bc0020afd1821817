"""How answers are shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from runtimeclient.charts import ChartRequest

Expanded: TypeAlias = Literal["auto", "on", "off"]

#: Rows of a table on a terminal, unless the user says otherwise.
TERMINAL_ROWS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What the user types to see all rows and all columns, and to name a file: options, or commands of the prompt."""

    all_rows: str
    all_columns: str
    file: str


OPTIONS = Hints(all_rows="--max-rows 0", all_columns="--expanded on", file="--output")
DOT_COMMANDS = Hints(all_rows=".maxrows 0", all_columns=".expanded on", file=".output")


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """
    How answers are shown. The prompt changes it with `dataclasses.replace`.

    Attributes:
        format: One of `formats.FORMATS`.
        expanded: Whether a table shows each row as a record of one line a column. `auto` does where a table is wider
            than `columns`, if `elides` even without the columns in its middle.
        max_rows: A table stops after that many rows and says so; None shows all.
        elides: A table that is too wide may leave columns out in the middle, and says so.
        hints: What the user types to see more.
        is_quiet: No number of rows below a table.
        is_colored: Tables may hold colours.
        columns: Width of the terminal that it is shown on; None when that is no terminal.
        chart: Draws answers, whatever the format.
    """

    format: str = "table"
    expanded: Expanded = "auto"
    max_rows: int | None = None
    elides: bool = False
    hints: Hints = OPTIONS
    is_quiet: bool = False
    is_colored: bool = False
    columns: int | None = None
    chart: ChartRequest | None = None

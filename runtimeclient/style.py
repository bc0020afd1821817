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
class Style:
    """
    How answers are shown. The prompt changes it with `dataclasses.replace`.

    Attributes:
        format: One of `formats.FORMATS`.
        expanded: Whether a table shows each row as a record of one line a column; `auto` does where the table is
            wider than `columns`.
        max_rows: A table stops after that many rows and says so; None shows all.
        is_quiet: No number of rows below a table.
        is_colored: Tables may hold colours.
        columns: Width of the terminal that it is shown on; None when that is no terminal.
        chart: Draws answers, whatever the format.
    """

    format: str = "table"
    expanded: Expanded = "auto"
    max_rows: int | None = None
    is_quiet: bool = False
    is_colored: bool = False
    columns: int | None = None
    chart: ChartRequest | None = None

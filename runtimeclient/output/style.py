"""How results are shown."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Expanded: TypeAlias = Literal["auto", "on", "off"]
Kind: TypeAlias = Literal["bar", "line", "scatter"]
Picture: TypeAlias = Literal["svg", "png", "html"]

#: Default maximum number of table rows on a terminal.
TERMINAL_ROWS = 1000
KINDS: tuple[Kind, ...] = ("bar", "line", "scatter")
#: Chart file formats, by file name extension.
PICTURES: Mapping[str, Picture] = {".svg": "svg", ".png": "png", ".html": "html"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartRequest:
    """
    The chart that the user asked for.

    Attributes:
        kind: None lets the columns decide.
        x: A column; None takes the first that fits.
        y: Columns; none takes all other numeric columns, for a scatter chart the first of them.
        picture: The file format; None draws text.
    """

    kind: Kind | None = None
    x: str | None = None
    y: tuple[str, ...] = ()
    picture: Picture | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What to type to see all rows or all columns, or to name a file: options, or commands of the prompt."""

    all_rows: str
    all_columns: str
    file: str


OPTIONS = Hints(all_rows="--max-rows 0", all_columns="--expanded on", file="--output")
DOT_COMMANDS = Hints(all_rows=".maxrows 0", all_columns=".expanded on", file=".output")


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """
    How results are shown. The prompt changes it with `dataclasses.replace`.

    Attributes:
        format: One of `formats.FORMATS`.
        expanded: Whether a table shows each row as a record, one line per column. `auto` does so if the table is wider
            than `columns`; with `elides`, only if leaving out middle columns is not enough.
        max_rows: Maximum number of table rows; None shows all.
        elides: A table that is too wide may leave out columns in the middle.
        hints: What the user types to see more.
        is_quiet: No row count below a table.
        is_colored: Tables may be coloured.
        columns: Width of the terminal; None if the output is not a terminal.
        chart: Draw results as this chart, whatever the format.
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

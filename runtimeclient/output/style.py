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
    """The chart that the user asked for."""

    kind: Kind | None = None  # None lets the columns decide
    x: str | None = None  # a column; None takes the first that fits
    y: tuple[str, ...] = ()  # columns; none takes all other numeric columns, for a scatter chart the first of them
    picture: Picture | None = None  # the file format; None draws text


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

    An expanded table shows each row as a record, one line per column. `auto` does so if the table is wider than
    `columns`; with `elides`, only if leaving out middle columns is not enough.
    """

    format: str = "table"  # one of `formats.FORMATS`
    expanded: Expanded = "auto"
    max_rows: int | None = None  # of a table; None shows all
    elides: bool = False  # a table that is too wide may leave out columns in the middle
    hints: Hints = OPTIONS
    is_quiet: bool = False  # no row count below a table
    is_colored: bool = False
    columns: int | None = None  # width of the terminal; None if the output is not a terminal
    chart: ChartRequest | None = None  # draw results as this chart, whatever the format

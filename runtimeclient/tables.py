"""Rows as text for people: an aligned table, records of one line a column, or Markdown, all in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TypeVar

from runtimeclient.errors import OutputError
from runtimeclient.json_stream import JsonValue, Number, as_json
from runtimeclient.screen import visible, width
from runtimeclient.style import Style

NULL = "NULL"
#: Stands for columns that are left out.
ELLIPSIS = "…"

T = TypeVar("T")

# The columns are as wide as these many first rows need; a longer cell further down stays whole and shifts its own line.
SAMPLE_ROWS = 1000
_SAMPLE_CHARACTERS = 1 << 20
# One very long cell would otherwise pad every line of the sample to its length.
_WIDEST_PADDING = 120

_BOLD, _DIM, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
# CommonMark 0.31, 6: what would begin something there; an underscore inside a word does not.
_MARKDOWN_MARK = re.compile(r"[\\`*\[\]<>|~&]|(?<!\w)_|_(?!\w)")


def cell(value: JsonValue) -> str:
    """Show one value: NULL bare, a text that reads NULL in quotes, lists and objects as JSON."""
    if value is None:
        return NULL
    if isinstance(value, str):
        return visible(value) if value != NULL else f'"{NULL}"'
    try:
        return visible(as_json(value))
    except RecursionError as exc:
        raise OutputError("A value is nested too deep to show in a table: use --format json.") from exc


class Sample:
    """
    The first rows, from which the layout follows, and a way to read on.

    Attributes:
        widths: Of the columns, in columns of the terminal.
        is_number: Of each column: it holds numbers and nothing else.
        count: Rows given out by `cells` so far.
        has_more: The rows went on beyond `max_rows`.
        kept: How many columns are shown at the left and at the right of those that are left out; None shows all.
    """

    def __init__(self, columns: Sequence[str], rows: Iterator[Sequence[JsonValue]], max_rows: int | None) -> None:
        self.names = [visible(column) for column in columns]
        self._columns = len(columns)
        self.count = 0
        self.has_more = False
        self.kept: tuple[int, int] | None = None
        self._rows = rows
        self._max_rows = max_rows
        self._sample: list[list[str]] = []
        kinds: list[set[bool]] = [set() for _ in columns]
        characters = 0
        for row in islice(rows, SAMPLE_ROWS if max_rows is None else min(SAMPLE_ROWS, max_rows)):
            cells = [cell(value) for value in row]
            self._sample.append(cells)
            for kind, value in zip(kinds, row, strict=True):
                if value is not None:
                    kind.add(isinstance(value, Number))
            characters += sum(map(len, cells))
            if characters >= _SAMPLE_CHARACTERS:
                break
        self.is_number = [kind == {True} for kind in kinds]
        self.widths = [
            min(max(map(width, texts)), _WIDEST_PADDING) for texts in zip(self.names, *self._sample, strict=True)
        ]

    @property
    def table_width(self) -> int:
        """Columns of the terminal that an aligned table takes."""
        return sum(self.widths) + 3 * len(self.widths) - 1

    def leave_out_columns(self, columns: int) -> bool:
        """
        Leave columns out in the middle, as few as let the table fit into *columns* of the terminal.

        Returns:
            Whether it fits then; the first and the last column stay.
        """
        count = len(self.widths)
        room = columns - (len(ELLIPSIS) + 2)
        kept = [0, 0]
        while sum(kept) < count:
            side = sum(kept) % 2
            room -= self.widths[kept[0] if side == 0 else count - 1 - kept[1]] + 3
            if room < 0:
                break
            kept[side] += 1
        if 0 in kept:
            return False
        left, right = kept
        self.names = _without_middle(self.names, left, right, ELLIPSIS)
        self.widths = _without_middle(self.widths, left, right, len(ELLIPSIS))
        self.is_number = _without_middle(self.is_number, left, right, False)
        self.kept = left, right
        return True

    def cells(self) -> Iterator[list[str]]:
        """Give the cells of all rows that are shown, once, up to `max_rows`."""
        for cells in chain(self._sample, ([cell(value) for value in row] for row in self._rows)):
            if self.count == self._max_rows:
                self.has_more = True
                return
            yield cells if self.kept is None else _without_middle(cells, *self.kept, ELLIPSIS)
            self.count += 1

    def footer(self, style: Style) -> str:
        """Say how many rows and columns were shown, and what shows all."""
        rows = f"{self.count} row{'' if self.count == 1 else 's'}"
        notes = [f"the first {rows}; there are more: {style.hints.all_rows} shows all" if self.has_more else rows]
        if self.kept is not None:
            notes.append(f"{self._columns} columns ({sum(self.kept)} shown): {style.hints.all_columns} shows all")
        return f"({'; '.join(notes)})\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[JsonValue]], style: Style) -> Iterator[str]:
    """
    Lay out rows below a header, or as records, line by line, each with its line break, and their number at the end.

    Numbers stand at the right edge of a column that holds nothing else. Memory is bounded by the sample that sizes the
    columns, whatever the number of rows.
    """
    sample = Sample(columns, iter(rows), style.max_rows)
    if style.expanded == "on" or (style.expanded == "auto" and not _fits(sample, style)):
        yield from _records(sample, style)
    else:
        yield from _aligned(sample, style)
    if sample.has_more or sample.kept is not None or not style.is_quiet:
        yield sample.footer(style)


def _fits(sample: Sample, style: Style) -> bool:
    """Whether the table fits on the terminal, if need be without the columns in its middle."""
    if style.columns is None or sample.table_width <= style.columns:
        return True
    return style.elides and sample.leave_out_columns(style.columns)


def _without_middle(items: list[T], left: int, right: int, instead: T) -> list[T]:
    return [*items[:left], instead, *items[len(items) - right :]]


def markdown(columns: Sequence[str], rows: Iterable[Sequence[JsonValue]]) -> Iterator[str]:
    """Lay out rows as a table of GitHub's Markdown, line by line; what Markdown would read as a mark is escaped."""
    sample = Sample(columns, iter(rows), None)
    yield _markdown_line(sample.names)
    yield "|" + "|".join(" ---: " if is_right else " --- " for is_right in sample.is_number) + "|\n"
    for cells in sample.cells():
        yield _markdown_line(cells)


def _markdown_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_MARKDOWN_MARK.sub(r"\\\g<0>", text) for text in cells) + " |\n"


def _aligned(sample: Sample, style: Style) -> Iterator[str]:
    heads = [f"{_BOLD}{name}{_PLAIN}" for name in sample.names] if style.is_colored else sample.names
    yield _line(sample.names, heads, sample)
    yield "+".join("-" * (size + 2) for size in sample.widths) + "\n"
    for cells in sample.cells():
        yield _line(cells, _colored(cells) if style.is_colored else cells, sample)


def _records(sample: Sample, style: Style) -> Iterator[str]:
    """Show each row as a record: a line with its number, then one line a column."""
    longest = max(map(width, sample.names), default=0)
    heads = [name + " " * (longest - width(name)) for name in sample.names]
    if style.is_colored:
        heads = [f"{_BOLD}{head}{_PLAIN}" for head in heads]
    for number, cells in enumerate(sample.cells(), start=1):
        title = f"-[ row {number} ]"
        yield title + "-" * max(0, min(style.columns or 40, 80) - len(title)) + "\n"
        for head, text in zip(heads, _colored(cells) if style.is_colored else cells, strict=True):
            yield f"{head} | {text}".rstrip(" ") + "\n"


def _colored(cells: Sequence[str]) -> list[str]:
    return [f"{_DIM}{text}{_PLAIN}" if text == NULL else text for text in cells]


def _line(cells: Sequence[str], shown: Sequence[str], sample: Sample) -> str:
    """Put *shown* into the columns; *cells* are the same without colours, to be measured."""
    padded = []
    for bare, text, size, is_right in zip(cells, shown, sample.widths, sample.is_number, strict=True):
        padding = " " * (size - (len(bare) if bare.isascii() else width(bare)))
        padded.append(padding + text if is_right else text + padding)
    return (" " + " | ".join(padded)).rstrip(" ") + "\n"

"""Rows as text for people: an aligned table, records (one line per column), or Markdown, in bounded memory."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TypeVar

from runtimeclient.errors import OutputError
from runtimeclient.http.results import JsonValue, Number, as_json
from runtimeclient.output.terminal import Style
from runtimeclient.output.text import visible, width

NULL = "NULL"
#: Replaces omitted columns.
ELLIPSIS = "…"

T = TypeVar("T")

# The number of rows that determine the column widths. A longer cell in a later row is not truncated and shifts its
# line.
SAMPLE_ROWS = 1000
_SAMPLE_CHARACTERS = 1 << 20
# The limit for padding. Otherwise one very long cell would pad every line to its length.
_MAX_PADDING = 120

_BOLD, _DIM, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
# The characters with a meaning in CommonMark 0.31, section 6. An underscore inside a word has none.
_MARKDOWN_MARK = re.compile(r"[\\`*\[\]<>|~&]|(?<!\w)_|_(?!\w)")


def cell(value: JsonValue) -> str:
    """Format one value. NULL is unquoted, the text NULL is quoted, and lists and objects are JSON."""
    if value is None:
        return NULL
    if isinstance(value, str):
        return visible(value) if value != NULL else f'"{NULL}"'
    try:
        return visible(as_json(value))
    except RecursionError as exc:
        raise OutputError("A value is nested too deeply for a table: use --format json.") from exc


class Sample:
    """
    The first rows, which determine the layout, and an iterator over all rows.

    Attributes:
        widths: The width of each column on the terminal.
        is_number: For each column, whether it contains only numbers.
        count: The number of rows that `cells` has yielded so far.
        has_more: Whether there are more than `max_rows` rows.
        kept: The numbers of columns shown to the left and right of omitted columns; None shows all columns.
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
            min(max(map(width, texts)), _MAX_PADDING) for texts in zip(self.names, *self._sample, strict=True)
        ]

    def leave_out_columns(self, columns: int) -> bool:
        """
        Omit as few middle columns as possible, so that the table fits into *columns* of the terminal.

        Returns:
            Whether the table fits. The first and last columns are always shown.
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
        """Yield the cells of up to `max_rows` rows. Call this only once."""
        for cells in chain(self._sample, ([cell(value) for value in row] for row in self._rows)):
            if self.count == self._max_rows:
                self.has_more = True
                return
            yield cells if self.kept is None else _without_middle(cells, *self.kept, ELLIPSIS)
            self.count += 1

    def footer(self, style: Style) -> str:
        """Return a line with the number of rows and columns shown, and how to show all."""
        rows = f"{self.count} row{'' if self.count == 1 else 's'}"
        notes = [f"the first {rows}; there are more: {style.hints.all_rows} shows all" if self.has_more else rows]
        if self.kept is not None:
            notes.append(f"{self._columns} columns ({sum(self.kept)} shown): {style.hints.all_columns} shows all")
        return f"({'; '.join(notes)})\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[JsonValue]], style: Style) -> Iterator[str]:
    """
    Yield the lines of a table or of records, with line breaks, followed by the number of rows.

    Columns that contain only numbers are right-aligned. Memory is bounded by the sample that determines the widths.
    """
    sample = Sample(columns, iter(rows), style.max_rows)
    if style.expanded == "on" or (style.expanded == "auto" and not _fits(sample, style)):
        yield from _records(sample, style)
    else:
        yield from _aligned(sample, style)
    if sample.has_more or sample.kept is not None or not style.is_quiet:
        yield sample.footer(style)


def _fits(sample: Sample, style: Style) -> bool:
    """Return whether the table fits on the terminal, after omitting middle columns if allowed."""
    if style.columns is None or sum(sample.widths) + 3 * len(sample.widths) - 1 <= style.columns:
        return True
    return style.elides and sample.leave_out_columns(style.columns)


def _without_middle(items: list[T], left: int, right: int, instead: T) -> list[T]:
    return [*items[:left], instead, *items[len(items) - right :]]


def markdown(columns: Sequence[str], rows: Iterable[Sequence[JsonValue]]) -> Iterator[str]:
    """Yield the lines of a GitHub Markdown table. Markdown syntax in values is escaped."""
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
    """Yield each row as a record: a line with its number, then one line per column."""
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
    """Align the texts *shown*. *cells* are the same texts without colours, for measuring."""
    padded = []
    for bare, text, size, is_right in zip(cells, shown, sample.widths, sample.is_number, strict=True):
        padding = " " * (size - (len(bare) if bare.isascii() else width(bare)))
        padded.append(padding + text if is_right else text + padding)
    return (" " + " | ".join(padded)).rstrip(" ") + "\n"

"""Rows as an aligned table of text, without holding more than a sample of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain

from runtimeclient.errors import OutputError
from runtimeclient.json_stream import JsonValue, Number
from runtimeclient.screen import visible, width

NULL = "NULL"

# The columns are as wide as these many first rows need; a longer cell further down stays whole and shifts its own line.
SAMPLE_ROWS = 1000
_SAMPLE_CHARACTERS = 1 << 20
# One very long cell would otherwise pad every line of the sample to its length.
_WIDEST_PADDING = 120


def cell(value: JsonValue) -> str:
    """Show one value: NULL bare, a text that reads NULL in quotes, lists and objects as JSON."""
    if value is None:
        return NULL
    if isinstance(value, str):
        return visible(value) if value != NULL else f'"{NULL}"'
    try:
        return visible(_as_json(value))
    except RecursionError as exc:
        raise OutputError("A value is nested too deep to show in a table: use --format json.") from exc


def table(columns: Sequence[str], rows: Iterator[Sequence[JsonValue]]) -> Iterator[str]:
    """
    Lay out rows below a header, line by line, each with its line break, and the number of rows at the end.

    Numbers stand at the right edge of a column that holds nothing else. Memory is bounded by the sample that sizes the
    columns, whatever the number of rows.
    """
    sample = []
    characters = 0
    for row in rows:
        cells = [cell(value) for value in row]
        sample.append((row, cells))
        characters += sum(map(len, cells))
        if len(sample) >= SAMPLE_ROWS or characters >= _SAMPLE_CHARACTERS:
            break
    names = [visible(column) for column in columns]
    widths = [
        min(max(map(width, texts)), _WIDEST_PADDING)
        for texts in zip(names, *(cells for _, cells in sample), strict=True)
    ]
    is_number = [
        any(isinstance(row[at], Number) for row, _ in sample)
        and all(isinstance(row[at], Number) or row[at] is None for row, _ in sample)
        for at in range(len(names))
    ]
    yield _line(names, widths, is_number)
    yield "+".join("-" * (size + 2) for size in widths) + "\n"
    count = 0
    for cells in chain((cells for _, cells in sample), ([cell(value) for value in row] for row in rows)):
        yield _line(cells, widths, is_number)
        count += 1
    yield f"({count} row{'' if count == 1 else 's'})\n"


def _line(cells: Sequence[str], widths: Sequence[int], is_number: Sequence[bool]) -> str:
    padded = []
    for text, size, is_right in zip(cells, widths, is_number, strict=True):
        padding = " " * (size - (len(text) if text.isascii() else width(text)))
        padded.append(padding + text if is_right else text + padding)
    return (" " + " | ".join(padded)).rstrip(" ") + "\n"


def _as_json(value: JsonValue) -> str:
    if isinstance(value, Number):
        return value
    if isinstance(value, list):
        return "[" + ",".join(map(_as_json, value)) + "]"
    if isinstance(value, dict):
        return (
            "{"
            + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{_as_json(item)}" for name, item in value.items())
            + "}"
        )
    return json.dumps(value, ensure_ascii=False)

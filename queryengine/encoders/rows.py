"""
Joins columns of text to rows of text.

A few rows are joined by pyarrow's join kernel, which examines each argument again for each row. With many rows, all
values are put into one long column, after the literals, and taken from this column in row order.
"""

from array import array as numbers
from collections.abc import Sequence
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from queryengine.encoders.rendering import Fragment, join, json_text, value_bytes

#: From this number of rows on, the second method is faster.
_MANY_ROWS = 512

#: The forms of a literal: with or without the end of the previous value and the start of the next one. Nulls have none.
_FORMS = 4


def object_literals(names: Sequence[str], start: str = "{") -> list[str]:
    """Return the literals of rows that are JSON objects with *names* as keys and begin with *start*."""
    keys = [json_text(name) + ":" for name in names]
    return [*(("," if number else start) + key for number, key in enumerate(keys)), "}"]


def joined_rows(fragments: Sequence[Fragment], literals: Sequence[str], null: str) -> pa.StringArray:
    """
    Join columns to one string per row.

    Args:
        fragments: One or more columns of equal length.
        literals: The text before each column, and the text after the last column.
        null: The text for a null, which is not enclosed.
    """
    parts: list[pa.Array | str] = []
    after = ""
    for literal, fragment in zip(literals[:-1], fragments, strict=True):
        column = Fragment(fragment.whole()) if _is_mixed(fragment) else fragment
        parts += [after + literal + column.before, column.values]
        after = column.after
    return join(*parts, after + literals[-1], null=null)


def row_bytes(fragments: Sequence[Fragment], literals: Sequence[str], null: str) -> memoryview:
    """Return the rows of `joined_rows` as consecutive bytes."""
    rows = len(fragments[0].values)
    if rows < _MANY_ROWS:
        return value_bytes(joined_rows(fragments, literals, null))
    room = 1 << (rows - 1).bit_length()
    padding = [pa.nulls(room - rows, pa.string())] if room > rows else []
    columns = [fragment.values.fill_null(null) if null else fragment.values for fragment in fragments]
    texts = pa.concat_arrays([_forms(fragments, literals), *(part for one in columns for part in (one, *padding))])
    places = _places(len(fragments), room)
    if any(_is_mixed(fragment) for fragment in fragments):
        places = _with_forms(places, fragments, rows)
    indices = pa.Array.from_buffers(pa.int32(), rows * (2 * len(fragments) + 1), [None, places])
    return value_bytes(pc.take(texts, indices))


def _forms(fragments: Sequence[Fragment], literals: Sequence[str]) -> pa.StringArray:
    """Return each literal in its forms: with both neighbours' quotes, only the previous, only the next, or neither."""
    befores = [*(fragment.before for fragment in fragments), ""]
    afters = ["", *(fragment.after for fragment in fragments)]
    forms = []
    for literal, after, before in zip(literals, afters, befores, strict=True):
        forms += [after + literal + before, after + literal, literal + before, literal]
    return pa.array(forms, pa.string())


def _is_mixed(fragment: Fragment) -> bool:
    """Return whether some values are enclosed, and others are null."""
    return bool(fragment.before or fragment.after) and fragment.values.null_count > 0


def _with_forms(places: pa.Buffer, fragments: Sequence[Fragment], rows: int) -> pa.Buffer:
    """Return *places* with the correct form of each literal in each of *rows*."""
    step = 2 * len(fragments) + 1
    changed = memoryview(bytearray(memoryview(places)[: 4 * rows * step])).cast("i")
    before: pa.Int32Array | None = None
    for number, fragment in enumerate([*fragments, None]):
        after = None
        if fragment is not None and _is_mixed(fragment):
            after = pc.cast(fragment.values.is_null(), pa.int32())
        if before is not None or after is not None:
            form = pa.scalar(_FORMS * number, pa.int32())
            if after is not None:
                form = pc.add(form, after)
            if before is not None:
                form = pc.add(form, pc.multiply(before, pa.scalar(2, pa.int32())))
            changed[2 * number :: step] = memoryview(form.buffers()[1]).cast("i")[form.offset : form.offset + rows]
        before = after
    return pa.py_buffer(changed)


@lru_cache(maxsize=8)
def _places(columns: int, rows: int) -> pa.Buffer:
    """Return the index of each literal and each value, row by row, as 32-bit integers. Many pieces share the result."""
    step = 2 * columns + 1
    places = memoryview(bytearray(4 * rows * step)).cast("i")
    for number in range(columns + 1):
        places[2 * number :: step] = numbers("i", [_FORMS * number]) * rows
    first = _FORMS * (columns + 1)
    for number in range(columns):
        places[2 * number + 1 :: step] = numbers("i", range(first, first + rows))
        first += rows
    return pa.py_buffer(places)

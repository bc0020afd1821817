"""CSV: a header, then one line a row, quoted as RFC 4180 says and where needed only; lines end with a newline."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from queryengine.encoders.parts import Parts
from queryengine.encoders.plan import column_names, renderers, texts
from queryengine.encoders.rendering import Fragment, join, specials
from queryengine.encoders.rows import row_bytes
from queryengine.manifest import Column

#: A field that holds one of these is quoted; a carriage return alone ends a line for many readers.
_QUOTED = frozenset(b'",\r\n')
_PLAIN = bytes(set(range(256)) - _QUOTED)
_NEEDS_QUOTES = re.compile(r'[",\r\n]').search


def encode(columns: Sequence[Column], schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes | Parts]:
    """Give the header and the rows. A null is an empty field, an empty string is `""`."""
    plan = renderers(columns, schema)
    literals = ["", *[","] * (len(columns) - 1), "\n"]

    def rows(piece: pa.RecordBatch) -> memoryview:
        plain = [renderer.plain(array) for renderer, array in zip(plan, piece.columns, strict=True)]
        fields = [quoted(text) if renderer.free_text else text for renderer, text in zip(plan, plain, strict=True)]
        return row_bytes(list(map(Fragment, fields)), literals, null="")

    start = ",".join(map(quoted_text, column_names(columns))).encode() + b"\n"
    for text in texts(batches, plan, len(columns), rows):
        yield start, text
        start = b""
    if start:
        yield start


def quoted(texts: pa.StringArray) -> pa.StringArray:
    """Quote the texts that need it: those that are empty, or hold a quote, a comma or the end of a line."""
    needed = pc.equal(pc.binary_length(texts), 0)
    found = specials(texts, _PLAIN)
    for byte in found:
        needed = pc.or_(needed, pc.match_substring(texts, chr(byte)))
    if not needed.true_count:
        return texts
    doubled = pc.replace_substring(texts, '"', '""') if ord('"') in found else texts
    return pc.if_else(needed, join('"', doubled, '"'), texts)


def quoted_text(text: str) -> str:
    """Quote one text, if it needs that, as `quoted` does a column of them: a few are not worth its calls."""
    if text and not _NEEDS_QUOTES(text):
        return text
    return '"' + text.replace('"', '""') + '"'

"""Encodes results as CSV: a header, then one line per row, each with a newline. Quotes follow RFC 4180."""

import re
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from queryengine.encoders.plan import renderers, texts
from queryengine.encoders.rendering import Fragment, join, specials
from queryengine.encoders.rows import row_bytes
from queryengine.engine import Parts
from queryengine.manifest import Column
from queryengine.values import unique_names

#: A field that contains one of these bytes is quoted. Many readers end a line at a lone carriage return.
_QUOTED = frozenset(b'",\r\n')
_PLAIN = bytes(set(range(256)) - _QUOTED)
_NEEDS_QUOTES = re.compile(r'[",\r\n]').search


def encode(columns: Sequence[Column], schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[Parts]:
    """Yield the header and the rows. A null is an empty field, and an empty string is `""`."""
    plan = renderers(columns, schema)
    literals = ["", *[","] * (len(columns) - 1), "\n"]

    def rows(piece: pa.RecordBatch) -> memoryview:
        plain = [renderer.plain(array) for renderer, array in zip(plan, piece.columns, strict=True)]
        fields = [quoted(text) if renderer.free_text else text for renderer, text in zip(plan, plain, strict=True)]
        return row_bytes(list(map(Fragment, fields)), literals, null="")

    start = ",".join(map(quoted_text, unique_names(column.name for column in columns))).encode() + b"\n"
    for text in texts(batches, plan, len(columns), rows):
        yield start, text
        start = b""
    if start:
        yield (start,)


def quoted(texts: pa.StringArray) -> pa.StringArray:
    """Quote strings that are empty, or contain a quote, a comma or a line end."""
    needed = pc.equal(pc.binary_length(texts), 0)
    found = specials(texts, _PLAIN)
    for byte in found:
        needed = pc.or_(needed, pc.match_substring(texts, chr(byte)))
    if not needed.true_count:
        return texts
    doubled = pc.replace_substring(texts, '"', '""') if ord('"') in found else texts
    return pc.if_else(needed, join('"', doubled, '"'), texts)


def quoted_text(text: str) -> str:
    """Quote one string as `quoted` does, because kernel calls are too expensive for a few strings."""
    if text and not _NEEDS_QUOTES(text):
        return text
    return '"' + text.replace('"', '""') + '"'

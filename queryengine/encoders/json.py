"""Encodes results as JSON, with one object per row: an array on one line, or one line per row (NDJSON)."""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from queryengine.encoders.plan import renderers, texts
from queryengine.encoders.rows import object_literals, row_bytes
from queryengine.engine import Parts
from queryengine.manifest import Column
from queryengine.values import unique_names


def encode(columns: Sequence[Column], schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[Parts]:
    """Yield `[{"a":1},{"a":2}]`, without white space or a final newline; `[]` if there are no rows."""
    start = b"["
    for text in _objects(columns, schema, batches, start=",{"):
        yield start, text[1:]  # Each row begins with a comma. `start` replaces the first comma.
        start = b","
    yield (b"[]" if start == b"[" else b"]",)


def encode_lines(columns: Sequence[Column], schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[Parts]:
    """Yield a line `{"a":1}` with a newline for each row; nothing if there are no rows."""
    for text in _objects(columns, schema, batches, end="\n"):
        yield (text,)


def _objects(
    columns: Sequence[Column], schema: pa.Schema, batches: Iterable[pa.RecordBatch], start: str = "{", end: str = ""
) -> Iterator[memoryview]:
    """Yield the objects of one piece after another. Each object begins with *start* and is followed by *end*."""
    plan = renderers(columns, schema)
    literals = object_literals(unique_names(column.name for column in columns), start=start)
    literals[-1] += end

    def rows(piece: pa.RecordBatch) -> memoryview:
        fragments = [renderer.json(array) for renderer, array in zip(plan, piece.columns, strict=True)]
        return row_bytes(fragments, literals, null="null")

    return texts(batches, plan, len("".join(literals).encode()), rows)

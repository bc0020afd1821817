"""JSON: an array on one line, one object a row, keyed by column."""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from queryengine.encoders.parts import Parts
from queryengine.encoders.plan import renderers, texts
from queryengine.encoders.rows import object_literals, row_bytes
from queryengine.manifest import Column
from queryengine.values import unique_names


def encode(columns: Sequence[Column], schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[Parts]:
    """Give `[{"a":1},{"a":2}]`: no white space between tokens, no newline at the end; `[]` without rows."""
    plan = renderers(columns, schema)
    literals = object_literals(unique_names(column.name for column in columns), start=",{")

    def rows(piece: pa.RecordBatch) -> memoryview:
        fragments = [renderer.json(array) for renderer, array in zip(plan, piece.columns, strict=True)]
        return row_bytes(fragments, literals, null="null")

    start = b"["
    for text in texts(batches, plan, len("".join(literals).encode()), rows):
        yield start, text[1:]  # Each row begins with a comma; `start` replaces the first one.
        start = b","
    yield (b"[]" if start == b"[" else b"]",)

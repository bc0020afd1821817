"""JSON: an array on one line, one object a row, keyed by column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from queryengine.catalog import Column
from queryengine.encoders.nested import object_text
from queryengine.encoders.plan import column_names, renderers, text_pieces
from queryengine.encoders.rendering import json_text, value_bytes


def encode(columns: Sequence[Column], schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Give `[{"a":1},{"a":2}]`: no white space between tokens, no newline at the end; `[]` when there is no row."""
    plan = renderers(columns, schema)
    keys = [json_text(name) + ":" for name in column_names(columns)]
    start = b"["
    for piece in text_pieces(batches, plan, row_overhead=sum(len(key.encode()) for key in keys)):
        fragments = [renderer.json(array) for renderer, array in zip(plan, piece.columns, strict=True)]
        rows = value_bytes(object_text(fragments, keys, piece.num_rows, start=",{"))
        yield start + rows[1:]  # Each row begins with a comma, the first one after what came before.
        start = b","
    yield b"[]" if start == b"[" else b"]"

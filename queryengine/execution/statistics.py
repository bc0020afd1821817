"""What one instance has learned from the statements that it ran, so that it runs the next ones faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import duckdb
import pyarrow as pa

from queryengine.encoders import small_rows
from queryengine.engine import Encoding
from queryengine.execution.small_results import SmallPatterns
from queryengine.execution.streamed_results import BatchSizes
from queryengine.manifest import Column

#: How many lists of column types have their Arrow fields kept, and how long such a list may be, in characters.
_MAX_TYPES = 256
_MAX_TYPES_CHARACTERS = 2000


@dataclass(eq=False, slots=True)
class Statistics:
    """
    Statistics of one instance. Safe from any thread.

    `small_texts` are the patterns whose results are small as text, `small_batches` those small as record batches.
    """

    batch_sizes: BatchSizes = field(default_factory=BatchSizes)
    small_texts: SmallPatterns = field(default_factory=SmallPatterns)
    small_batches: SmallPatterns = field(default_factory=SmallPatterns)
    _fields: dict[tuple[str, ...], tuple[pa.Field, ...]] = field(default_factory=dict)

    def small_results(self, encoding: Encoding) -> SmallPatterns:
        """Return the patterns whose results are small in *encoding*."""
        return self.small_texts if encoding in small_rows.ENCODINGS else self.small_batches

    def schema(self, columns: tuple[Column, ...], relation: Callable[[], duckdb.DuckDBPyRelation]) -> pa.Schema:
        """Return the Arrow schema of a *relation* with *columns*. It follows from their types, and is kept."""
        types = tuple(column.type for column in columns)
        fields = self._fields.get(types)
        if fields is None:
            fields = tuple(relation().limit(0).to_arrow_table().schema)
            if len(self._fields) < _MAX_TYPES and sum(map(len, types)) <= _MAX_TYPES_CHARACTERS:
                self._fields[types] = fields
        return pa.schema([kept.with_name(column.name) for kept, column in zip(fields, columns, strict=True)])

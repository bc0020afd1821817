"""
Sources that are streams of Arrow record batches from a client library.

The engine pulls the batches while it writes the snapshot, so only one or two of them are in memory. An error of the
source passes through the engine, which wraps it in its own message and traceback, so the original is kept here.
"""

from collections.abc import Callable, Iterator, Mapping

import duckdb
import pyarrow as pa

from datasources.errors import SnapshotError, SourceError
from datasources.sources.source import Load, Scan
from datasources.sql import identifier

# Set this before the first array, because the default allocator reserves a gibibyte, which counts against a load's
# limit.
pa.set_memory_pool(pa.system_memory_pool())

#: The engine's names for the stream, and for a part of it that is tried again.
_RELATION = "_source"
_PROBE = "_probe"

#: The memory that a client library uses per column: a page or a buffer, and its values.
_COLUMN_BYTES = 1024 * 1024


class StreamScan(Scan):
    """
    A `Scan` of *reader*.

    Args:
        reader: The stream. Its owner closes it.
        load: The load. Its deadline is checked before each batch, and takes precedence over errors.
        explain: Turns an error of the client library into a sentence without host, credentials or contents.
        version: See `Scan.version`.
        types: The engine type to cast to, for columns for which the library cannot provide the correct type.
    """

    is_read_once = True
    #: The end of the error message for a value that does not fit its type: what to do about it.
    hint = ""

    def __init__(
        self,
        reader: pa.RecordBatchReader,
        load: Load,
        explain: Callable[[Exception], SourceError],
        *,
        version: str | None = None,
        types: Mapping[str, str] | None = None,
    ) -> None:
        self._reader = reader
        self._types = types or {}
        self._batch: pa.RecordBatch | None = None
        self._rows = 0  # before that batch
        self._load = load
        self._explain = explain
        self._error: SourceError | SnapshotError | None = None
        self.version = version
        self.held_bytes = _COLUMN_BYTES * len(reader.schema)

    def bind(self, connection: duckdb.DuckDBPyConnection) -> str:
        """Register the stream with the engine; see `Scan.bind`."""
        seen: dict[str, str] = {}
        for name in self._reader.schema.names:
            if (other := seen.get(name.lower())) is not None:
                pair = f"'{other}' and '{name}'"
                raise SourceError(f"The source has the columns {pair}: each column needs a name of its own.")
            seen[name.lower()] = name
        guarded = pa.RecordBatchReader.from_batches(self._reader.schema, self._batches())
        connection.register(_RELATION, guarded)
        if not self._types:
            return _RELATION
        return f"(SELECT {', '.join(map(self._cast, self._reader.schema.names))} FROM {_RELATION})"  # noqa: S608 - quoted

    def explain(self, connection: duckdb.DuckDBPyConnection, error: duckdb.Error) -> SourceError:
        """Return the source's error, or an error that names the data that the engine does not accept."""
        if isinstance(self._error, SnapshotError):
            raise self._error
        if self._error is not None:
            return self._error
        for field in self._reader.schema:
            if not self._fits(connection, field):
                kind = self._types.get(field.name, field.type)
                return SourceError(
                    f"The engine cannot read the column '{field.name}'{self._row(connection, field)}: a value does not "
                    f"fit {kind}{self.hint}."
                )
        return SourceError("The engine cannot read a type or a value of the source.")

    def _cast(self, name: str) -> str:
        quoted = identifier(name)
        return f"CAST({quoted} AS {self._types[name]}) AS {quoted}" if name in self._types else quoted

    def _fits(self, connection: duckdb.DuckDBPyConnection, field: pa.Field, values: pa.Array | None = None) -> bool:
        """Return whether the engine accepts *values* of this column (by default its last batch, or an empty one)."""
        if values is None:
            values = pa.nulls(0, field.type) if self._batch is None else self._batch.column(field.name)
        try:
            connection.register(_PROBE, pa.table([values], schema=pa.schema([field])))
            relation = connection.sql(f"SELECT {self._cast(field.name)} FROM {_PROBE}")  # noqa: S608 - quoted
            relation.fetchall()
        except duckdb.Error:
            return False
        return True

    def _row(self, connection: duckdb.DuckDBPyConnection, field: pa.Field) -> str:
        """Return ` in row N` for the first sent value that the engine refuses, or nothing."""
        if self._batch is None or not self._fits(connection, field, pa.nulls(0, field.type)):
            return ""
        values = self._batch.column(field.name)
        low, high = 0, len(values)
        while high - low > 1:
            middle = (low + high) // 2
            if self._fits(connection, field, values.slice(low, middle - low)):
                low = middle
            else:
                high = middle
        return f" in row {self._rows + low + 1}"

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            while True:
                self._load.deadline.check()
                try:
                    batch = self._reader.read_next_batch()
                except StopIteration:
                    return
                except (SourceError, SnapshotError):
                    raise
                except Exception as exc:  # noqa: BLE001 (each library raises errors of its own)
                    self._load.deadline.check()
                    raise self._explain(exc) from None
                if self._batch is not None:
                    self._rows += self._batch.num_rows
                self._batch = batch
                yield batch
        except (SourceError, SnapshotError) as exc:
            self._error = exc
            raise

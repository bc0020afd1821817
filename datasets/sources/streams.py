"""
Sources that come as a stream of Arrow record batches, made by a client library of the source.

The engine pulls the batches while it writes the snapshot, so memory holds one or two of them. Whatever goes wrong at
the source while a batch is fetched passes through the engine, which wraps it in words and tracebacks of its own; it is
kept here as it was and told from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import duckdb
import pyarrow as pa

from datasets.errors import SnapshotError, SourceError
from datasets.sources.source import Load

#: The name by which the engine calls the stream of a load.
_RELATION = "_source"


class StreamScan:
    """
    A `Scan` of *reader*.

    Args:
        reader: What to read; its owner closes it.
        load: The load; its deadline is looked at before each batch.
        explain: Turns an error of the client library into a sentence without host, credentials or contents.
        version: As `Scan.version`.
        confirm: As `Scan.confirm`.
    """

    paths: tuple[str, ...] = ()
    is_read_once = True

    def __init__(
        self,
        reader: pa.RecordBatchReader,
        load: Load,
        explain: Callable[[Exception], SourceError],
        *,
        version: str | None = None,
        confirm: Callable[[], None] = lambda: None,
    ) -> None:
        self._reader = reader
        self._load = load
        self._explain = explain
        self._error: SourceError | SnapshotError | None = None
        self.version = version
        self.confirm = confirm

    def bind(self, connection: duckdb.DuckDBPyConnection) -> str:
        """Hand the stream to the engine under a name."""
        _refuse_repeated(self._reader.schema.names)
        guarded = pa.RecordBatchReader.from_batches(self._reader.schema, self._batches())
        connection.register(_RELATION, guarded)
        return _RELATION

    def accept(self, connection: duckdb.DuckDBPyConnection, names: Sequence[str]) -> None:
        """Take them: an Arrow schema says its names itself."""

    def explain(self, connection: duckdb.DuckDBPyConnection, error: duckdb.Error) -> SourceError:
        """Tell what went wrong at the source, or that the engine does not take what came from it."""
        if isinstance(self._error, SnapshotError):
            raise self._error
        if self._error is not None:
            return self._error
        return SourceError("The engine cannot take a type or a value of the source.")

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
                    raise self._explain(exc) from None
                yield batch
        except (SourceError, SnapshotError) as exc:
            self._error = exc
            raise


def _refuse_repeated(names: Sequence[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.get(name.lower())) is not None:
            pair = f"'{other}' and '{name}'"
            raise SourceError(f"The source has the columns {pair}: each column needs a name of its own.")
        seen[name.lower()] = name

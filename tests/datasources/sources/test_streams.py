from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from datasources.errors import SnapshotError, SourceError
from datasources.loading.loading_engine import LoadingEngine
from datasources.sources.streams import StreamScan
from tests.datasources.support import MIB, new_load

SCHEMA = pa.schema([("a", pa.int64())])


def explained(error: Exception) -> SourceError:
    return SourceError(f"The source failed with {type(error).__name__}.")


def scan_of(tmp_path: Path, batches: Iterator[pa.RecordBatch], limit_s: float = 60.0) -> StreamScan:
    reader = pa.RecordBatchReader.from_batches(SCHEMA, batches)
    return StreamScan(reader, new_load(tmp_path, limit_s), explained, version="v1")


def batches(*numbers: int) -> Iterator[pa.RecordBatch]:
    for number in numbers:
        yield pa.record_batch({"a": [number]})


def broken() -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"a": [1]})
    raise OSError("password=canary")


@pytest.mark.parametrize(
    ("source", "limit_s", "kind", "sentence"),
    [
        pytest.param(broken(), 60.0, SourceError, "The source failed with OSError.", id="the source fails"),
        pytest.param(batches(1), 0.0, SnapshotError, "The load was stopped after 0 s", id="the time is up"),
    ],
)
def test_a_broken_stream_is_reported_in_our_words(
    tmp_path: Path, source: Iterator[pa.RecordBatch], limit_s: float, kind: type[Exception], sentence: str
) -> None:
    scan = scan_of(tmp_path, source, limit_s)

    with duckdb.connect() as connection:
        relation = scan.bind(connection)
        with pytest.raises(duckdb.Error) as raised:
            connection.execute(f"CREATE TABLE t AS FROM {relation}")
        with pytest.raises(kind, match=sentence) as told:
            raise scan.explain(connection, raised.value)

    assert "canary" not in str(told.value)


def test_an_error_of_the_engine_is_reported_without_its_text(tmp_path: Path) -> None:
    scan = scan_of(tmp_path, batches(1))

    assert "canary" not in str(scan.explain(duckdb.connect(), duckdb.Error("canary")))


def test_columns_alike_but_for_case_are_refused(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int64()), ("A", pa.int64())])
    reader = pa.RecordBatchReader.from_batches(schema, iter(()))

    with pytest.raises(SourceError, match="the columns 'a' and 'A'"):
        StreamScan(reader, new_load(tmp_path), explained).bind(duckdb.connect())


def test_a_commit_out_of_memory_is_not_blamed_on_the_source(tmp_path: Path) -> None:
    engine = LoadingEngine(tmp_path / "state", 256 * MIB)
    said = (
        "TransactionContext Error: Failed to commit: could not allocate block of size 256.0 KiB (192.0 MiB/192.0 MiB)"
    )

    with (
        duckdb.connect() as connection,
        pytest.raises(SnapshotError, match="more memory than query"),
        engine._explained(connection),
    ):
        raise duckdb.TransactionException(said)

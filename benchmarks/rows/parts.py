"""Parts of the runtime alone: the JSON encoder, and an append compared with a full load."""

import io
import json
import shutil
import threading
import time
from collections.abc import Callable
from decimal import Decimal

import duckdb
import polars as pl
import pyarrow as pa

from benchmarks.bench import Effort, Environment, Standalone, rotated
from benchmarks.load import AnswerError
from benchmarks.samples import Target
from benchmarks.tables import ITEMS
from datasources.deadline import Deadline
from datasources.refresh.loader import LoaderProcess
from datasources.snapshots.snapshot import Order, SnapshotBuilder
from queryengine.encoders import encode_parts
from queryengine.manifest import SNAPSHOT_DIRECTORY, Column, Snapshot, snapshot_path
from runtimeconf.model import GIB, AccelerationConfig, DatasetConfig

ENCODED_ROWS = 100_000
_BATCH_ROWS = 20_480
OURS, POLARS = "Querykeep", "polars write_json"
LOADED_ROWS, NEWER_ROWS = 10_000_000, 100_000
APPEND, FULL = "Querykeep", "Querykeep, full load"


def encoding(_place: Environment, number: int, effort: Effort) -> dict[str, dict[str, float]]:
    """
    Encode the same Arrow batches as JSON several times: ours with exact decimals, polars' with strings for them.

    Raises:
        AnswerError: Our JSON differs from the table.
    """
    relation = duckdb.connect().sql(ITEMS.format(rows=ENCODED_ROWS))
    columns = tuple(Column(name=n, type=str(t)) for n, t in zip(relation.columns, relation.types, strict=True))
    table = relation.to_arrow_table()
    batches = table.to_batches(_BATCH_ROWS)

    def ours() -> bytes:
        return b"".join(map(b"".join, encode_parts("json", columns, table.schema, batches)))

    def theirs() -> bytes:
        written = io.BytesIO()
        pl.DataFrame(table).write_json(written)
        return written.getvalue()

    if number == 0:
        check(ours(), table)
    writers: dict[str, Callable[[], bytes]] = {OURS: ours, POLARS: theirs}
    taken = {name: min(_seconds(writers[name], effort.seconds)) for name in rotated(list(writers), number)}
    return {name: {"ms": seconds * 1e3} for name, seconds in taken.items()}


def _seconds(write: Callable[[], bytes], at_least_s: float) -> list[float]:
    taken: list[float] = []
    while sum(taken) < at_least_s / 2 or len(taken) < 3:
        began = time.perf_counter()
        write()
        taken.append(time.perf_counter() - began)
    return taken


def check(body: bytes, table: pa.Table) -> None:
    """
    Compare our JSON with the table, decimals digit by digit.

    Raises:
        AnswerError: A column differs.
    """
    rows = json.loads(body, parse_float=Decimal)
    for name in table.column_names:
        expected = table[name].to_pylist()
        found = [row[name] for row in rows]
        if name == "price":
            same = [str(Decimal(value)) for value in found] == [str(value) for value in expected]
        elif name == "ratio":
            same = [float(value) for value in found] == expected
        elif name in {"day", "sold_at"}:
            precision = {"timespec": "milliseconds"} if name == "sold_at" else {}
            same = found == [value.isoformat(**precision).removesuffix(".000") for value in expected]
        else:
            same = found == expected
        if not same:
            raise AnswerError(f"the column {name} has different values")


def appending(environment: Environment, number: int, _effort: Effort) -> dict[str, dict[str, float]]:
    """Load 10 million rows, add 1 % newer ones, and refresh by an append and by a full load, in turns."""
    directory = environment.scratch / f"append-{number}"
    state_dir = directory / "state"
    (state_dir / SNAPSHOT_DIRECTORY).mkdir(parents=True)
    loader = LoaderProcess(
        SnapshotBuilder(state_dir=state_dir, memory_limit_bytes=1 * GIB, temp_directory_limit_bytes=4 * GIB)
    )
    dataset = DatasetConfig(
        name="sales",
        from_="file:sales/",
        location=f"{directory}/sales",
        time_column="t",
        acceleration=AccelerationConfig(refresh_mode="append"),
    )
    source = environment.tables.parquet(f"big_{LOADED_ROWS}")
    (directory / "sales").mkdir()
    (directory / "sales/1.parquet").hardlink_to(source)
    try:
        first, _ = _timed(loader, dataset)
        newer = f"SELECT * REPLACE (t + INTERVAL 1 YEAR AS t) FROM '{source}' ORDER BY id DESC LIMIT {NEWER_ROWS}"
        with duckdb.connect() as engine:
            engine.execute(f"COPY ({newer}) TO '{directory}/sales/2.parquet' (FORMAT parquet)")
        found = {}
        for subject in rotated([APPEND, FULL], number):
            snapshot, seconds = _timed(loader, dataset, first if subject == APPEND else None)
            if snapshot.rows != LOADED_ROWS + NEWER_ROWS:
                raise AnswerError(f"{subject} has {snapshot.rows} rows")
            snapshot_path(state_dir, snapshot).unlink()
            found[subject] = {"s": seconds}
    finally:
        loader.close()
        shutil.rmtree(directory)
    return found


def _timed(loader: LoaderProcess, dataset: DatasetConfig, served: Snapshot | None = None) -> tuple[Snapshot, float]:
    began = time.monotonic()
    snapshot = loader.build(Order(dataset, served=served), Deadline(3600, threading.Event()))
    if snapshot is None:
        raise AnswerError("there was nothing to load")
    return snapshot, time.monotonic() - began


ROWS = (
    Standalone(
        name="encode",
        title="Arrow to JSON in process, 100,000 rows x 8 columns",
        measure=encoding,
        targets=[Target(metric="ms", against=POLARS, at_most=1.5)],
    ),
    Standalone(
        name="append",
        title="append of 1 % to 10,000,000 rows",
        measure=appending,
        targets=[Target(metric="s", of=APPEND, against=FULL, at_most=0.2)],
    ),
)

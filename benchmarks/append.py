"""
What an append costs beside a full load of the same source.

    python -m benchmarks.append

A source of 10 million rows is loaded, 1 % newer rows come to it, and it is loaded again: by an append, and by a full
load, turn by turn, each in the process that `manage.py serve` loads in. The median of the rounds' ratios should be at
most a fifth. `--format csv` shows a source that has to be read to its end to find what is newer.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import duckdb

from datasets.deadline import Deadline
from datasets.loader import LoaderProcess
from datasets.snapshots import SnapshotBuilder
from queryengine.catalog import SNAPSHOT_DIRECTORY, Snapshot, snapshot_path
from runtimeconf.model import GIB, AccelerationConfig, DatasetConfig

TARGET = 0.2

SQL = """
    SELECT i AS id,
           TIMESTAMP '2020-01-01' + to_milliseconds(i * 137) AS sold_at,
           (hash(i) % 100000)::INTEGER AS customer,
           (hash(i) % 1000000 / 100.0)::DECIMAL(18,2) AS price,
           'item ' || (hash(i) % 5000) AS item,
           hash(i) % 3 = 0 AS returned
    FROM range({first}, {end}) t(i)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--percent", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--format", choices=["parquet", "csv"], default="parquet")
    options = parser.parse_args()
    newer = int(options.rows * options.percent / 100)
    print(f"{options.rows:,} rows of {options.format}, and {newer:,} newer ones; DuckDB {duckdb.__version__}")

    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        state_dir = directory / "state"
        (state_dir / SNAPSHOT_DIRECTORY).mkdir(parents=True)
        loader = LoaderProcess(
            SnapshotBuilder(state_dir=state_dir, memory_limit_bytes=1 * GIB, temp_directory_limit_bytes=4 * GIB)
        )
        dataset = DatasetConfig(
            name="sales",
            from_="file:sales/",
            location=f"{directory}/sales",
            time_column="sold_at",
            acceleration=AccelerationConfig(refresh_mode="append"),
        )
        try:
            write(directory, options.format, 0, options.rows)
            first, first_s = timed(loader, dataset)
            write(directory, options.format, options.rows, options.rows + newer)
            print(f"first load {first_s:7.2f} s, {first.size_bytes / 2**20:,.0f} MiB")
            ratios = [one_round(loader, state_dir, dataset, first, number) for number in range(options.rounds)]
        finally:
            loader.close()
    median = statistics.median(ratios)
    print(f"median ratio {median:.3f}; the aim is {TARGET}")
    return 0 if median <= TARGET else 1


def one_round(loader: LoaderProcess, state_dir: Path, dataset: DatasetConfig, first: Snapshot, number: int) -> float:
    """Load in both ways, another one first in each round, and return the time of an append in parts of a full load."""
    seconds: dict[str, float] = {}
    counts = set()
    for mode in ("append", "full") if number % 2 == 0 else ("full", "append"):
        snapshot, seconds[mode] = timed(loader, dataset, first if mode == "append" else None)
        counts.add(snapshot.rows)
        snapshot_path(state_dir, snapshot).unlink()
    if len(counts) > 1:
        raise AssertionError(f"the two loads have different numbers of rows: {counts}")
    ratio = seconds["append"] / seconds["full"]
    print(f"append {seconds['append']:7.2f} s   full {seconds['full']:7.2f} s   ratio {ratio:.3f}")
    return ratio


def timed(loader: LoaderProcess, dataset: DatasetConfig, served: Snapshot | None = None) -> tuple[Snapshot, float]:
    """Load, and return what came of it with the seconds that it took."""
    began = time.monotonic()
    snapshot = loader.build(dataset, None, Deadline(3600, threading.Event()), served=served)
    if snapshot is None:
        raise AssertionError("there was nothing to load")
    return snapshot, time.monotonic() - began


def write(directory: Path, file_format: str, first: int, end: int) -> None:
    """Write the rows from *first* to *end* to a file of the source."""
    (directory / "sales").mkdir(exist_ok=True)
    path = directory / "sales" / f"from-{first:012}.{file_format}"
    duckdb.execute(f"COPY ({SQL.format(first=first, end=end)}) TO '{path}'")


if __name__ == "__main__":
    sys.exit(main())

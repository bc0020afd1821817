"""
How fast results become JSON: ours against the bare `write_json` of polars, on the same data, in one run.

    python -m benchmarks.encode

100,000 rows of 8 mixed columns. The contestants take turns, another one first in each round, so that a busy machine
slows all of them; the result is the median of the rounds' ratios, and it should be at most 1.5. Polars writes decimals
as strings and timestamps without a `T`; ours are compared with the engine's values before anything is timed. CSV and
Arrow are timed along the way.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from functools import partial

import duckdb
import polars as pl
import pyarrow as pa

from queryengine.catalog import Column
from queryengine.encoders import CONTENT_TYPES, encode
from queryengine.engine import Encoding

TARGET = 1.5
BATCH_ROWS = 20_480

SQL = """
    SELECT i::INTEGER AS id,
           i * 7919000003 AS big,
           i / 7.0::DOUBLE AS ratio,
           'item ' || i || ' of ' || (i % 1000) AS name,
           (i * 37 % 100000000 / 1000.0)::DECIMAL(18,3) AS price,
           TIMESTAMP '2020-01-01' + to_milliseconds(i * 1237) AS sold_at,
           DATE '2000-01-01' + (i % 10000)::INTEGER AS day,
           i % 3 = 0 AS returned
    FROM range({rows}) t(i)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()

    relation = duckdb.connect().sql(SQL.format(rows=options.rows))
    columns = tuple(Column(name=n, type=str(t)) for n, t in zip(relation.columns, relation.types, strict=True))
    table = relation.to_arrow_table()
    batches = table.to_batches(BATCH_ROWS)

    def ours(encoding: Encoding) -> bytes:
        written = io.BytesIO()
        for chunk in encode(encoding, columns, table.schema, batches):
            written.write(chunk)
        return written.getvalue()

    def theirs() -> bytes:
        written = io.BytesIO()
        pl.DataFrame(table).write_json(written)
        return written.getvalue()

    check(ours("json"), table)
    contestants: dict[str, Callable[[], bytes]] = {"polars write_json": theirs}
    contestants |= {f"ours, {encoding}": partial(ours, encoding) for encoding in CONTENT_TYPES}
    times: dict[str, list[float]] = {name: [] for name in contestants}
    sizes = {name: len(contestant()) for name, contestant in contestants.items()}
    turns = list(contestants)
    for _ in range(options.rounds):
        for name in turns:
            started = time.perf_counter()
            contestants[name]()
            times[name].append(time.perf_counter() - started)
        turns = [*turns[1:], turns[0]]

    print(f"{options.rows} rows x {len(columns)} columns, median of {options.rounds} interleaved rounds")
    for name, taken in times.items():
        median = statistics.median(taken)
        print(f"{name:<18} {median * 1e3:8.1f} ms {sizes[name] / 1e6:8.1f} MB {sizes[name] / 1e6 / median:8.0f} MB/s")
    pairs = zip(times["ours, json"], times["polars write_json"], strict=True)
    ratio = statistics.median(mine / reference for mine, reference in pairs)
    print(f"ours, json / polars write_json = {ratio:.2f} (target: at most {TARGET})")
    print(f"another Python thread keeps {kept_by_a_spinner(partial(ours, 'json')):.0%} of its speed meanwhile")
    return 0 if ratio <= TARGET else 1


def check(body: bytes, table: pa.Table) -> None:
    """Compare our JSON with the values of the table, decimals digit by digit."""
    rows = json.loads(body, parse_float=Decimal)
    price = [Decimal(row["price"]) for row in rows]
    if [str(value) for value in price] != [str(value) for value in table["price"].to_pylist()]:
        sys.exit("decimals differ")
    for name in ("id", "big", "name", "returned"):
        if [row[name] for row in rows] != table[name].to_pylist():
            sys.exit(f"{name} differs")
    if [float(row["ratio"]) for row in rows] != table["ratio"].to_pylist():
        sys.exit("doubles differ")
    for name in ("day", "sold_at"):
        written = [
            value.isoformat(**({"timespec": "milliseconds"} if name == "sold_at" else {}))
            for value in table[name].to_pylist()
        ]
        if [row[name] for row in rows] != [value.removesuffix(".000") for value in written]:
            sys.exit(f"{name} differs")


def kept_by_a_spinner(work: Callable[[], bytes], seconds: float = 0.5) -> float:
    """Return which part of its speed a thread of pure Python keeps while *work* runs in another one."""
    counts = []
    for busy in (False, True):
        stop = threading.Event()

        def run(stop: threading.Event = stop) -> None:
            while not stop.is_set():
                work()

        worker = threading.Thread(target=run) if busy else None
        if worker:
            worker.start()
        count = 0
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            count += 1
        counts.append(count)
        stop.set()
        if worker:
            worker.join()
    return counts[1] / counts[0]


if __name__ == "__main__":
    sys.exit(main())

"""The data: generated tables and those of TPC-H. Files are created when a row needs them."""

import re
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import duckdb

from benchmarks.processes import REPOSITORY

#: 8 columns of mixed types. A hash spreads most columns, so that neither order nor run-length encoding helps.
ITEMS = """
    SELECT i::INTEGER AS id,
           i * 7919000003 AS big,
           (hash(i) % 1000003)::DOUBLE / 7.0 AS ratio,
           'item ' || i || ' of ' || (hash(i + 1) % 1000) AS name,
           ((hash(i + 2) % 100000000)::DECIMAL(18,3) / 1000)::DECIMAL(18,3) AS price,
           TIMESTAMP '2020-01-01' + to_milliseconds((hash(i + 3) % 150000000000)::BIGINT) AS sold_at,
           DATE '2000-01-01' + (hash(i + 4) % 10000)::INTEGER AS day,
           i % 3 = 0 AS returned
    FROM range({rows}) t(i)
"""

#: 5 columns, about 41 bytes per row as Arrow.
BIG = """
    SELECT i AS id, (i % 1000)::INTEGER AS k, i / 7.0::DOUBLE AS x, 'item ' || (i % 100000) AS s,
           TIMESTAMP '2024-01-01' + to_seconds(i) AS t
    FROM range({rows}) t(i)
"""

SMALL = "SELECT i AS a, i + 1 AS b FROM range({rows}) t(i)"

TPCH = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")


class Tables:
    """
    Parquet files below *directory*, created when first requested.

    The names are `small`, `items_<rows>`, `big_<rows>`, and those of TPC-H at a scale factor.
    """

    def __init__(self, directory: Path, tpch_scale: int = 1) -> None:
        self.directory = directory
        self._tpch_scale = tpch_scale
        directory.mkdir(parents=True, exist_ok=True)

    def parquet(self, name: str) -> Path:
        """Return the file of a table."""
        path = self.directory / f"{name}.parquet"
        if not path.exists():
            if name in TPCH:
                self._generate_tpch()
            else:
                kind, _, rows = name.partition("_")
                sql = {"small": SMALL, "items": ITEMS, "big": BIG}[kind].format(rows=rows or 1)
                duckdb.execute(f"COPY ({sql}) TO '{path}.part' (FORMAT parquet)")
                path.with_name(path.name + ".part").rename(path)
        return path

    def sqlite(self, names: tuple[str, ...]) -> Path:
        """Return a SQLite database of these tables, with an index on the first column of each."""
        path = self.directory / f"{'-'.join(names)}.sqlite"
        if not path.exists():
            unfinished = path.with_suffix(".part")
            unfinished.unlink(missing_ok=True)
            with sqlite3.connect(unfinished) as database:
                for name in names:
                    # SQLite has neither decimals nor times: store what a program would.
                    stored = duckdb.connect()
                    stored.execute(f"CREATE VIEW source AS FROM '{self.parquet(name)}'")
                    kinds = {row[0]: row[1] for row in stored.execute("DESCRIBE source").fetchall()}
                    columns = [f'"{column}"::{_sqlite_type(kind)}' for column, kind in kinds.items()]
                    stored.execute(f"SELECT {', '.join(columns)} FROM source")
                    database.execute(f"CREATE TABLE {name} ({', '.join(kinds)})")
                    marks = ", ".join("?" for _ in kinds)
                    while rows := stored.fetchmany(10_000):
                        database.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
                    database.execute(f"CREATE UNIQUE INDEX {name}_first ON {name} ({next(iter(kinds))})")
            database.close()
            unfinished.rename(path)
        return path

    def _generate_tpch(self) -> None:
        program = Path(sys.executable).with_name("tpchgen-cli")
        command: list[str | Path] = [program, "parquet", "-s", str(self._tpch_scale), "--output-dir", self.directory]
        subprocess.run(command, check=True, capture_output=True)


def tpch_queries() -> Mapping[str, str]:
    """Return the queries of TPC-H by name, Q1 to Q22, which the tests also use."""
    text = (REPOSITORY / "tests/clients/data/tpch.sql").read_text(encoding="utf-8")
    return dict(re.findall(r"^-- (Q\d+)\n(.*?)(?=^-- Q|\Z)", text, re.MULTILINE | re.DOTALL))


def _sqlite_type(kind: str) -> str:
    if kind.startswith("DECIMAL"):
        return "DOUBLE"
    return "VARCHAR" if kind in {"TIMESTAMP", "DATE"} else kind


class Copies(Tables):
    """Serves one small table under any number of names."""

    def parquet(self, name: str) -> Path:
        """Return the small table's file for each name `copy_*`."""
        return super().parquet("small" if name.startswith("copy_") else name)

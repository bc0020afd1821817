import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from datasources.errors import SnapshotError
from datasources.snapshots.snapshot import Order
from tests.datasources.sources.iceberg_tables import SqliteCatalog, place
from tests.datasources.sources.loads import load
from tests.datasources.sources.test_iceberg import catalogued, write
from tests.datasources.support import builder, deadline, refusal


def test_what_the_catalog_does_not_have_is_refused(tmp_path: Path) -> None:
    write(tmp_path, n=[1])

    assert refusal(tmp_path, catalogued(tmp_path, "ns.absent")) == "The catalog has no table 'ns.absent'."
    other = catalogued(tmp_path, iceberg_catalog_name="other")
    assert refusal(tmp_path, other) == "The catalog has no table 'ns.t'."
    SqliteCatalog(tmp_path).execute("UPDATE iceberg_tables SET metadata_location = NULL")
    assert refusal(tmp_path, catalogued(tmp_path)) == "The catalog has no metadata file for the table."


@pytest.mark.parametrize("location", ["../u", "TMP/u", "file://TMP/u", "TMP/wh/../u", "s3://lake/t", "TMP/wh2/t"])
def test_a_table_outside_of_the_warehouse_is_refused(tmp_path: Path, location: str) -> None:
    made = write(tmp_path, n=[1])
    for name in ("u", "wh2/t"):
        shutil.copytree(place(made), tmp_path / name)
    file = f"{location.replace('TMP', str(tmp_path))}/metadata/{Path(made.metadata_location).name}"
    SqliteCatalog(tmp_path).execute("UPDATE iceberg_tables SET metadata_location = ?", file)

    assert "The catalog says that 'ns.t' lies outside of 'wh'" in refusal(tmp_path, catalogued(tmp_path))


def test_a_catalog_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    write(tmp_path, n=[1])
    file = tmp_path / "catalog.db"
    dataset = catalogued(tmp_path)
    said = "The file of iceberg_catalog is damaged, or no SQL catalog of Iceberg."
    file.write_bytes(b"x" * 5000)
    assert refusal(tmp_path, dataset) == said

    file.unlink()
    with closing(sqlite3.connect(file)) as connection, connection:
        columns = "i || '' AS catalog_name, i || '' AS table_namespace, i || '' AS table_name, i AS metadata_location"
        endless = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT {columns} FROM n"
        connection.execute(f"CREATE VIEW iceberg_tables AS {endless}")
    with pytest.raises(SnapshotError, match=r"^The load was stopped after 0\.2 s"):
        builder(tmp_path).build(Order(dataset), deadline(0.2))

    file.unlink()
    assert refusal(tmp_path, dataset) == "The file of iceberg_catalog cannot be read: No such file or directory."
    os.mkfifo(file)
    assert refusal(tmp_path, dataset) == "The file of iceberg_catalog is not a regular file."


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_a_catalog_that_is_written_to_is_read_by_the_next_refresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: str
) -> None:
    monkeypatch.setattr("datasources.sources.iceberg_location._LOCK_S", 0.05)
    write(tmp_path, n=[1])
    dataset = catalogued(tmp_path)
    with closing(sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)) as writer:
        writer.execute(f"PRAGMA journal_mode = {journal}")
        # Only so does a writer keep readers of a write-ahead log out.
        writer.execute("PRAGMA locking_mode = exclusive")
        writer.execute("BEGIN EXCLUSIVE")
        writer.execute("UPDATE iceberg_tables SET table_name = table_name")

        said = refusal(tmp_path, dataset)

    assert said == "The file of iceberg_catalog is locked by another program; the next refresh reads it again."
    assert load(tmp_path, dataset) == [(1,)]

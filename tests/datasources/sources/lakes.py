"""Helpers for the tests of table formats."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb

from datasources.snapshots.snapshot import Order
from datasources.sources.registry import source_of
from datasources.sources.source import Load, Wanted
from runtimeconf.connectors import CONNECTORS
from runtimeconf.model import DatasetConfig
from tests.datasources import support
from tests.datasources.sources import databases
from tests.datasources.support import builder, deadline, new_load, rows


def table(directory: Path, from_: str, *, name: str = "d", **more: Any) -> DatasetConfig:
    """Declare a dataset as a YAML in *directory* would; *more* are params and fields of the dataset."""
    connector, _, rest = from_.partition(":")
    fields = {key: more.pop(key) for key in ("acceleration", "on_schema_change") if key in more}
    location = CONNECTORS[connector].locate(rest, directory)
    assert CONNECTORS[connector].check(location, more) is None
    return DatasetConfig(
        name=name, from_=from_, connector=connector, location=location, params=more, yaml_path="x", line=1, **fields
    )


def load(directory: Path, dataset: DatasetConfig, sql: str = "") -> list[tuple[Any, ...]]:
    """Load *dataset* into a snapshot, and return its rows, or what *sql* gives over it."""
    return rows(directory, builder(directory).build(Order(dataset), deadline()), sql)


def scan(
    directory: Path, dataset: DatasetConfig, wanted: Wanted | None = None
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the columns and the rows that the source gives a load that wants *wanted*."""
    begun = new_load(directory)
    begun = Load(
        deadline=begun.deadline, scratch=begun.scratch, scratch_bytes=begun.scratch_bytes, wanted=wanted or Wanted()
    )
    with source_of(dataset).open(begun) as opened, duckdb.connect() as connection:
        found = connection.execute(f"FROM {opened.bind(connection)} ORDER BY ALL")
        return [column[0] for column in found.description], found.fetchall()


def version(directory: Path, dataset: DatasetConfig) -> str:
    """Return the version of the source after a load of it."""
    with source_of(dataset).open(new_load(directory)) as opened, duckdb.connect() as connection:
        connection.execute(f"FROM {opened.bind(connection)}").fetchall()
        assert opened.version is not None
        assert str(directory) not in opened.version
        return opened.version


def has_changed(directory: Path, dataset: DatasetConfig, version: str) -> bool:
    return source_of(dataset).has_changed(version, new_load(directory))


def upload(client: Any, directory: Path, bucket: str, prefix: str) -> None:
    """Copy all files below *directory* into a bucket."""
    for path in directory.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), bucket, f"{prefix}/{path.relative_to(directory)}")


@contextmanager
def silent_server() -> Iterator[str]:
    """Run a server whose connections the system takes, and that never says anything; give its URL."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def refusal(directory: Path, dataset: DatasetConfig, limit_s: float = 60.0) -> str:
    """As `support.refusal`; the address of a server is not shown either."""
    sentence = support.refusal(directory, dataset, limit_s)
    assert "127.0.0.1" not in sentence
    return sentence


def outlive(directory: Path, dataset: DatasetConfig, root: Path, change: Callable[[], None]) -> None:
    """As `databases.outlive`: the source is away while its directory *root* has another name."""
    away = directory / "away"
    databases.outlive(
        directory,
        dataset,
        change=change,
        stop=lambda: root.rename(away),
        start=lambda: away.rename(root),
        error="does not exist.",
    )

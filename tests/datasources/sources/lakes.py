"""What the tests of table formats share: declared tables, and what is said about bad ones."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from datasources.errors import SourceError
from datasources.refresh.service import DatasetService
from datasources.snapshots.snapshot import Order
from datasources.sources.registry import source_of
from datasources.sources.source import Load, Wanted
from runtimeconf.connectors import CONNECTORS
from runtimeconf.model import AccelerationConfig, DatasetConfig
from tests.datasources.support import builder, configure, deadline, files_below, new_load, rows, wait_for


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


def refusal(directory: Path, dataset: DatasetConfig, limit_s: float = 60.0) -> str:
    """Return what is said about a table that is refused: one line without server paths and secrets."""
    loading = builder(directory)
    before = files_below(directory)
    secrets = (value for name, value in dataset.params.items() if name.startswith("s3_"))
    with pytest.raises(SourceError) as caught:
        loading.build(Order(dataset), deadline(limit_s))
    sentence = str(caught.value)
    for hidden in (str(directory), "/proc", "\n", "127.0.0.1", "Traceback", *secrets):
        assert hidden not in sentence
    assert sentence.endswith(".")
    assert files_below(directory) == before
    return sentence


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


def outlive(directory: Path, dataset: DatasetConfig, place: Path, change: Callable[[], None]) -> None:
    """
    Show that a dataset of one row sees a *change*, which adds a row, keeps its rows while its source is away for three
    intervals, and sees the next change when the source is back. *place* is the directory of the source.
    """
    dataset = replace(dataset, acceleration=AccelerationConfig(refresh_check_interval_s=0.2))
    service = DatasetService(configure(directory, dataset), exclusive=True)

    def state() -> Any:
        return service.datasets()[0]

    def failures() -> int:
        return len([run for run in service.history(dataset.name) if run.error])

    service.start()
    try:
        wait_for(service.is_loaded, "the first load")
        assert state().rows == 1
        change()
        wait_for(lambda: state().rows == 2, "the change")

        place.rename(directory / "away")
        before = failures()
        wait_for(lambda: failures() >= before + 3, "three intervals")
        assert state().rows == 2
        assert state().error.endswith("does not exist.")

        (directory / "away").rename(place)
        change()
        wait_for(lambda: state().rows == 3 and state().error is None, "the source to be back")
    finally:
        service.stop(30)

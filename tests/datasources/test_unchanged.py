"""A source that has not changed is left unread, and only then."""

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from datasources.refresh.loader import LoaderProcess
from datasources.snapshots.snapshot import Builder, Order, SnapshotBuilder
from queryengine.manifest import SNAPSHOT_DIRECTORY, Snapshot, snapshot_path
from runtimeconf.model import AccelerationConfig, DatasetConfig
from tests.datasources.sources.test_files import put
from tests.datasources.support import configure, deadline, declare, files_below, loaded, rows
from tests.datasources.test_snapshot import flip

SQL = "SELECT a FROM d"


@pytest.fixture(params=["here", pytest.param("process", marks=pytest.mark.exhaustive)])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Builder]:
    put(tmp_path, "a.csv", "a,b\n1,x\n2,y\n")
    (tmp_path / "state" / SNAPSHOT_DIRECTORY).mkdir(parents=True)
    here = SnapshotBuilder.of(configure(tmp_path))
    with closing(here if request.param == "here" else LoaderProcess(here)) as made:
        yield made


@pytest.fixture
def dataset(tmp_path: Path) -> DatasetConfig:
    return declare(tmp_path, "a.csv")


def again(made: Builder, dataset: DatasetConfig, served: Snapshot, sql: str | None = None) -> Snapshot | None:
    return made.build(Order(dataset, sql, served=served, skip_unchanged=True), deadline())


@pytest.mark.parametrize("sql", [None, SQL])
def test_an_unchanged_source_is_loaded_again_only_on_request(
    made: Builder, dataset: DatasetConfig, tmp_path: Path, sql: str | None
) -> None:
    served = loaded(made, dataset, sql, deadline())

    assert again(made, dataset, served, sql) is None

    assert files_below(tmp_path) == [f"snapshots/{served.file}"]
    assert list((tmp_path / "state/refresh_tmp").iterdir()) == []
    assert loaded(made, dataset, sql, deadline(), served=served).file != served.file


def test_a_changed_source_is_read(made: Builder, dataset: DatasetConfig, tmp_path: Path) -> None:
    served = loaded(made, dataset, None, deadline())
    put(tmp_path, "new.csv", "a,b\n3,z\n")
    (tmp_path / "new.csv").rename(tmp_path / "a.csv")

    new = again(made, dataset, served)

    assert new is not None
    assert rows(tmp_path, new) == [(3, "z")]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("then", "now"), [(SQL, None), (None, SQL), (SQL, SQL + " ORDER BY a")])
def test_another_refresh_sql_gives_other_rows_of_the_same_source(
    made: Builder, dataset: DatasetConfig, then: str | None, now: str | None
) -> None:
    served = loaded(made, dataset, then, deadline())

    assert again(made, dataset, served, now) is not None


def test_another_definition_and_an_unknown_version_are_no_reason_to_skip(made: Builder, dataset: DatasetConfig) -> None:
    served = loaded(made, dataset, None, deadline())

    assert again(made, dataset, replace(served, source_version=None)) is not None
    other = replace(dataset, acceleration=AccelerationConfig(refresh_sql=SQL))
    assert again(made, other, served) is not None


@pytest.mark.exhaustive
def test_r18_a_damaged_snapshot_is_loaded_again_with_a_warning(
    made: Builder, dataset: DatasetConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = loaded(made, dataset, None, deadline())
    flip(snapshot_path(tmp_path / "state", served), 20_000)

    new = again(made, dataset, served)

    assert new is not None
    assert rows(tmp_path, new) == [(1, "x"), (2, "y")]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    said = "The snapshot of d is damaged: its checksum is wrong. It is loaded from the source again."
    assert record.getMessage() == said

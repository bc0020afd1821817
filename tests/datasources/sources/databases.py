"""Helpers and checks for all sources that are databases."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datasources.errors import SnapshotError
from datasources.refresh.service import DatasetService
from datasources.snapshots.snapshot import Order
from datasources.sources.registry import source_of
from datasources.sources.source import Bound, Wanted
from queryengine.manifest import Snapshot, read_manifest
from runtimeconf.model import AccelerationConfig, DatasetConfig
from tests.datasources.support import builder, configure, deadline, files_below, new_load, rows, wait_for


def declare_table(connector: str, location: str, params: Mapping[str, str], **more: Any) -> DatasetConfig:
    """Declare the dataset `d` as the YAML would, once what it says has been read."""
    return DatasetConfig(
        name="d",
        from_=f"{connector}:{location}",
        connector=connector,
        location=location,
        params=params,
        acceleration=more.pop("acceleration", AccelerationConfig()),
        yaml_path="datasets[0]",
        line=1,
        **more,
    )


def build(directory: Path, dataset: DatasetConfig, limit_s: float = 60.0) -> Snapshot:
    """Load *dataset*."""
    return builder(directory).build(Order(dataset), deadline(limit_s))


def loaded(directory: Path, dataset: DatasetConfig, sql: str = "") -> list[tuple[Any, ...]]:
    """Load *dataset* and return its rows, or what *sql* gives over it."""
    return rows(directory, build(directory, dataset), sql)


def types(directory: Path, dataset: DatasetConfig) -> dict[str, str]:
    """Load *dataset* and return the engine's types of its columns."""
    return {column.name: column.type for column in build(directory, dataset).columns}


def read(directory: Path, dataset: DatasetConfig, *bounds: Bound, columns: frozenset[str] | None = None) -> list[Any]:
    """Return the rows that the source itself sends when it is told what is wanted."""
    load = replace(new_load(directory), wanted=Wanted(columns=columns, bounds=bounds))
    with source_of(dataset).open(load) as scan:
        return scan._reader.read_all().to_pylist()  # type: ignore[attr-defined, no-any-return]


def outlive(
    directory: Path,
    dataset: DatasetConfig,
    *,
    change: Callable[[], object],
    stop: Callable[[], object],
    start: Callable[[], object],
    error: str = "",
) -> None:
    """
    Show that a dataset follows its source, and keeps its rows while the source is away.

    *dataset* has one row at first, and each *change* adds one. *stop* and *start* take the source away and bring it
    back; *error* ends the sentence that is shown meanwhile.
    """
    often = replace(dataset, acceleration=AccelerationConfig(refresh_check_interval_s=0.2))
    service = DatasetService(configure(directory, often), exclusive=True)
    service.start()

    def holds(count: int) -> bool:
        snapshots = read_manifest(directory / "state").snapshots
        return bool(snapshots) and snapshots[0].rows == count

    def failures() -> int:
        return sum(run.status == "failed" for run in service.history("d"))

    try:
        wait_for(lambda: holds(1), "the first load")
        change()
        wait_for(lambda: holds(2), "the change")
        change()
        stop()
        failed = failures()
        wait_for(lambda: failures() >= failed + 3, "three failures")
        (state,) = service.datasets()
        assert state.rows in {2, 3}
        assert state.error
        assert state.error.endswith(error)
        start()
        wait_for(lambda: holds(3) and service.datasets()[0].status == "Ready", "the source that is back")
    finally:
        service.stop(30)


def leftovers() -> tuple[int, int]:
    """Return how many descriptors and threads this process has."""
    return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()


def time_out_repeatedly(directory: Path, dataset: DatasetConfig, rounds: int) -> None:
    """Load *dataset*, whose server never answers, again and again: the time limit holds and nothing is left."""
    made = builder(directory)

    def one() -> None:
        with pytest.raises(SnapshotError, match="was stopped after"):
            made.build(Order(dataset), deadline(0.1))

    one()
    before = leftovers()
    for _ in range(rounds - 1):
        one()
    # Other tests' connections may end or a library start a thread meanwhile; what a load leaves, each leaves.
    assert all(now - then < rounds // 2 for now, then in zip(leftovers(), before, strict=True))
    assert files_below(directory) == []

"""Refreshers over the state directory of a test, and the clock that they go by."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from datasources.refresh.refresher import Refresher
from runtimeconf.model import DatasetConfig
from tests.datasources.sources.test_files import put
from tests.datasources.support import Start, configure, declare, settled


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start refreshers over the state directory of the test, one at a time; the last is stopped at the end."""
    started: list[Refresher] = []

    def start_one(*datasets: DatasetConfig, ready_state: Any = "on_load", **options: Any) -> Refresher:
        stop_all()
        (tmp_path / "state").mkdir(exist_ok=True)
        refresher = Refresher(configure(tmp_path, *datasets, ready_state=ready_state), **options)
        started.append(refresher)
        refresher.start()
        return refresher

    def stop_all() -> None:
        while started:
            assert started.pop().stop(30)

    yield start_one
    stop_all()


@pytest.fixture
def begin(start: Start) -> Start:
    """Start refreshers as `start` does, and wait for the loads of the start."""

    def begin_one(*datasets: DatasetConfig, **options: Any) -> Refresher:
        refresher = start(*datasets, **options)
        for dataset in datasets:
            settled(refresher, dataset.name)
        return refresher

    return begin_one


@pytest.fixture
def refresher(tmp_path: Path, begin: Start) -> Refresher:
    """A refresher that has loaded the dataset `d` from `a.csv`."""
    put(tmp_path, "a.csv")
    return begin(declare(tmp_path, "a.csv"))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the clock of intervals, to be set; the wall clock stands still, which must not matter."""
    monkeypatch.setattr(time, "time", lambda: 0.0)
    return [0.0]

"""Refreshers over the state directory of a test, and the clock that they go by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from datasources.refresh.refresher import Refresher
from runtimeconf.model import DatasetConfig
from tests.datasources.support import configure


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Refresher]]:
    """Start refreshers over the state directory of the test, one at a time; the last is stopped at the end."""
    started: list[Refresher] = []

    def start_one(*datasets: DatasetConfig, **options: Any) -> Refresher:
        stop_all()
        (tmp_path / "state").mkdir(exist_ok=True)
        refresher = Refresher(configure(tmp_path, *datasets), **options)
        started.append(refresher)
        refresher.start()
        return refresher

    def stop_all() -> None:
        while started:
            assert started.pop().stop(30)

    yield start_one
    stop_all()


@pytest.fixture
def clock() -> list[float]:
    """The time of the clock of intervals, to be set."""
    return [0.0]

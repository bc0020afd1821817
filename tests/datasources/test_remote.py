"""A process that only asks: it knows what the one that refreshes says, and never becomes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from datasources.errors import DatasetsUnavailableError
from datasources.refresh.remote import RemoteDatasets
from datasources.refresh.service import DatasetService
from tests.datasources.sources.test_files import put
from tests.datasources.support import configure, declare, wait_for


def test_it_asks_the_holder_and_never_takes_over(tmp_path: Path) -> None:
    put(tmp_path, "a.csv")
    config = configure(tmp_path, declare(tmp_path, "a.csv"))
    remote = RemoteDatasets(config)
    assert not remote.is_loaded()
    with pytest.raises(DatasetsUnavailableError):
        remote.datasets()

    service = DatasetService(config, exclusive=True)
    service.start()
    wait_for(remote.is_loaded, "the load")
    assert [state.name for state in remote.datasets()] == ["d"]

    service.stop(30)
    assert remote.is_loaded()
    with pytest.raises(DatasetsUnavailableError):
        remote.datasets()
    successor = DatasetService(config, exclusive=True)
    successor.start()
    assert remote.datasets()[0].loaded_once
    successor.stop(30)


def test_data_that_is_not_loaded_yet_is_reported(tmp_path: Path) -> None:
    config = configure(tmp_path, declare(tmp_path, "absent.csv"))
    service = DatasetService(config, exclusive=True)
    service.start()

    assert not RemoteDatasets(config).is_loaded()
    service.stop(30)

from pathlib import Path

import pytest

from datasources.errors import DatasetsUnavailableError
from datasources.refresh.service import DatasetService
from datasources.state import get_datasets, set_datasets, start_on_demand
from tests.datasources.support import configure


def test_a_control_is_started_on_demand_and_not_again_after_it_was_removed(tmp_path: Path) -> None:
    control = DatasetService(configure(tmp_path), exclusive=False)
    start_on_demand(lambda: set_datasets(control))

    assert get_datasets() is get_datasets() is control
    set_datasets(None)
    with pytest.raises(DatasetsUnavailableError):
        get_datasets()

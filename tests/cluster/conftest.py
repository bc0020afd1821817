from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.clusters import ClusterEngine, Sail, config_of, in_place, write_flights
from tests.runtimeconf.conftest import faults, load_text, yaml_file

__all__ = ["faults", "load_text", "yaml_file"]

MakeClusterEngine = Callable[..., ClusterEngine]

VIEWS = {"few": "SELECT id FROM flights WHERE id < 3", "unfit": "SELECT altitude FROM flights"}


@pytest.fixture(scope="session")
def sail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sail]:
    """A cluster that all tests of this process share. A test that hurts it starts its own."""
    with Sail(tmp_path_factory.mktemp("sail")) as started:
        yield started


@pytest.fixture
def make_cluster_engine(sail: Sail, tmp_path: Path) -> Iterator[MakeClusterEngine]:
    """Return an engine over `flights`, `missing` and `VIEWS` on the shared cluster, or on another one."""
    with ExitStack() as made:

        def make(cluster: Sail = sail, **query: Any) -> ClusterEngine:
            datasets = [in_place("flights", write_flights(tmp_path)), in_place("missing", tmp_path / "nowhere")]
            config = config_of(tmp_path / "state", cluster.address, datasets, VIEWS, **query)
            return made.enter_context(closing(ClusterEngine(config)))

        yield make


@pytest.fixture
def engine(make_cluster_engine: MakeClusterEngine) -> ClusterEngine:
    return make_cluster_engine()

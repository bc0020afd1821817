from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from queryengine.cache.cached_engine import CachedEngine, remembering
from runtimeconf.model import MIB, ResultsCacheConfig, RuntimeConfig
from tests.queryengine.conftest import FEW, KINDS, config_of
from tests.queryengine.publishing import Publisher, wait_until

StartCached = Callable[..., CachedEngine]

CACHED_VIEWS = {"few": FEW, "noise": "SELECT random() AS r", "over_noise": "FROM noise"}


def cached_config(*args: Any, **query: Any) -> RuntimeConfig:
    """As `config_of`, with a results cache."""
    return replace(config_of(*args, **query), results_cache=ResultsCacheConfig(enabled=True))


@pytest.fixture(scope="module", params=KINDS)
def cached(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Publisher]]:
    """An engine of either kind, and the publisher of its data."""
    publisher = Publisher(tmp_path_factory.mktemp("cached") / "state")
    publisher.publish(flights="SELECT 1 AS id", numbers="SELECT range AS n FROM range(300000)")
    config = cached_config(
        publisher.state_dir, ("flights", "numbers", "absent"), CACHED_VIEWS, workers=2, timeout_s=100.0
    )
    with KINDS[request.param](config) as running:
        yield (running, config), publisher


@pytest.fixture
def start(cached: tuple[Any, Publisher]) -> Iterator[StartCached]:
    """Put a cache before the shared engine, which outlives it."""
    (running, config), _ = cached

    def make(max_bytes: int = 16 * MIB) -> CachedEngine:
        cache = ResultsCacheConfig(enabled=True, max_bytes=max_bytes)
        made = remembering(running, replace(config, results_cache=cache))
        assert isinstance(made, CachedEngine)
        return made

    yield make
    wait_until(lambda: not running.active(""))


@pytest.fixture
def engine(start: StartCached) -> CachedEngine:
    return start()


@pytest.fixture
def publisher(cached: tuple[Any, Publisher]) -> Publisher:
    return cached[1]

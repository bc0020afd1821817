"""A runtime, and each proxy of `deploy/` in front of it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.runtime import FlightServer
from tests.deploy.fronts import Front, need, start_runtime


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlightServer]:
    with start_runtime(tmp_path_factory.mktemp("runtime"), trusted_proxies=["127.0.0.1"]) as running:
        yield running


@pytest.fixture(params=["nginx", "caddy"])
def begin(
    request: pytest.FixtureRequest, tmp_path: Path, tls_files: tuple[Path, Path]
) -> Callable[[FlightServer], Front]:
    """Make a front of each kind for a runtime."""
    need(request.param)
    return lambda runtime: Front(request.param, tmp_path, runtime, tls_files)


@pytest.fixture
def front(begin: Callable[[FlightServer], Front], runtime: FlightServer) -> Iterator[Front]:
    with begin(runtime) as running:
        yield running

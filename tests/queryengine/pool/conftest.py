from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from queryengine.pool.client import EngineClient
from queryengine.pool.worker import GRACE_S as REAL_GRACE_S
from runtimeconf.model import MIB
from tests.queryengine import bare_engine
from tests.queryengine.conftest import FLIGHTS
from tests.queryengine.engine_process import EngineProcess
from tests.queryengine.pool.broker_bench import Bench, MakeBench, benches
from tests.queryengine.pool.client_process import Runner, Runtime, runtimes
from tests.queryengine.publishing import Publisher
from tests.queryengine.scripted_engine import MakeTier, Tier, tiers

# A real broker and a scripted engine, with clients.


@pytest.fixture
def make_tier() -> Iterator[MakeTier]:
    with tiers() as make:
        yield make


@pytest.fixture
def tier(make_tier: MakeTier) -> Iterator[Tier]:
    """An engine whose slots are all given back in the end."""
    made = make_tier()
    yield made
    made.wait_until_idle()


@pytest.fixture
def engine(tier: Tier) -> EngineClient:
    return tier.client()


# A real broker alone.


@pytest.fixture
def make_bench() -> Iterator[MakeBench]:
    with benches() as make:
        yield make


@pytest.fixture
def bench(make_bench: MakeBench) -> Bench:
    return make_bench()


# An engine in a process of its own, with clients.


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with runtimes() as made:
        yield made


@pytest.fixture
def process(runtime: Runtime) -> EngineProcess:
    return runtime.engine()


@pytest.fixture
def client(runtime: Runtime, process: EngineProcess) -> EngineClient:
    return runtime.client(process)


@pytest.fixture
def runner(runtime: Runtime, process: EngineProcess) -> Runner:
    return runtime.runner(process)


# Workers under gunicorn's own arbiter.


@pytest.fixture
def heartbeat() -> Iterator[int]:
    """The descriptor of a heartbeat file."""
    opened = os.memfd_create("heartbeat")
    yield opened
    os.close(opened)


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bare_engine.Engine]:
    """An engine whose worker the tests kill, which loses its coverage data."""
    directory = tmp_path_factory.mktemp("mortal")
    Publisher(directory).publish(flights=FLIGHTS)
    with bare_engine.running(directory, constants={"GRACE_S": REAL_GRACE_S}, memory_limit_bytes=256 * MIB) as started:
        yield started


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """A state directory with the dataset `flights`, for an engine for one test."""
    Publisher(tmp_path).publish(flights=FLIGHTS)
    return tmp_path

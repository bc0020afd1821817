"""A whole runtime in this process, with real keys, engine and datasets."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

import authkeys.state
import datasources.state
import queryengine.state
import runtimeconf.state
import telemetry.state
from authkeys.access import build
from datasources.refresh.service import DatasetService
from queryengine.pool.inprocess import InProcessEngine
from runtimeconf.model import (
    AccelerationConfig,
    AuthConfig,
    DatasetConfig,
    Documentation,
    McpConfig,
    QueryConfig,
    RuntimeConfig,
)
from runtimeconf.secret import Secret
from telemetry.memory import Memory
from tests.system.harness import K1, K2, wait_for

PATIENCE_S = 60.0


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory) -> RuntimeConfig:
    directory = tmp_path_factory.mktemp("runtime")
    source = directory / "orders.csv"
    source.write_text("id,name\n" + "".join(f"{number},name {number}\n" for number in range(100)))
    return RuntimeConfig(
        file=directory / "runtime.yaml",
        state_dir=directory / "state",
        auth=AuthConfig(enabled=True, keys=(Secret(K1), Secret(K2))),
        mcp=McpConfig(enabled=True),
        query=QueryConfig(timeout_s=20.0, workers=2, max_queued=2, queue_timeout_s=1.0),
        datasets=(
            DatasetConfig(
                name="Orders",
                from_="file:orders.csv",
                location=str(source),
                acceleration=AccelerationConfig(enabled=True),
            ),
            DatasetConfig(
                name="fixed",
                from_="file:orders.csv",
                location=str(source),
                documentation=Documentation(description="Never refreshed", metadata={"owner": "ops"}),
            ),
        ),
    )


@pytest.fixture(scope="session")
def service(config: RuntimeConfig) -> Iterator[DatasetService]:
    running = DatasetService(config, exclusive=True)
    running.start()
    wait_for(running.is_loaded, "the datasets", PATIENCE_S)
    yield running
    running.stop(PATIENCE_S)


@pytest.fixture(scope="session")
def engine(config: RuntimeConfig, service: DatasetService) -> Iterator[InProcessEngine]:
    running = InProcessEngine(config)
    yield running
    running.close()


@pytest.fixture
def runtime(config: RuntimeConfig, service: DatasetService, engine: InProcessEngine) -> Iterator[RuntimeConfig]:
    """The whole runtime, with authentication on."""
    with running_on(config):
        datasources.state.set_datasets(service)
        queryengine.state.set_engine(engine)
        yield config


@pytest.fixture
def memory(runtime: RuntimeConfig) -> Iterator[Memory]:
    """The whole runtime, which remembers the statements of the test."""
    remembered = Memory(runtime.history)
    telemetry.state.deliver_to(remembered.put, remembered.answer)
    yield remembered
    telemetry.state.disconnect()


@pytest.fixture
def idle(config: RuntimeConfig) -> Iterator[RuntimeConfig]:
    """The runtime with keys, but without engine and datasets."""
    with running_on(config):
        yield config


@pytest.fixture
def auth_off(config: RuntimeConfig) -> Iterator[RuntimeConfig]:
    """Like `idle`, with authentication off."""
    with running_on(replace(config, auth=AuthConfig())) as changed:
        yield changed


@contextmanager
def running_on(config: RuntimeConfig) -> Iterator[RuntimeConfig]:
    """Configure this process with *config* and its key set; start nothing else."""
    queryengine.state.set_engine(None)
    datasources.state.set_datasets(None)
    runtimeconf.state.set_config(config)
    authkeys.state.set_access(build(config))
    try:
        yield config
    finally:
        runtimeconf.state.set_config(None)
        authkeys.state.set_access(None)
        queryengine.state.set_engine(None)
        datasources.state.set_datasets(None)

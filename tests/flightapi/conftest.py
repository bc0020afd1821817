"""One endpoint for all tests that do not change it."""

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

import pytest

from flightapi.protocol.messages import PATHS
from queryengine.pool.inprocess import InProcessEngine
from runtimeconf.model import RuntimeConfig
from tests.flightapi.endpoint import FINGERPRINTS, REQUESTS, Endpoint, Metadata, Outcomes, Silent, serving
from tests.queryengine.conftest import config_of
from tests.queryengine.publishing import Publisher, wait_until

FLIGHTS = "SELECT i AS id, 'n' || i AS name, i % 3 AS carrier FROM range(1000) t(i)"


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory) -> RuntimeConfig:
    publisher = Publisher(tmp_path_factory.mktemp("flight") / "state")
    publisher.publish(flights=FLIGHTS)
    views = {"few": "SELECT * FROM flights WHERE id < 3"}
    return config_of(publisher.state_dir, ("flights", "unloaded"), views, timeout_s=60.0)


@pytest.fixture(scope="session")
def engine(config: RuntimeConfig) -> Iterator[InProcessEngine]:
    with closing(InProcessEngine(config)) as running:
        yield running


@pytest.fixture(scope="session")
def _endpoint(config: RuntimeConfig, engine: InProcessEngine) -> Iterator[Endpoint]:
    with serving(config, engine) as running:
        yield running


@pytest.fixture
def endpoint(_endpoint: Endpoint, engine: InProcessEngine) -> Iterator[Endpoint]:
    """An endpoint with the dataset `flights` and the view `few`; `unloaded` has no data. It is idle after a test."""
    yield _endpoint
    wait_until(lambda: not any(engine.active(fingerprint) for fingerprint in FINGERPRINTS))


@pytest.fixture
def silent() -> Iterator[Silent]:
    """Begins calls that send nothing more after some messages. They end with the test."""
    silence = threading.Event()
    calls: list[Any] = []

    def begun(messages: Iterable[bytes]) -> Iterator[bytes]:
        yield from messages
        silence.wait()

    def begin(endpoint: Endpoint, method: str, metadata: Metadata = (), messages: Iterable[bytes] = ()) -> Any:
        calls.append(endpoint.begin(PATHS[method], begun(messages), metadata))
        return calls[-1]

    yield begin
    silence.set()
    for call in calls:
        call.cancel()


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO):
        yield


@pytest.fixture
def outcomes(caplog: pytest.LogCaptureFixture) -> Outcomes:
    """Return the outcomes of this test's statements in the log. Those of earlier tests may be logged late."""
    first = next(REQUESTS)

    def logged() -> list[str]:
        fields = [record.fields for record in caplog.records if record.name == "flightapi.queries"]  # type: ignore[attr-defined]
        return [one["outcome"] for one in fields if int(one["request_id"], 16) > first]

    return logged

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from queryengine.engine import Query
from queryengine.pool import client_result
from queryengine.pool.client import EngineClient
from queryengine.pool.worker import GRACE_S as REAL_GRACE_S
from runtimeconf.model import MIB
from tests.queryengine import bare_engine
from tests.queryengine.conftest import FLIGHTS
from tests.queryengine.engine_process import EngineProcess
from tests.queryengine.pool.broker_bench import Bench, MakeBench
from tests.queryengine.publishing import Publisher
from tests.queryengine.scripted_engine import MakeTier, Tier


@pytest.fixture
def made() -> Iterator[ExitStack]:
    """Closes in the end what a test has made."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def short_dir(made: ExitStack) -> Path:
    """A directory whose path is short enough for sockets."""
    return Path(made.enter_context(tempfile.TemporaryDirectory()))


# A real broker and a scripted engine, with clients.


@pytest.fixture
def make_tier(made: ExitStack, short_dir: Path) -> MakeTier:
    return lambda **settings: made.enter_context(closing(Tier(short_dir, **settings)))


@pytest.fixture
def tier(make_tier: MakeTier) -> Iterator[Tier]:
    """An engine whose slots are all given back in the end."""
    made = make_tier()
    yield made
    made.wait_until_idle()


@pytest.fixture
def engine(tier: Tier) -> EngineClient:
    return tier.client()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have clients kill workers that do not stop at once."""
    monkeypatch.setattr(client_result, "STOP_S", 0.05)
    monkeypatch.setattr(client_result, "CLIENT_KILL_S", 0.1)


# A real broker alone.


@pytest.fixture
def make_bench(made: ExitStack, short_dir: Path) -> MakeBench:
    return lambda **settings: made.enter_context(closing(Bench(short_dir / "broker.sock", **settings)))


@pytest.fixture
def bench(make_bench: MakeBench) -> Bench:
    return make_bench()


# An engine in a process of its own, with a client.

RIGHT = b'[{"n":1000}]'


def ask(client: EngineClient, sql: str = "SELECT count(*) AS n FROM flights", **query: Any) -> bytes:
    with closing(client.run(Query(sql=sql, **query))) as result:
        return b"".join(result)


Start = Callable[..., tuple[EngineProcess, EngineClient]]


@pytest.fixture
def start(made: ExitStack, short_dir: Path) -> Iterator[Start]:
    Publisher(short_dir).publish(flights=FLIGHTS)

    def start(**settings: Any) -> tuple[EngineProcess, EngineClient]:
        process = made.enter_context(closing(EngineProcess(short_dir, **settings)))
        return process, made.enter_context(closing(process.client()))

    yield start
    print((short_dir / "engine.log").read_text())  # noqa: T201 - shown when a test fails


@pytest.fixture
def started(start: Start) -> tuple[EngineProcess, EngineClient]:
    return start()


@pytest.fixture
def process(started: tuple[EngineProcess, EngineClient]) -> EngineProcess:
    return started[0]


@pytest.fixture
def client(started: tuple[EngineProcess, EngineClient]) -> EngineClient:
    return started[1]


# Workers under gunicorn's own arbiter.


@pytest.fixture
def heartbeat() -> Iterator[int]:
    """The descriptor of a heartbeat file."""
    opened = os.memfd_create("heartbeat")
    yield opened
    os.close(opened)


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bare_engine.Engine]:
    """An engine whose worker the tests kill."""
    directory = tmp_path_factory.mktemp("mortal")
    Publisher(directory).publish(flights=FLIGHTS)
    with bare_engine.running(directory, constants={"GRACE_S": REAL_GRACE_S}, memory_limit_bytes=256 * MIB) as started:
        yield started


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """A state directory with the dataset `flights`, for an engine for one test."""
    Publisher(tmp_path).publish(flights=FLIGHTS)
    return tmp_path

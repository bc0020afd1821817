from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest

from queryengine.engine import QueryEngine
from queryengine.execution.instance import EngineInstance
from queryengine.execution.session_manager import SessionManager
from queryengine.execution.views import gate_views
from queryengine.gate.gate import Gate
from queryengine.manifest import Manifest, read_manifest
from queryengine.pool.inprocess import InProcessEngine
from runtimeconf.model import DatasetConfig, QueryConfig, RuntimeConfig, ViewConfig
from tests.queryengine import worker_engine
from tests.queryengine.encoders.answers import connect
from tests.queryengine.execution.instances import declared
from tests.queryengine.publishing import Publisher, wait_until
from tests.queryengine.statements import TABLES, VIEWS

MakeConfig = Callable[..., RuntimeConfig]
MakeEngine = Callable[..., InProcessEngine]
StartEngine = Callable[..., QueryEngine]

OpenSession = Callable[..., EngineInstance]
MakeManager = Callable[..., SessionManager]

KINDS: dict[str, Callable[[RuntimeConfig], AbstractContextManager[QueryEngine]]] = {
    "in process": lambda config: closing(InProcessEngine(config)),
    "workers": worker_engine.running,
}

FLIGHTS = "SELECT i AS id, 'n' || i AS name, i % 3 AS carrier FROM range(1000) t(i)"
FEW = "SELECT * FROM flights WHERE id < 3"


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    return Publisher(tmp_path / "state")


def config_of(
    state_dir: Path, datasets: tuple[str, ...] = ("flights",), views: Mapping[str, str] | None = None, **query: Any
) -> RuntimeConfig:
    """Return the configuration of an engine over those datasets and views, with limits out of *query*."""
    return RuntimeConfig(
        file=state_dir.parent / "runtime.yaml",
        state_dir=state_dir,
        query=QueryConfig(**{"timeout_s": 30.0, **query}),
        datasets=tuple(
            DatasetConfig(name=name, from_=f"file:{name}.csv", location=f"/{name}.csv") for name in datasets
        ),
        views=tuple(declared(**(views or {}))),
    )


@pytest.fixture
def make_config(publisher: Publisher) -> MakeConfig:
    return partial(config_of, publisher.state_dir)


@pytest.fixture
def make_engine(make_config: MakeConfig) -> Iterator[MakeEngine]:
    with ExitStack() as engines:
        yield lambda *args, **kwargs: engines.enter_context(closing(InProcessEngine(make_config(*args, **kwargs))))


@pytest.fixture
def open_session(make_config: MakeConfig, publisher: Publisher, tmp_path: Path) -> Iterator[OpenSession]:
    with ExitStack() as sessions:

        def open_(*, tolerant: bool = False, manifest: Manifest | None = None, **settings: Any) -> EngineInstance:
            config = make_config(**settings)
            datasets = frozenset(dataset.name for dataset in config.datasets)
            views = gate_views(config.views, datasets, Gate(), config.file)
            newest = manifest or read_manifest(publisher.state_dir)
            session = EngineInstance(config, newest, views, tmp_path / "scratch", tolerant=tolerant)
            return sessions.enter_context(closing(session))

        yield open_


@pytest.fixture
def opened() -> list[int]:
    """The generations of the manifests that the sessions of `make_manager` opened."""
    return []


@pytest.fixture
def make_manager(
    publisher: Publisher, make_config: MakeConfig, tmp_path: Path, opened: list[int]
) -> Iterator[MakeManager]:
    with ExitStack() as made:

        def make(
            before_open: Callable[[], None] = lambda: None,
            views: Sequence[ViewConfig] = (),
            relations: Sequence[str] = ("flights",),
            replaced: Path | None = None,
            **settings: Any,
        ) -> SessionManager:
            config = make_config(**settings)
            gated = gate_views(views, frozenset(relations), Gate(), tmp_path / "runtime.yaml")

            def open_session(manifest: Manifest, tolerant: bool) -> EngineInstance:
                before_open()
                session = EngineInstance(
                    config, manifest, gated, tmp_path / f"scratch-{len(opened)}", tolerant=tolerant
                )
                opened.append(manifest.generation)
                return session

            manager = SessionManager(publisher.state_dir, open_session, replaced=replaced)
            made.callback(manager.close, 5)
            return manager

        yield make


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with connect() as opened:
        yield opened


# The engines of the `test_engine*` modules, whose tests run on each kind of engine.


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def start_engine(kind: str, make_config: MakeConfig) -> Iterator[StartEngine]:
    """Start an engine for one test."""
    with ExitStack() as engines:
        yield lambda *args, **kwargs: engines.enter_context(KINDS[kind](make_config(*args, **kwargs)))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], tuple[QueryEngine, Path]]]:
    """One engine of each kind, with its state directory, for all tests that change nothing; started on first use."""
    started: dict[str, tuple[QueryEngine, Path]] = {}
    with ExitStack() as engines:

        def get(kind: str) -> tuple[QueryEngine, Path]:
            if kind not in started:
                publisher = Publisher(tmp_path_factory.mktemp("shared") / "state")
                publisher.publish(flights=FLIGHTS)
                config = config_of(publisher.state_dir, views={"few": FEW})
                started[kind] = engines.enter_context(KINDS[kind](config)), publisher.state_dir
            return started[kind]

        yield get


@pytest.fixture
def engine(shared: Callable[[str], tuple[QueryEngine, Path]], kind: str) -> Iterator[QueryEngine]:
    """An engine with the dataset `flights` and the view `few`. It is idle before and after a test."""
    running, _ = shared(kind)
    yield running
    wait_until(lambda: not running.active(""))


@pytest.fixture
def state_dir(shared: Callable[[str], tuple[QueryEngine, Path]], kind: str) -> Path:
    """The state directory of `engine`."""
    return shared(kind)[1]


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[QueryEngine]]:
    """One engine of each kind, over the tables that the lists of statements in `statements` read."""
    publisher = Publisher(tmp_path_factory.mktemp("both") / "state")
    publisher.publish(**TABLES)
    config = config_of(publisher.state_dir, tuple(TABLES), VIEWS)
    with ExitStack() as engines:
        yield [engines.enter_context(start(config)) for start in KINDS.values()]

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from queryengine.pool.inprocess import InProcessEngine
from runtimeconf.model import DatasetConfig, QueryConfig, RuntimeConfig, ViewConfig
from tests.queryengine.publishing import Publisher

MakeConfig = Callable[..., RuntimeConfig]
MakeEngine = Callable[..., InProcessEngine]


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
        views=tuple(
            ViewConfig(name=name, sql=sql, line=number + 1, yaml_path=f"views[{number}].sql")
            for number, (name, sql) in enumerate((views or {}).items())
        ),
    )


@pytest.fixture
def make_config(publisher: Publisher) -> MakeConfig:
    return partial(config_of, publisher.state_dir)


@pytest.fixture
def make_engine(make_config: MakeConfig) -> Iterator[MakeEngine]:
    with ExitStack() as engines:

        def make(*args: Any, **kwargs: Any) -> InProcessEngine:
            engine = InProcessEngine(make_config(*args, **kwargs))
            engines.callback(engine.close)
            return engine

        yield make

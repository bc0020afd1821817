from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from queryengine.inprocess import InProcessEngine
from runtimeconf.model import DatasetConfig, QueryConfig, RuntimeConfig, ViewConfig
from tests.queryengine.publishing import Publisher

MakeConfig = Callable[..., RuntimeConfig]
MakeEngine = Callable[..., InProcessEngine]


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    return Publisher(tmp_path / "state")


@pytest.fixture
def make_config(publisher: Publisher, tmp_path: Path) -> MakeConfig:
    def make(
        datasets: tuple[str, ...] = ("flights",), views: dict[str, str] | None = None, **query: Any
    ) -> RuntimeConfig:
        return RuntimeConfig(
            file=tmp_path / "runtime.yaml",
            state_dir=publisher.state_dir,
            query=QueryConfig(**{"timeout_s": 30.0, **query}),
            datasets=tuple(
                DatasetConfig(name=name, from_=f"file:{name}.csv", file=f"/{name}.csv") for name in datasets
            ),
            views=tuple(
                ViewConfig(name=name, sql=sql, line=number + 1, yaml_path=f"views[{number}].sql")
                for number, (name, sql) in enumerate((views or {}).items())
            ),
        )

    return make


@pytest.fixture
def make_engine(make_config: MakeConfig) -> Iterator[MakeEngine]:
    with ExitStack() as engines:

        def make(*args: Any, **kwargs: Any) -> InProcessEngine:
            engine = InProcessEngine(make_config(*args, **kwargs))
            engines.callback(engine.close)
            return engine

        yield make

"""The table of differences in docs/internals/cluster-sql.md, by running its statements."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from queryengine.engine import Query
from queryengine.errors import QueryError
from queryengine.pool.inprocess import InProcessEngine
from runtimeconf.model import RuntimeConfig
from tests.cluster.clusters import ClusterEngine, Sail, config_of

PAGE = (Path(__file__).parents[2] / "docs" / "internals" / "cluster-sql.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(SELECT [^`]*)` \| `([^`]*)` \| `([^`]*)` \| `([^`]*)` \|$", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def on_duckdb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], bytes]]:
    directory = tmp_path_factory.mktemp("duckdb")
    with closing(InProcessEngine(RuntimeConfig(file=directory / "runtime.yaml", state_dir=directory))) as engine:
        yield lambda sql: b"".join(engine.run(Query(sql=sql)))


@pytest.fixture(scope="module")
def on_sail(sail: Sail, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], bytes]]:
    config = config_of(tmp_path_factory.mktemp("sail") / "state", sail.address, [])
    with closing(ClusterEngine(config)) as engine:
        yield engine.run


def outcome(run: Callable[[str], bytes], sql: str) -> str:
    """Return the values of the first column, or the code of the error."""
    try:
        rows = json.loads(run(sql))
    except QueryError as error:
        return error.code
    return json.dumps([next(iter(row.values())) for row in rows], ensure_ascii=False)


def test_the_table_is_there() -> None:
    assert len(ROWS) >= 20


@pytest.mark.parametrize(("sql", "duckdb", "of_sail"), [row[:3] for row in ROWS])
def test_each_row_says_what_happens(
    on_duckdb: Callable[[str], bytes], on_sail: Callable[[str], bytes], sql: str, duckdb: str, of_sail: str
) -> None:
    assert (outcome(on_duckdb, sql), outcome(on_sail, sql)) == (duckdb, of_sail)

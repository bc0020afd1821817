"""Apache Spark as the cluster: what differs from Sail. Only `make cluster-test` runs this."""

import os
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.clients import tpch
from tests.cluster.clusters import ENDLESS, ClusterEngine, config_of
from tests.cluster.spark import TOKEN, Spark
from tests.cluster.test_differences import ROWS, outcome
from tests.system.harness import Server, wait_for
from tests.system.test_cluster import check, from_flight, server_on
from tests.system.test_cluster import expected as expected  # noqa: PLC0414 - a fixture
from tests.system.test_cluster_kills import end_of

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tpch")
    tpch.generate(directory, float(os.environ.get("CLUSTER_SCALE", "0.1")))
    return directory


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    with Spark(tmp_path_factory.mktemp("spark")) as started:
        yield started


@pytest.fixture(scope="module")
def server(cluster: Spark, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server_on(
        cluster, tmp_path_factory.mktemp("server"), data, params={"token": TOKEN}, statement_timeout="40s"
    ) as started:
        yield started


@pytest.mark.parametrize("name", tpch.QUERIES)
def test_tpch_has_the_answers_of_duckdb(
    server: Server, expected: Mapping[str, list[tuple[Any, ...]]], name: str
) -> None:
    rows = server.rows(tpch.QUERIES[name])

    check([tuple(row.values()) for row in rows], expected[name])


def test_flight_has_the_same_rows(server: Server) -> None:
    assert from_flight(server, "SELECT count(*) AS n FROM nation").to_pydict() == {"n": [25]}


def test_a_wrong_token_is_refused(cluster: Spark, tmp_path: Path) -> None:
    config = config_of(tmp_path / "state", cluster.address, [])
    assert config.engine is not None
    config = replace(config, engine=replace(config.engine, params={"token": TOKEN[:-1]}))

    with closing(ClusterEngine(config)) as engine:
        assert not engine.runner.sessions.is_ready


@pytest.mark.parametrize(("sql", "of_spark"), [(row[0], row[3]) for row in ROWS])
def test_each_row_of_the_table_says_what_happens(cluster: Spark, tmp_path: Path, sql: str, of_spark: str) -> None:
    config = config_of(tmp_path / "state", cluster.address, [])
    assert config.engine is not None
    config = replace(config, engine=replace(config.engine, params={"token": TOKEN}))

    with closing(ClusterEngine(config)) as engine:
        assert outcome(engine.run, sql) == of_spark


def test_the_time_limit_ends_the_operation(server: Server, cluster: Spark) -> None:
    answer = server.sql(ENDLESS)

    assert (answer.status_code, answer.json()["code"]) == (504, "query_timeout")
    cluster.wait_until_idle(within_s=30)


def test_an_executor_that_is_killed_is_replaced(server: Server, cluster: Spark) -> None:
    sql = "SELECT sum(sqrt(a.id * b.id)) > 0 AS a FROM range(0, 20000) a, range(0, 200000) b"
    before = cluster.cpu_s()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(end_of, server, sql, "true")
        wait_for(lambda: cluster.cpu_s() > before + 3, "the statement to run")
        os.kill(cluster.executors()[0], signal.SIGKILL)
        end = asked.result()

    assert end in {"right", "cut", "query_error", "engine_unavailable"}
    wait_for(lambda: end_of(server, "SELECT count(*) AS n FROM nation", "25") == "right", "the next answer", 120)

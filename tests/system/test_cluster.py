"""A whole runtime on a cluster with two workers: the same keys, formats and limits, and DuckDB's answers."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pyarrow as pa
import pytest
from adbc_driver_flightsql import DatabaseOptions
from adbc_driver_flightsql import dbapi as flight_sql

from tests.clients import tpch
from tests.cluster.clusters import Sail
from tests.cluster.kubernetes import SailCluster
from tests.system.harness import K1, Server, free_port, run_program, wait_for


def server_on(cluster: Sail, directory: Path, data: Path, tables: tuple[str, ...] = tpch.TABLES, **more: Any) -> Server:
    engine = {"from": f"sc://127.0.0.1:{cluster.port}", "max_running": 3, "statement_timeout": "2m", **more}
    return Server(
        directory,
        changes={
            "runtime": {"engine": engine, "flight": {"bind": f"127.0.0.1:{free_port()}"}},
            "datasets": [{"from": f"file:{data}/{name}.parquet", "name": name} for name in tables],
            "views": [],
        },
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tpch")
    tpch.generate(directory, 0.03)
    return directory


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SailCluster]:
    with SailCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="module")
def server(cluster: SailCluster, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server_on(cluster, tmp_path_factory.mktemp("server"), data) as started:
        yield started


@pytest.fixture(scope="module")
def expected(data: Path) -> Mapping[str, list[tuple[Any, ...]]]:
    """DuckDB's answers."""
    with duckdb.connect() as connection:
        for name in tpch.TABLES:
            connection.execute(f"CREATE VIEW {name} AS FROM '{data}/{name}.parquet'")
        return {name: connection.execute(sql).fetchall() for name, sql in tpch.QUERIES.items()}


def are_equal(found: Any, wanted: Any) -> bool:
    """Compare two values. An average has other digits at its end on each engine, and JSON has dates as text."""
    if isinstance(wanted, int | float | Decimal):
        return abs(float(found) - float(wanted)) <= 1e-6 * max(1.0, abs(float(wanted)))
    return str(found) == str(wanted)


def check(found: list[tuple[Any, ...]], wanted: list[tuple[Any, ...]]) -> None:
    assert len(found) == len(wanted)
    for row, wanted_row in zip(found, wanted, strict=True):
        assert all(are_equal(one, other) for one, other in zip(row, wanted_row, strict=True)), (row, wanted_row)


#: The cluster computes these twice: an integer, a date, a decimal, a text and an average arrive by both protocols.
OVER_FLIGHT = ("Q1", "Q3", "Q13")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", tpch.QUERIES)
def test_tpch_has_the_answers_of_duckdb(
    server: Server, expected: Mapping[str, list[tuple[Any, ...]]], name: str
) -> None:
    sql = tpch.QUERIES[name]

    rows = server.rows(sql)
    check([tuple(row.values()) for row in rows], expected[name])

    if name in OVER_FLIGHT:
        table = from_flight(server, sql)
        check([tuple(row.values()) for row in table.to_pylist()], expected[name])


def from_flight(server: Server, sql: str) -> pa.Table:
    flight = example_flight(server)
    options = {DatabaseOptions.AUTHORIZATION_HEADER.value: f"Bearer {K1}"}
    with flight_sql.connect(flight, db_kwargs=options, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetch_arrow_table()


def example_flight(server: Server) -> str:
    return f"grpc://{server.changes['runtime']['flight']['bind']}"


@pytest.mark.exhaustive
def test_the_tables_have_their_columns_over_flight(server: Server) -> None:
    options = {DatabaseOptions.AUTHORIZATION_HEADER.value: f"Bearer {K1}"}
    with flight_sql.connect(example_flight(server), db_kwargs=options, autocommit=True) as connection:
        found = connection.adbc_get_objects(depth="columns").read_all().to_pylist()
        with connection.cursor() as cursor:
            cursor.execute("SELECT n_name FROM nation WHERE n_nationkey = ?", [3])
            assert cursor.fetchall() == [("CANADA",)]

    (schema,) = found[0]["catalog_db_schemas"]
    tables = {table["table_name"]: table["table_columns"] for table in schema["db_schema_tables"]}
    assert set(tables) == set(tpch.TABLES)
    assert [column["column_name"] for column in tables["nation"]][:2] == ["n_nationkey", "n_name"]


@pytest.mark.exhaustive
def test_the_runtime_tells_of_its_cluster(server: Server, cluster: SailCluster) -> None:
    parts = {part["name"]: part for part in server.listed("/v1/status")}

    assert parts["cluster"] == {"name": "cluster", "endpoint": f"sc://127.0.0.1:{cluster.port}", "status": "Ready"}
    nation = next(one for one in server.listed("/v1/datasets") if one["name"] == "nation")
    assert (nation["status"], nation["rows"], nation["acceleration_enabled"]) == ("Ready", None, False)
    assert server.ask_refresh("nation").status_code == 400


@pytest.mark.exhaustive
def test_an_answer_that_is_cut_does_not_look_complete(tmp_path: Path) -> None:
    rows = "SELECT a.id, repeat('x', 100) AS t FROM range(0, 100000) a, range(0, 10000) b"
    with Sail(tmp_path) as cluster, server_on(cluster, tmp_path, tmp_path, ()) as server:

        def is_read(path: str) -> bool:
            headers = {"X-API-Key": K1, "Accept": path}
            with httpx.stream(
                "POST", f"{server.url}/v1/sql", content=rows, headers=headers, timeout=60.0, trust_env=False
            ) as answer:
                if answer.status_code == 503:  # The cluster was started again a moment ago.
                    return False
                assert answer.status_code == 200
                for number, _ in enumerate(answer.iter_raw()):
                    if number == 5:
                        cluster.kill()
            return True

        for path in ("application/json", "text/csv", "application/vnd.apache.arrow.stream"):
            with pytest.raises(httpx.RemoteProtocolError):
                wait_for(lambda: is_read(path), "the answer")  # noqa: B023
            cluster.start()


@pytest.mark.exhaustive
def test_a_reload_spares_what_runs(tmp_path: Path) -> None:
    sql = "SELECT count(*) > 0 AS a FROM range(0, 20000) a, range(0, 50000) b WHERE (a.id * b.id) % 7 = 3"
    with Sail(tmp_path) as cluster, ThreadPoolExecutor(1) as pool, ExitStack() as running:
        server = server_on(cluster, tmp_path, tmp_path, ())
        server.changes["runtime"]["shutdown_timeout"] = "2m"  # On a busy machine, the statement takes over 30 s.
        running.enter_context(server)
        asked = pool.submit(server.rows, sql)
        wait_for(lambda: any(one["state"] == "running" for one in server.active()), "the statement to run")
        server.file.write_text(server.file.read_text().replace("max_running: 3", "max_running: 1"))

        done = run_program("manage.py", "reload", "--config", str(server.file))

        assert (done.returncode, done.stderr) == (0, "")
        assert server.rows("SELECT 1 AS a") == [{"a": 1}]
        assert asked.result() == [{"a": True}]


def test_the_runtime_refuses_to_be_one_process(tmp_path: Path) -> None:
    engine = {"engine": {"from": "sc://127.0.0.1:1"}}
    datasets = [{"from": "file:orders.parquet", "name": "orders"}]
    for mode in ("gunicorn", "runserver"):
        server = Server(tmp_path, mode=mode, changes={"runtime": engine, "datasets": datasets, "views": []})

        _code, output = server.refuses_to_start()

        assert "runtime.engine: needs the command serve" in output

"""Whole runtimes that load data for a cluster: `runtime.engine` with `runtime.snapshots`."""

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from queryengine.manifest import parquet_file
from tests.cluster.clusters import Sail, write_flights
from tests.nodes.storage_server import BUCKET, KEYS, SharedStorage, storage_process
from tests.system.harness import K1, Server, wait_for, write_orders
from tests.system.processes import kill_family
from tests.system.test_nodes import ROWS, SUM, Callers, answer, publisher_of, running

SCOPED = "key-of-people-Zq8vT3mN6bX9cL2pR5"


@pytest.fixture
def shared() -> Iterator[SharedStorage]:
    with storage_process() as (storage, _):
        yield storage


@pytest.fixture
def cluster(shared: SharedStorage, tmp_path: Path) -> Iterator[Sail]:
    """A cluster with its own credentials for the storage."""
    environ = {
        "AWS_ENDPOINT_URL": shared.url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key-of-cluster",
        "AWS_SECRET_ACCESS_KEY": "secret-of-cluster",
    }
    with Sail(tmp_path, environ=environ) as started:
        yield started


def node(
    directory: Path, name: str, shared: SharedStorage, cluster: Sail, role: str, *, interval: str = "1h"
) -> Server:
    """Make a node that loads `orders.parquet` and `people.json` in *directory*, and has `flights` read in place."""
    (directory / name).mkdir(exist_ok=True)
    params = {"s3_endpoint": shared.url, "s3_key": KEYS["s3_key"], "s3_secret": "${ env:STORE_SECRET }"}
    keys = {"name": "people", "sha256": sha256(SCOPED.encode()).hexdigest(), "datasets": ["people"]}
    changes = {
        "runtime": {
            "auth": {"api-key": {"enabled": True, "keys": [K1], "named_keys": [keys]}},
            "engine": {"from": f"sc://127.0.0.1:{cluster.port}", "max_running": 2, "statement_timeout": "1m"},
            "snapshots": {"location": f"s3://{BUCKET}/nodes", "role": role, "params": params, "poll": "200ms"},
        },
        "datasets": [
            {
                "from": f"file:{directory}/orders.parquet",
                "name": "orders",
                "acceleration": {"enabled": True, "refresh_check_interval": interval},
            },
            {"from": f"file:{directory}/people.json", "name": "people"},
            {"from": f"file:{directory}/flights", "name": "flights", "params": {"file_format": "parquet"}},
        ],
        "views": [{"name": "totals", "sql": "SELECT count(*) AS n, sum(id) AS s FROM orders"}],
    }
    return Server(directory / name, changes=changes, environ={"STORE_SECRET": KEYS["s3_secret"]})


def write_sources(directory: Path) -> None:
    write_orders(directory / "orders.parquet")
    write_flights(directory)
    (directory / "people.json").write_text(json.dumps([{"name": "Ada", "pets": ["cat"]}, {"name": "Bo", "pets": []}]))


@pytest.mark.exhaustive
def test_the_cluster_reads_what_the_runtime_loads(tmp_path: Path, shared: SharedStorage, cluster: Sail) -> None:
    write_sources(tmp_path)
    first = node(tmp_path, "a", shared, cluster, "publisher")
    second = node(tmp_path, "b", shared, cluster, "follower")
    with running(first, second):
        for server in (first, second):
            assert server.rows(SUM) == server.rows("SELECT * FROM totals") == answer(0)
            assert server.rows("SELECT name, pets FROM people ORDER BY name") == [
                {"name": "Ada", "pets": ["cat"]},
                {"name": "Bo", "pets": []},
            ]
            assert server.rows("SELECT count(*) AS n FROM flights JOIN orders USING (id)") == [{"n": ROWS}]
            states = {one["name"]: one for one in server.listed("/v1/datasets")}
            assert {name: one["rows"] for name, one in states.items()} == {"orders": ROWS, "people": 2, "flights": None}
            assert {one["status"] for one in states.values()} == {"Ready"}
            assert states["orders"]["refreshed_at"]

            assert [one["name"] for one in server.listed("/v1/datasets", SCOPED)] == ["people"]
            assert server.rows("SHOW TABLES", SCOPED) == [
                {"namespace": "main", "tableName": "people", "isTemporary": False}
            ]
            refused = server.sql("SELECT * FROM orders", SCOPED)
            assert (refused.status_code, refused.json()["code"]) == (400, "sql_error")
            assert shared.url not in refused.text

        write_orders(tmp_path / "orders.parquet", offset=7)
        assert second.refresh()["status"] == "succeeded"
        assert first.rows(SUM) == second.rows(SUM) == answer(7)

        # The SELECT of a load is DuckDB's; that of a statement is the cluster's.
        assert first.ask_refresh(refresh_sql="SELECT * FROM orders WHERE name SIMILAR TO 'name [0-4]'").is_success
        for server in (first, second):
            wait_for(lambda server=server: server.rows(SUM)[0]["n"] == 5, "the rows of the refresh_sql")  # type: ignore[misc]
        assert first.ask_refresh(refresh_sql="SELECT * FROM read_text('/etc/hostname')").status_code == 403

        files = [f"{one['snapshot']}.duckdb" for one in first.listed("/v1/datasets") if one["snapshot"]]
        objects = {name.removeprefix("snapshots/") for name in shared.names() if name.startswith("snapshots/")}
        assert {*files, *map(parquet_file, files)} <= objects
        for server in (first, second):
            assert "secret-of-cluster" not in server.output()


@pytest.mark.exhaustive
def test_no_statement_sees_two_versions_while_the_publisher_changes(
    tmp_path: Path, shared: SharedStorage, cluster: Sail
) -> None:
    write_sources(tmp_path)
    servers = [node(tmp_path, name, shared, cluster, "auto", interval="500ms") for name in "ab"]
    callers = Callers(tmp_path, servers)
    with running(*servers), callers.at_work():
        callers.have_moved_on(*servers)
        callers.have_moved_on(*servers)
        first = wait_for(lambda: publisher_of(servers), "a publisher")
        (other,) = (server for server in servers if server is not first)
        kill_family(first.process.pid)
        wait_for(lambda: publisher_of([other]), "another publisher")
        callers.have_moved_on(other)
        first.process.wait()
        first.launch()
        first.wait_until_up()
        callers.have_moved_on(*servers)

    assert callers.wrong == []
    assert callers.answers > 50
    print(f"{callers.answers} answers over {callers.offset} versions")

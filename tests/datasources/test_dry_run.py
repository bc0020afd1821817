"""Mismatches are found without a load: in files, in published data, and in views over both."""

import sqlite3
from pathlib import Path

import duckdb
import pytest

from datasources.refresh.dry_run import dry_run
from datasources.snapshots.snapshot import fingerprint
from queryengine.manifest import Column, Manifest, Snapshot, write_manifest
from runtimeconf.loader import load
from runtimeconf.model import RuntimeConfig

ORDERS = "datasets:\n  - {from: 'file:orders.csv', name: Orders, acceleration: {enabled: true%s}}\n"


@pytest.fixture(autouse=True)
def _source(tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text("id,name\n1,a\n")


def configured(directory: Path, text: str) -> RuntimeConfig:
    (directory / "runtime.yaml").write_text(text)
    return load(directory / "runtime.yaml", {})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param(ORDERS % "", "", id="no view"),
        pytest.param(
            ORDERS % "" + "views:\n  - {name: v, sql: SELECT name FROM orders}\n"
            "  - {name: w, sql: SELECT name AS n FROM v}\n  - {name: x, sql: SELECT n FROM w}\n"
            "  - {name: t, sql: SELECT table_name FROM information_schema.tables}\n",
            "",
            id="views that fit",
        ),
        pytest.param(
            ORDERS % "" + "views:\n  - {name: v, sql: SELECT nmae FROM orders}\n  - {name: w, sql: SELECT * FROM v}\n",
            '4: views[0].sql: Referenced column "nmae" not found in FROM clause! Candidate bindings: "name"',
            id="a column that is not there",
        ),
        pytest.param(
            ORDERS % "" + "views:\n  - {name: v, sql: SELECT name + 1 AS n FROM orders}\n",
            "4: views[0].sql: No function matches",
            id="a column of another type",
        ),
        pytest.param(
            ORDERS % ", refresh_sql: 'SELECT id FROM orders'" + "views:\n  - {name: v, sql: SELECT name FROM orders}\n",
            '4: views[0].sql: Referenced column "name" not found',
            id="a column that refresh_sql leaves out",
        ),
        pytest.param(
            ORDERS % ", refresh_sql: 'SELECT nmae FROM orders'" + "views:\n  - {name: v, sql: SELECT x FROM orders}\n",
            "2: datasets[0].acceleration.refresh_sql: The refresh_sql of Orders failed: Binder Error: ",
            id="refresh_sql on a column that is not there",
        ),
        pytest.param(
            ORDERS % ", indexes: {nmae: enabled}",
            "2: datasets[0].acceleration: The indexed column nmae of Orders does not exist.",
            id="an index of a column that is not there",
        ),
        pytest.param(
            ORDERS.replace("name: Orders", "name: Orders, time_column: at") % ", refresh_mode: append",
            "2: datasets[0].time_column: The source of Orders has no column 'at', which the YAML declares as its ",
            id="a time_column that is not there",
        ),
    ],
)
def test_sql_that_does_not_fit_is_an_error(tmp_path: Path, text: str, error: str) -> None:
    found = dry_run(configured(tmp_path, text))

    assert found.warnings == ()
    assert len(found.errors) == (1 if error else 0)
    assert all(str(fault).startswith(f"{tmp_path}/runtime.yaml:{error}") for fault in found.errors)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["orders.csv", "runtime.yaml"]


@pytest.mark.parametrize("name", ["snapshots", "tmp", "manifest"])
def test_a_dataset_may_have_any_name(tmp_path: Path, name: str) -> None:
    text = ORDERS.replace("Orders", name) % f", refresh_sql: 'SELECT id FROM {name}'"

    found = dry_run(configured(tmp_path, text))

    assert (found.errors, found.warnings) == ((), ())


def test_an_unreadable_file_is_a_warning_and_its_views_are_not_checked(tmp_path: Path) -> None:
    text = ORDERS % "" + "views:\n  - {name: v, sql: SELECT nmae FROM orders}\n"
    (tmp_path / "orders.csv").unlink()

    found = dry_run(configured(tmp_path, text))

    assert found.errors == ()
    assert [str(fault) for fault in found.warnings] == [
        f"{tmp_path}/runtime.yaml:2: datasets[0].from: 'orders.csv' does not exist."
    ]


@pytest.mark.parametrize("kind", ["duckdb", "sqlite"])
def test_database_files_are_inspected(tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"orders.{kind}"
    connect = duckdb.connect if kind == "duckdb" else sqlite3.connect
    connection = connect(file)
    connection.execute("CREATE TABLE orders (id INTEGER, name TEXT)")
    connection.close()
    source = "from: 'duckdb:main.orders', params: {duckdb_open: orders.duckdb}"
    if kind == "sqlite":
        source = "from: 'sqlite:orders.sqlite', params: {sqlite_table: orders}"
    text = f"datasets:\n  - {{{source}, name: orders}}\n"

    found = dry_run(configured(tmp_path, text + "views:\n  - {name: v, sql: SELECT nmae FROM orders}\n"))

    assert found.warnings == ()
    assert [fault.yaml_path for fault in found.errors] == ["views[0].sql"]


@pytest.mark.parametrize(
    ("published", "errors"),
    [
        pytest.param("nothing", [], id="nothing is published"),
        pytest.param("other settings", [], id="what is published is of other settings"),
        pytest.param("these settings", ["views[0].sql"], id="what is published is of these settings"),
    ],
)
def test_published_columns_stand_in_for_a_remote_source(tmp_path: Path, published: str, errors: list[str]) -> None:
    """Nobody answers at the address: it is not asked."""
    text = "datasets:\n  - {from: 'http://127.0.0.1:1/orders.csv', name: orders}\n"
    config = configured(tmp_path, text + "views:\n  - {name: v, sql: SELECT nmae FROM orders}\n")
    if published != "nothing":
        snapshot = Snapshot(
            dataset="orders",
            file="orders.duckdb",
            rows=1,
            size_bytes=1,
            sha256="0" * 64,
            created_at="2026-01-01T00:00:00.000Z",
            source=fingerprint(config.datasets[0]) if published == "these settings" else "other",
            columns=(Column(name="name", type="VARCHAR"),),
        )
        config.state_dir.mkdir()
        write_manifest(config.state_dir, Manifest(generation=1, snapshots=(snapshot,)))

    found = dry_run(config)

    assert found.warnings == ()
    assert [fault.yaml_path for fault in found.errors] == errors

"""Mismatches are found without a load: in files, in published data, and in views over both."""

import sqlite3
from pathlib import Path

import duckdb
import pytest

from datasources.refresh.dry_run import dry_run
from datasources.snapshots.snapshot import fingerprint
from queryengine.manifest import Column, Manifest, write_manifest
from runtimeconf.loader import load
from runtimeconf.model import RuntimeConfig
from tests.datasources.support import snapshot_of

ORDERS = "datasets:\n  - {from: 'file:orders.csv', name: Orders, acceleration: {enabled: true%s}}\n"
VIEW = "views:\n  - {name: v, sql: %s}\n"


@pytest.fixture(autouse=True)
def _source(tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text("id,name\n1,a\n")


def configured(directory: Path, text: str) -> RuntimeConfig:
    (directory / "runtime.yaml").write_text(text)
    return load(directory / "runtime.yaml", {})


#: Nothing is said of a view over one that does not fit.
MORE_VIEWS = """\
  - {name: w, sql: SELECT * FROM v}
  - {name: x, sql: SELECT * FROM w}
  - {name: t, sql: SELECT table_name FROM information_schema.tables}
"""


@pytest.mark.parametrize(
    ("settings", "view", "error"),
    [
        ("", "SELECT name AS n FROM orders", ""),
        (
            "",
            "SELECT nmae FROM orders",
            '4: views[0].sql: Referenced column "nmae" not found in FROM clause! Candidate',
        ),
        ("", "SELECT nmae FROM orders, materialized: true", '4: views[0].sql: Referenced column "nmae" not found'),
        ("", "SELECT name + 1 AS n FROM orders", "4: views[0].sql: No function matches"),
        (
            ", refresh_sql: 'SELECT id FROM orders'",
            "SELECT name FROM orders",
            '4: views[0].sql: Referenced column "name" not found',
        ),
        (
            ", refresh_sql: 'SELECT nmae FROM orders'",
            "SELECT x FROM orders",
            "2: datasets[0].acceleration.refresh_sql: The refresh_sql of Orders failed: Binder Error: ",
        ),
        (
            ", indexes: {nmae: enabled}",
            "SELECT 1",
            "2: datasets[0].acceleration: The indexed column nmae of Orders does ",
        ),
        (
            ", refresh_mode: append}, time_column: at, params: {file_format: csv",
            "SELECT 1",
            "2: datasets[0].time_column: The source of Orders has no column 'at', which is declared as its ",
        ),
        (
            ", refresh_data_window: 1d}, time_column: id, params: {file_format: csv",
            "SELECT 1",
            "2: datasets[0].time_column: The time_column of Orders is of type BIGINT: set time_format to unix_seconds",
        ),
        (
            ", refresh_data_window: 1d}, time_column: id, time_format: unix_seconds, params: {file_format: csv",
            "SELECT 1",
            "",
        ),
    ],
)
def test_sql_that_does_not_fit_is_an_error(tmp_path: Path, settings: str, view: str, error: str) -> None:
    found = dry_run(configured(tmp_path, ORDERS % settings + VIEW % view + MORE_VIEWS))

    assert found.warnings == ()
    assert len(found.errors) == (1 if error else 0)
    assert all(str(fault).startswith(f"{tmp_path}/runtime.yaml:{error}") for fault in found.errors)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["orders.csv", "runtime.yaml"]


def test_a_description_of_a_column_that_does_not_exist_is_a_warning(tmp_path: Path) -> None:
    columns = ", columns: [{name: ID, description: x}, {name: nmae, description: x}, {name: other}]"
    text = ORDERS.replace(", acceleration", f"{columns}, acceleration")

    found = dry_run(configured(tmp_path, text % ""))

    assert found.errors == ()
    assert list(map(str, found.warnings)) == [
        f"{tmp_path}/runtime.yaml:2: datasets[0].columns: there is no column {name}" for name in ("nmae", "other")
    ]


@pytest.mark.parametrize("materialized", ["", ", materialized: true"])
def test_a_column_that_a_view_does_not_have_is_a_warning(tmp_path: Path, materialized: str) -> None:
    columns = f"columns: [{{name: N, description: x}}, {{name: id, description: x}}, {{name: other}}]{materialized}"
    view = VIEW % f"SELECT name AS n FROM orders, {columns}"
    unloaded = "  - {from: 'https://example.com/a.csv', name: a}\n" + VIEW % f"SELECT a.x AS n FROM a, {columns}"

    found = dry_run(configured(tmp_path, ORDERS % "" + view))

    assert found.errors == ()
    assert list(map(str, found.warnings)) == [
        f"{tmp_path}/runtime.yaml:4: views[0].columns: there is no column {name}" for name in ("id", "other")
    ]
    assert dry_run(configured(tmp_path, ORDERS % "" + unloaded)).warnings == ()


@pytest.mark.parametrize(
    ("column", "time_format", "remark"),
    [
        ("at", "unix_millis", "The time_column of Orders is of type TIMESTAMP: remove time_format."),
        ("day", "unix_seconds", "The time_column of Orders is of type DATE: remove time_format."),
        (
            "id",
            "timestamp",
            "The time_column of Orders is of type BIGINT: set time_format to unix_seconds or unix_millis.",
        ),
        *(("at", "timestamp", ""), ("day", "timestamp", ""), ("id", "unix_seconds", "")),
    ],
)
def test_a_time_format_that_does_not_fit_and_has_no_effect_is_a_warning(
    tmp_path: Path, column: str, time_format: str, remark: str
) -> None:
    (tmp_path / "orders.csv").write_text("id,at,day\n1,2024-01-01 10:00:00,2024-01-01\n")
    settings = (
        f", refresh_mode: append}}, time_column: {column}, time_format: {time_format}, params: {{file_format: csv"
    )

    found = dry_run(configured(tmp_path, ORDERS % settings))

    assert found.errors == ()
    assert list(map(str, found.warnings)) == (
        [f"{tmp_path}/runtime.yaml:2: datasets[0].time_format: {remark}"] if remark else []
    )


@pytest.mark.parametrize("name", ["snapshots", "tmp", "manifest"])
def test_a_dataset_may_have_any_name(tmp_path: Path, name: str) -> None:
    text = ORDERS.replace("Orders", name) % f", refresh_sql: 'SELECT id FROM {name}'"

    found = dry_run(configured(tmp_path, text))

    assert (found.errors, found.warnings) == ((), ())


def test_an_unreadable_file_is_a_warning_and_its_views_are_not_checked(tmp_path: Path) -> None:
    text = ORDERS % "" + VIEW % "SELECT nmae FROM orders"
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

    found = dry_run(configured(tmp_path, text + VIEW % "SELECT nmae FROM orders"))

    assert found.warnings == ()
    assert [fault.yaml_path for fault in found.errors] == ["views[0].sql"]


@pytest.mark.parametrize(
    ("published", "errors"), [("nothing", []), ("other settings", []), ("these settings", ["views[0].sql"])]
)
def test_published_columns_stand_in_for_a_remote_source(tmp_path: Path, published: str, errors: list[str]) -> None:
    """Nobody answers at the address: it is not asked."""
    text = "datasets:\n  - {from: 'http://127.0.0.1:1/orders.csv', name: orders}\n"
    config = configured(tmp_path, text + VIEW % "SELECT nmae FROM orders")
    if published != "nothing":
        source = fingerprint(config.datasets[0]) if published == "these settings" else "other"
        snapshot = snapshot_of(source=source, columns=(Column(name="name", type="VARCHAR"),))
        config.state_dir.mkdir()
        write_manifest(config.state_dir, Manifest(generation=1, snapshots=(snapshot,)))

    found = dry_run(config)

    assert found.warnings == ()
    assert [fault.yaml_path for fault in found.errors] == errors


def test_published_columns_tell_whether_a_time_format_fits(tmp_path: Path) -> None:
    more = "acceleration: {refresh_mode: append}, time_column: at, time_format: unix_millis"
    config = configured(tmp_path, f"datasets:\n  - {{from: 'http://127.0.0.1:1/a.csv', name: orders, {more}}}\n")
    snapshot = snapshot_of(source=fingerprint(config.datasets[0]), columns=(Column(name="at", type="TIMESTAMP"),))
    config.state_dir.mkdir()
    write_manifest(config.state_dir, Manifest(generation=1, snapshots=(snapshot,)))

    (warning,) = dry_run(config).warnings

    assert str(warning).endswith(
        "datasets[0].time_format: The time_column of orders is of type TIMESTAMP: remove time_format."
    )


def test_rules_of_keys_that_do_not_fit_are_named(tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text("id,name\n1,a\n")
    rules = (
        "{name: orders, row_filter: \"name = 'a' AND nope = 1\"}",
        '{name: orders, row_filter: "id"}',
        "{name: orders, columns: [id, gone]}",
        '{name: orders, masks: {name: "id || (1"}}',
        '{name: orders, row_filter: "id > 0", masks: {name: "\'x\'"}}',
        '{name: orders, masks: {name: "max(name)"}}',
    )
    keys = "".join(
        f"    - {{name: k{n}, key: a-key-of-a-test-{n}, datasets: [{rule}]}}\n" for n, rule in enumerate(rules)
    )
    config = configured(
        tmp_path,
        "runtime:\n  auth:\n   api-key:\n    enabled: true\n    named_keys:\n" + keys + ORDERS % "",
    )

    found = [(fault.line, fault.message) for fault in dry_run(config).errors]

    assert [line for line, _ in found] == [6, 7, 8, 9, 11]
    assert all(message.startswith("does not fit the data: ") for _, message in found)
    assert "there is no column gone" in found[2][1]

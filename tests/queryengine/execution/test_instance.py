import os
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from queryengine.errors import DatasetNotLoadedError, EngineUnavailableError, SqlError
from queryengine.execution.definitions import Definitions, SnapshotGoneError
from queryengine.execution.instance import EngineInstance
from queryengine.execution.reader import BATCH_ROWS
from queryengine.execution.statistics import BATCH_BYTES, VECTOR_ROWS
from queryengine.manifest import Column, Manifest, snapshot_path
from tests.open_files import open_files
from tests.queryengine.conftest import MakeConfig, OpenSession
from tests.queryengine.execution.instances import rows, run, table
from tests.queryengine.publishing import Publisher, wait_until


def test_its_settings_are_the_limits_of_the_yaml_and_otherwise_the_defaults(
    open_session: OpenSession, tmp_path: Path
) -> None:
    session = open_session(memory_limit_bytes=300 * 2**20, temp_directory_limit_bytes=50 * 2**20, timeout_s=12.5)
    ours = {
        "threads": str(len(os.sched_getaffinity(0))),
        "memory_limit": "300.0 MiB",
        "max_temp_directory_size": "50.0 MiB",
        "max_execution_time": "12500",
        "temp_directory": str(tmp_path / "scratch"),
        "TimeZone": "UTC",
        "allowed_configs": "[tracked_metrics]",
        "enable_external_access": "false",
        "lock_configuration": "true",
        "python_enable_replacements": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "allow_community_extensions": "false",
    }
    implied = {
        *("worker_threads", "async_threads", "max_memory", "write_buffer_row_group_memory_limit"),
        *("allowed_directories", "allowed_paths", "schema", "search_path"),
    }
    query = "SELECT name, value FROM duckdb_settings()"

    with duckdb.connect(":memory:") as fresh, fresh.cursor() as other, session._connection.cursor() as cursor:
        defaults = dict(other.execute(query).fetchall())
        settings = dict(cursor.execute(query).fetchall())

    assert {name: settings[name] for name in ours} == ours
    assert {name for name in settings if settings[name] != defaults[name]} <= ours.keys() | implied


def test_the_time_limit_does_not_apply_to_opening(open_session: OpenSession, publisher: Publisher) -> None:
    publisher.publish(flights="SELECT i AS id FROM range(1000) t(i)")

    assert not open_session(timeout_s=0.001).cursors.broken


def test_a_reader_names_columns_and_types_as_the_statement_does(open_session: OpenSession) -> None:
    reader = run(open_session(), "SELECT 1 AS a, 2::UHUGEINT AS a, [1.5] AS b, TIMETZ '12:00:00+02' AS t")
    result = table(reader)

    assert reader.columns == (
        Column(name="a", type="INTEGER"),
        Column(name="a", type="UHUGEINT"),
        Column(name="b", type="DECIMAL(2,1)[]"),
        Column(name="t", type="TIME WITH TIME ZONE"),
    )
    assert result.schema.names == ["a", "a", "b", "t"]
    assert [str(value) for value in result.column(1)] == ["2"]


def test_names_of_datasets_and_files_are_quoted(
    tmp_path: Path, open_session: OpenSession, publisher: Publisher
) -> None:
    publisher.publish(select="SELECT 1 AS id", Flights="SELECT 2 AS id")
    quoted = tmp_path / "it's"
    publisher.state_dir.rename(quoted)
    publisher.state_dir.symlink_to(quoted)
    session = open_session(datasets=("select", "flights"))

    assert rows(session, 'FROM "select"') == [{"id": 1}]
    assert rows(session, "FROM FLIGHTS") == [{"id": 2}]


def test_small_batches_are_joined_but_the_first_is_not_held_back(open_session: OpenSession) -> None:
    session = open_session()
    with closing(run(session, "SELECT range FROM range(200000)")) as reader:
        sizes = [batch.num_rows for batch in reader]

    assert sizes[0] == VECTOR_ROWS
    assert all(BATCH_ROWS - VECTOR_ROWS < size <= BATCH_ROWS for size in sizes[1:-1])
    assert sum(sizes) == 200_000
    assert not reader.is_complete
    with closing(run(session, f"SELECT range FROM range({VECTOR_ROWS - 1})")) as small:
        assert small.is_complete


def test_wide_rows_come_in_smaller_batches(open_session: OpenSession) -> None:
    reader = run(open_session(), "SELECT repeat('x', 10000) AS v FROM range(20000)")
    batches = [(batch.num_rows, batch.nbytes) for batch in reader]
    reader.close()

    assert sum(rows for rows, _ in batches) == 20_000
    assert max(size for _, size in batches) < 25 * 2**20


def test_the_next_large_result_of_a_statement_has_larger_batches(
    open_session: OpenSession, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queryengine.execution.statistics.FAST_ROWS_PER_S", 0)
    publisher.publish(flights="SELECT i AS id, 'n' || i AS name FROM range(200000) t(i)")
    session = open_session()

    for sql, parameters, expected in (
        ("FROM flights", None, VECTOR_ROWS),
        ("FROM flights", None, 60 * VECTOR_ROWS),
        ("FROM flights LIMIT 10", None, 10),
        *[("SELECT *, random() FROM flights", None, VECTOR_ROWS)] * 2,
        *[("SELECT id + $1 AS a FROM flights", [value], VECTOR_ROWS) for value in (1, 2)],
    ):
        with closing(run(session, sql, parameters)) as reader:
            batches = list(reader)
        assert batches[0].num_rows == expected
        assert sum(batch.num_rows for batch in batches) in {10, 200_000}
        assert max(batch.nbytes for batch in batches) <= BATCH_BYTES


def test_the_types_that_a_pivot_creates_do_not_stay(open_session: OpenSession, publisher: Publisher) -> None:
    publisher.publish(flights="SELECT i AS id, 'n' || i AS name FROM range(3) t(i)")
    session = open_session()
    count = "SELECT count(*) FROM duckdb_types() WHERE NOT internal AND database_name NOT IN ('system', 'temp')"
    with session._connection.cursor() as cursor:
        before = cursor.execute(count).fetchone()

        assert table(run(session, "PIVOT flights ON name USING sum(id)")).num_columns == 3

        assert cursor.execute(count).fetchone() == before


def test_an_error_in_a_projected_statement_counts_its_own_lines(open_session: OpenSession) -> None:
    with pytest.raises(SqlError, match=r"LINE 2: , CAST"):
        run(open_session(), "SELECT 1::UHUGEINT AS a\n, CAST('x' || range AS INTEGER) FROM range(3)")


def test_a_missing_snapshot_is_reported_or_tolerated(open_session: OpenSession, publisher: Publisher) -> None:
    manifest = publisher.publish(flights="SELECT 1 AS id", planes="SELECT 2 AS id")
    snapshot_path(publisher.state_dir, manifest.snapshots[0]).unlink()
    datasets = ("flights", "planes", "late")
    views = {"ids": "SELECT id FROM flights", "twice": "FROM ids"}

    with pytest.raises(SnapshotGoneError):
        open_session(datasets=datasets)
    session = open_session(datasets=datasets, tolerant=True, views=views)

    assert rows(session, "FROM planes") == [{"id": 2}]
    with pytest.raises(EngineUnavailableError, match=r"^Dataset 'flights' cannot be read at the moment\.$"):
        run(session, "FROM flights")
    with pytest.raises(EngineUnavailableError, match="View 'ids' has no data yet: Dataset 'flights' cannot"):
        run(session, "FROM ids")
    with pytest.raises(DatasetNotLoadedError, match="View 'twice' has no data yet: View 'ids' has no data yet: Data"):
        run(session, "FROM twice", relations=frozenset({"twice"}))
    with pytest.raises(DatasetNotLoadedError, match=r"^Dataset 'late' is not loaded yet\.$"):
        run(session, "FROM late", relations=frozenset({"late"}))


def test_a_snapshot_that_is_superseded_before_it_is_attached_is_still_read(
    open_session: OpenSession, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While refreshes come faster than all can be attached, a session could never be opened otherwise."""
    first = publisher.publish(flights="SELECT 1 AS id", planes="SELECT 2 AS id")
    attach = Definitions._attach
    attached: list[Path] = []

    def attach_and_publish(definitions: Definitions, attachment: str, path: Path) -> None:
        if not attached:
            publisher.publish(flights="SELECT 3 AS id", planes="SELECT 4 AS id")
        attached.append(path)
        attach(definitions, attachment, path)

    monkeypatch.setattr(Definitions, "_attach", attach_and_publish)
    session = open_session(datasets=("flights", "planes"))

    # DuckDB's threads close what they wrote or read a little later, so wait, and look only at the files that are read.
    held = [str(snapshot_path(publisher.state_dir, snapshot)) for snapshot in first.snapshots]
    wait_until(lambda: [len(open_files(file)) for file in held] == [1, 1])
    assert rows(session, "SELECT f.id AS f, p.id AS p FROM flights f, planes p") == [{"f": 1, "p": 2}]


def test_an_engine_that_cannot_start_raises(publisher: Publisher, make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(timeout_s=1e30)

    with pytest.raises(EngineUnavailableError, match="cannot start"):
        EngineInstance(config, Manifest(generation=0), (), tmp_path / "scratch")


def test_only_an_internal_error_makes_the_instance_broken(open_session: OpenSession) -> None:
    session = open_session()

    session.cursors.failure(duckdb.BinderException("Binder Error: x"))
    assert not session.cursors.broken
    session.cursors.failure(duckdb.InternalException("INTERNAL Error: x"))
    assert session.cursors.broken


def test_a_result_with_a_slow_start_keeps_small_batches(open_session: OpenSession) -> None:
    session = open_session()
    sql = "SELECT DISTINCT hash(range // 100) AS a FROM range(20000000)"

    assert table(run(session, sql)).num_rows == 200_000
    with closing(run(session, sql)) as reader:  # Asked for the width of its rows, DuckDB would group them once more.
        assert next(iter(reader)).num_rows == VECTOR_ROWS


def test_close_before_the_end_and_twice(open_session: OpenSession) -> None:
    session = open_session()
    reader = run(session, "SELECT * FROM range(200000000)")
    next(iter(reader))

    reader.close()
    reader.close()

    assert list(reader) == []
    assert table(run(session, "SELECT 1 AS a")).num_rows == 1


def test_the_lists_of_few_scopes_are_kept(
    open_session: OpenSession, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queryengine.execution.definitions._MOST_CATALOGS", 2)
    publisher.publish(flights="SELECT 1 AS id")
    session = open_session(views={"lists": "SELECT table_name FROM information_schema.tables"})

    for number in (1, 2, 3, 4, 3, 1):
        shown = table(run(session, "SHOW TABLES", relations=frozenset({"flights", f"other_{number}"})))
        assert shown.to_pylist() == [{"name": "flights"}]
    lists = table(run(session, "FROM lists", relations=frozenset({"flights", "lists"}))).column("table_name")
    assert sorted(lists.to_pylist()) == ["flights", "lists"]
    assert len(session._definitions._catalogs) == 2

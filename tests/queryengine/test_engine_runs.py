"""Streams, limits and changing data on each kind of engine: in this process, and in worker processes."""

import json
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest

from queryengine.engine import Query, QueryEngine, timings_of
from queryengine.errors import (
    EngineUnavailableError,
    QueryCancelledError,
    QueryError,
    QueryTimeoutError,
    ResourceLimitError,
    SqlError,
    StatementError,
    StatementNotAllowedError,
)
from queryengine.manifest import SNAPSHOT_DIRECTORY
from tests.open_files import open_files
from tests.queryengine.asking import ask, begin, error_of, rows
from tests.queryengine.conftest import FLIGHTS, StartEngine
from tests.queryengine.publishing import ENDLESS, ENDLESS_AFTER_ROWS, ENDLESS_ROWS, PATIENCE_S, Publisher, wait_until

# Streaming, time and cancellation.


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("sql", "reads_slowly"), [(ENDLESS_AFTER_ROWS, False), (ENDLESS_ROWS, True)], ids=["reading", "reading slowly"]
)
def test_the_time_limit_holds_during_a_stream(start_engine: StartEngine, sql: str, reads_slowly: bool) -> None:
    engine = start_engine(timeout_s=3)
    result = engine.run(Query(sql=sql))
    read = [next(iter(result))]
    if reads_slowly:
        wait_until(lambda: not engine.active(""))

    with pytest.raises(QueryTimeoutError):
        read.extend(result)

    assert not b"".join(read).endswith(b"]")
    with pytest.raises(QueryError):
        next(iter(result))


@pytest.mark.parametrize("stop", ["cancel", "close"])
def test_a_stream_is_stopped_from_another_thread(engine: QueryEngine, stop: str) -> None:
    result = engine.run(Query(sql=ENDLESS_AFTER_ROWS))
    sizes: list[int] = []
    reading = begin(lambda: sizes.extend(map(len, result)))
    wait_until(lambda: sum(sizes) > 500_000)
    getattr(result, stop)()

    assert error_of(reading) is QueryCancelledError
    wait_until(lambda: not engine.active(""))
    getattr(result, stop)()


@pytest.mark.parametrize("stop", ["cancel", "close"])
def test_a_stop_between_two_chunks_frees_the_engine(engine: QueryEngine, stop: str) -> None:
    result = engine.run(Query(sql="SELECT * FROM range(200000000)"))
    next(iter(result))

    getattr(result, stop)()
    getattr(result, stop)()

    wait_until(lambda: not engine.active(""))
    with pytest.raises(QueryCancelledError):
        next(iter(result))


@pytest.mark.exhaustive
def test_close_does_not_wait_for_rows_that_never_come(start_engine: StartEngine) -> None:
    engine = start_engine(timeout_s=600)
    sql = "SELECT range FROM range(1000000000000) WHERE range < 500000 OR range * 2 = 1"

    for _ in range(10):
        result = engine.run(Query(sql=sql))
        size = 0
        while size < 3_000_000:  # The engine is past the last row by then.
            size += len(next(iter(result)))
        begin(result.close).result(PATIENCE_S)

    wait_until(lambda: not engine.active(""))


def test_a_small_result_holds_no_slot_while_it_is_read(engine: QueryEngine) -> None:
    result = engine.run(Query(sql="SELECT * FROM flights"))

    wait_until(lambda: not engine.active(""))
    assert len(json.loads(b"".join(result))) == 1000
    result.close()


# Limits.


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("limits_mib", "sql", "message"),
    [
        ((64, 1), "SELECT len(list(range)) AS n FROM range(100000000)", "64 MiB"),
        (
            (100, 8),
            "SELECT v, count(*) FROM (SELECT md5(range::VARCHAR) AS v FROM range(4000000)) GROUP BY v",
            "temporary space",
        ),
    ],
    ids=["memory", "temporary space"],
)
def test_a_limit_that_is_used_up_is_a_typed_error(
    start_engine: StartEngine, publisher: Publisher, limits_mib: tuple[int, int], sql: str, message: str
) -> None:
    memory_bytes, space_bytes = (limit * 2**20 for limit in limits_mib)
    engine = start_engine(memory_limit_bytes=memory_bytes, temp_directory_limit_bytes=space_bytes)

    with pytest.raises(ResourceLimitError, match=message) as caught:
        ask(engine, sql)

    assert str(publisher.state_dir) not in str(caught.value)
    assert rows(engine, "SELECT 1 AS a") == [{"a": 1}]


# Data versions.


def test_a_superseded_file_is_freed_without_a_statement(publisher: Publisher, start_engine: StartEngine) -> None:
    publisher.publish(flights=FLIGHTS)
    engine = start_engine()
    rows(engine, "FROM flights")
    (before,) = snapshots_open_below(publisher)
    publisher.publish(flights="SELECT 1 AS id")

    wait_until(lambda: f"{before} (deleted)" not in snapshots_open_below(publisher))

    assert before not in snapshots_open_below(publisher)


def snapshots_open_below(publisher: Publisher) -> set[str]:
    """Names of the snapshots that this process or one below it has open."""
    targets = open_files(publisher.state_dir / SNAPSHOT_DIRECTORY, with_children=True)
    return {Path(target).name for target in targets if ".duckdb" in target}


def test_a_running_statement_keeps_its_data_version(publisher: Publisher, start_engine: StartEngine) -> None:
    publisher.publish(flights="SELECT 1 AS g, i AS id FROM range(2000000) t(i)")
    engine = start_engine()
    result = engine.run(Query(sql="SELECT g FROM flights", encoding="csv"))
    (old,) = snapshots_open_below(publisher)
    publisher.publish(flights="SELECT 2 AS g")

    assert rows(engine, "FROM flights") == [{"g": 2}]
    assert f"{old} (deleted)" in snapshots_open_below(publisher)
    lines = b"".join(result).split()

    assert set(lines[1:]) == {b"1"}
    assert len(lines) == 2_000_001
    wait_until(lambda: not any(old in name for name in snapshots_open_below(publisher)))


@pytest.mark.exhaustive
def test_r01_readers_see_old_or_new_while_data_is_replaced(publisher: Publisher, start_engine: StartEngine) -> None:
    publish = "SELECT {0} AS g, i AS id FROM range(50000) t(i)"
    publisher.publish(flights=publish.format(0), planes=publish.format(0))
    engine = start_engine(("flights", "planes"), views={"all_of_it": "FROM flights UNION ALL FROM planes"})
    seen: list[int] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            (row,) = rows(engine, "SELECT min(g) AS low, max(g) AS high, count(*) AS n FROM all_of_it")
            assert row["low"] == row["high"]
            assert row["n"] == 100_000
            seen.append(row["low"])

    readers = [begin(read) for _ in range(4)]
    for generation in range(1, 15):
        publisher.publish(flights=publish.format(generation), planes=publish.format(generation))
        wait_until(lambda: generation in seen or any(one.done() for one in readers))  # noqa: B023
    stop.set()
    for one in readers:
        one.result(PATIENCE_S)

    (row,) = rows(engine, "SELECT min(g) AS low, max(g) AS high FROM all_of_it")
    assert row == {"low": 14, "high": 14}


@pytest.mark.exhaustive
def test_r18_a_damaged_snapshot_gives_no_wrong_rows(publisher: Publisher, start_engine: StartEngine) -> None:
    manifest = publisher.publish(flights="SELECT hash(i) AS id FROM range(300000) t(i)")
    path = publisher.state_dir / "snapshots" / manifest.snapshots[0].file
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xaa" * 65536)
    engine = start_engine()

    for _ in range(2):
        with pytest.raises(EngineUnavailableError):
            ask(engine, "SELECT sum(id % 7) FROM flights")

    assert rows(engine, "SELECT 1 AS a") == [{"a": 1}]


# The whole engine.


def test_admit_gates_without_running(engine: QueryEngine) -> None:
    engine.admit("SELECT * FROM source", frozenset({"source"}))

    with pytest.raises(StatementError):
        engine.admit("SELECT * FROM flights", frozenset({"source"}))
    with pytest.raises(StatementNotAllowedError):
        engine.admit("DROP TABLE source", frozenset({"source"}))


@pytest.mark.exhaustive
def test_threads_and_files_do_not_grow_with_statements(engine: QueryEngine) -> None:
    def use() -> None:
        for sql in ("SELECT 1", "FROM flights", "SELECT nope", "SELECT CAST(name AS INTEGER) FROM flights"):
            with suppress(QueryError):
                ask(engine, sql)
        result = engine.run(Query(sql="SELECT * FROM range(100000)"))
        next(iter(result))
        result.close()

    def held() -> tuple[int, ...]:
        return tuple(len(list(Path("/proc/self", kind).iterdir())) for kind in ("task", "fd"))

    use()
    wait_until(lambda: not engine.active(""))
    before = held()
    for _ in range(50):
        use()

    # Threads of engines that other tests closed, and of the last statements, may still be ending.
    wait_until(lambda: all(now <= then for now, then in zip(held(), before, strict=True)))


def test_a_flood_of_one_key_leaves_a_slot_to_another(start_engine: StartEngine) -> None:
    engine = start_engine(workers=2, max_queued=4, queue_timeout_s=30)
    assert b"".join(engine.run(Query(sql="SELECT 1 AS a", fingerprint="other"))) == b'[{"a":1}]'
    flood = [begin(lambda: engine.run(Query(sql=ENDLESS, fingerprint="flood"))) for _ in range(3)]
    wait_until(lambda: sorted(one.state for one in engine.active("flood")) == ["queued", "queued", "running"])

    answer = b"".join(engine.run(Query(sql="SELECT 2 AS a", fingerprint="other")))

    assert answer == b'[{"a":2}]'
    engine.close()
    assert [error_of(one) for one in flood] == [EngineUnavailableError] * 3


def test_a_key_that_is_alone_uses_every_worker_until_another_comes(start_engine: StartEngine) -> None:
    engine = start_engine(workers=2, max_queued=4, queue_timeout_s=30)
    flood = [begin(lambda: engine.run(Query(sql=ENDLESS, fingerprint="flood"))) for _ in range(3)]
    wait_until(lambda: sorted(one.state for one in engine.active("flood")) == ["queued", "running", "running"])

    answer = b"".join(engine.run(Query(sql="SELECT 2 AS a", fingerprint="other")))

    assert answer == b'[{"a":2}]'
    # The one that gave way has not failed: it waits again.
    wait_until(lambda: sorted(one.state for one in engine.active("flood")) == ["queued", "queued", "running"])
    engine.close()
    assert [error_of(one) for one in flood] == [EngineUnavailableError] * 3


@pytest.mark.exhaustive
def test_a_view_that_does_not_fit_the_data_fails_alone(publisher: Publisher, start_engine: StartEngine) -> None:
    publisher.publish(flights="SELECT 1 AS other")
    others = "SELECT COLUMNS(*) FROM flights"
    engine = start_engine(views={"ids": "SELECT id FROM flights", "twice": "FROM ids", "others": others})

    with pytest.raises(SqlError, match=r"View 'ids' does not fit the data: .*id") as caught:
        ask(engine, "FROM ids")

    assert "CREATE VIEW" not in str(caught.value)
    assert rows(engine, "FROM flights") == [{"other": 1}]
    with pytest.raises(SqlError, match=r"View 'twice' cannot be read: View 'ids' does not fit the data: .*id"):
        ask(engine, "FROM twice")
    assert rows(engine, "FROM others") == [{"other": 1}]
    assert rows(engine, "SELECT table_name AS t FROM information_schema.tables ORDER BY 1") == [
        {"t": "flights"},
        {"t": "others"},
    ]
    publisher.publish(flights="SELECT 2 AS id")
    assert rows(engine, "FROM ids") == rows(engine, "FROM twice") == [{"id": 2}]


# Timings.


def test_the_timings_name_what_the_statement_has_in_common_with_others(engine: QueryEngine) -> None:
    def statement(sql: str) -> str:
        with closing(engine.run(Query(sql=sql))) as result:
            assert b"".join(result)
            return result.timings.statement

    assert len({statement("SELECT 1 AS n"), statement("SELECT 2 AS n")}) == 1
    assert statement("SELECT 1 AS n") != statement("SELECT 1 AS m")
    assert statement("SHOW TABLES")


@pytest.mark.parametrize(
    ("sql", "is_known"),
    [("SELECT error('no')", True), ("SELECT * FROM range(9) WHERE nothing", True), ("DROP TABLE a", False)],
)
def test_an_error_has_the_timings_until_then(engine: QueryEngine, sql: str, is_known: bool) -> None:
    for call in (lambda: engine.run(Query(sql=sql)), lambda: engine.describe(Query(sql=sql), speculate_s=5.0)):
        with pytest.raises(QueryError) as caught:
            call()

        timings = timings_of(caught.value)
        assert timings is not None
        assert bool(timings.statement) is (timings.run_ms > 0) is is_known


def test_a_result_that_fails_midway_has_the_timings_until_then(engine: QueryEngine) -> None:
    sql = "SELECT CASE WHEN range > 2000000 THEN error('late') ELSE range END FROM range(3000000)"
    with closing(engine.run(Query(sql=sql))) as result, pytest.raises(QueryError):
        for _ in result:
            pass

    assert result.timings.statement
    assert result.timings.rows > 0


@pytest.mark.parametrize("stop", ["cancel", "close"])
def test_a_stream_that_is_stopped_has_the_timings_until_then(engine: QueryEngine, stop: str) -> None:
    result = engine.run(Query(sql="SELECT range, md5(range::VARCHAR) FROM range(200000000)"))
    sizes = [len(next(iter(result))) for _ in range(3)]
    getattr(result, stop)()
    with pytest.raises(QueryCancelledError):
        next(iter(result))
    result.close()

    timings = result.timings
    assert timings.statement
    assert timings.rows > 0
    assert timings.bytes >= sum(sizes[:2])
    assert timings.run_ms > 0


def test_a_stream_that_is_closed_while_another_thread_reads_it_has_them_at_once(engine: QueryEngine) -> None:
    result = engine.run(Query(sql=ENDLESS_AFTER_ROWS))
    sizes: list[int] = []
    reading = begin(lambda: sizes.extend(map(len, result)))
    wait_until(lambda: sum(sizes) > 500_000)
    result.close()

    assert result.timings.statement
    assert result.timings.rows > 0
    assert result.timings.bytes > 500_000
    assert error_of(reading) is QueryCancelledError

"""Which statements share a cursor of an instance, and for how long."""

from concurrent.futures import ThreadPoolExecutor

import duckdb
import pytest

from queryengine.errors import SqlError, StatementNotAllowedError
from queryengine.execution.instance import EngineInstance
from tests.queryengine.conftest import OpenSession
from tests.queryengine.execution.instances import rows, run, run_ungated, table
from tests.queryengine.publishing import Publisher


def idle(session: EngineInstance) -> int:
    return len(session.cursors._idle)


def test_a_deterministic_query_leaves_its_cursor_to_the_next(open_session: OpenSession) -> None:
    session = open_session()
    table(run(session, "SELECT 1 AS a"))
    (kept,) = session.cursors._idle
    begun_s = kept.begun_s

    reader = run(session, "SELECT $1 AS a, 2::UHUGEINT AS b FROM range(5000)", [7])

    assert (reader._cursor, idle(session)) == (kept, 0)
    assert table(reader).num_rows == 5000
    assert list(session.cursors._idle) == [kept]
    assert kept.begun_s == begun_s


def test_a_deterministic_query_is_bound_once_on_a_cursor(
    open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queryengine.execution.reader._MAX_BOUND", 2)
    monkeypatch.setattr("queryengine.execution.cursors._REUSED_S", 3600.0)
    session = open_session()
    for value, sql in ((1, "SELECT 1::UHUGEINT AS a"), (2, "SELECT 2 AS a"), (3, "SELECT 3 AS a")) * 3:
        assert rows(session, sql) == [{"a": str(value) if value == 1 else value}]
    for value in (4, 5):  # a parameter has another value each time
        assert rows(session, "SELECT $1 AS a", [value]) == [{"a": value}]

    (kept,) = session.cursors._idle

    assert list(kept.bound) == ["SELECT 1::UHUGEINT AS a", "SELECT 2 AS a"]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT setseed(0.5)",
        "SELECT now()",
        "FROM range(9) USING SAMPLE 3",
        "SHOW TABLES",
        "EXPLAIN SELECT 1",
        "PIVOT (SELECT 1 AS a) ON a",
        "SELECT '" + "x" * 1000 + "'",
        "FROM noise",
        "FROM over_noise",
    ],
)
def test_any_other_statement_has_a_cursor_of_its_own(open_session: OpenSession, sql: str) -> None:
    session = open_session(
        views={"noise": "SELECT random() AS r", "over_noise": "FROM noise", "steady": "SELECT 1 AS a"}
    )
    relations = frozenset({"noise", "over_noise", "steady"})
    table(run(session, "FROM steady", relations=relations))
    (before,) = session.cursors._idle

    reader = run(session, sql, relations=relations)

    assert reader._cursor is not before
    assert table(reader).num_rows
    assert list(session.cursors._idle) == [before]


def test_a_cursor_is_kept_only_after_a_complete_result(open_session: OpenSession) -> None:
    session = open_session()
    with pytest.raises(SqlError):
        run(session, "SELECT CAST('x' AS INTEGER)")
    with pytest.raises(SqlError):
        table(run(session, "SELECT CAST(if(range = 9000, 'x', '1') AS INTEGER) FROM range(10000)"))
    unread = run(session, "FROM range(1000000)")
    unread.close()
    interrupted = run(session, "SELECT 1")
    interrupted.interrupt()
    interrupted.close()
    with pytest.raises(SqlError):
        run(session, "SELECT $1 + 1", [[1]])

    assert idle(session) == 0


def test_a_late_interrupt_does_not_stop_the_next_query(open_session: OpenSession) -> None:
    session = open_session()
    first = run(session, "SELECT 1 AS a")
    assert table(first).num_rows == 1
    second = run(session, "FROM range(1000000)")
    assert second._cursor is first._cursor

    first.interrupt()
    first.close()

    assert table(second).num_rows == 1_000_000


def test_a_cursor_is_shared_for_a_while_only(open_session: OpenSession, monkeypatch: pytest.MonkeyPatch) -> None:
    session = open_session()
    table(run(session, "SELECT 1"))
    (old,) = session.cursors._idle
    begun_s = old.begun_s or 0.0
    monkeypatch.setattr("queryengine.execution.cursors.time.monotonic", lambda: begun_s + 1.5)

    reader = run(session, "SELECT 2")

    assert reader._cursor is not old
    assert table(reader).num_rows == 1
    with pytest.raises(duckdb.ConnectionException):
        old.connection.execute("SELECT 1")


def test_few_cursors_are_kept_and_none_after_close(open_session: OpenSession) -> None:
    session = open_session()
    readers = [run(session, "SELECT 1") for _ in range(12)]
    for reader in readers:
        table(reader)
    assert idle(session) == 8
    late = run(session, "SELECT 1")

    session.close()

    table(late)
    assert idle(session) == 0


@pytest.mark.parametrize(
    "sql", ["CREATE TEMP TABLE t AS SELECT 1", "SELECT 1; SELECT 2", "SET VARIABLE a = 1", "EXPLAIN SELECT 1"]
)
def test_a_text_that_is_not_one_query_shares_no_cursor(open_session: OpenSession, sql: str) -> None:
    session = open_session()

    with pytest.raises(StatementNotAllowedError, match="not a single query"):
        run_ungated(session, sql)

    assert idle(session) == 0


def test_a_transaction_is_read_only_behind_the_gate(open_session: OpenSession, publisher: Publisher) -> None:
    publisher.publish(flights="SELECT 1 AS id")
    session = open_session()
    table(run(session, "FROM flights"))

    with pytest.raises(SqlError):
        run_ungated(session, "WITH x AS (INSERT INTO flights VALUES (2) RETURNING *) FROM x")
    for sql in ("CREATE TABLE runtime.main.t AS SELECT 1", "CREATE OR REPLACE MACRO runtime.main.abs(x) AS 42"):
        with pytest.raises(StatementNotAllowedError, match="read-only"):
            run_ungated(session, sql, deterministic=False)

    assert table(run(session, "FROM flights")).num_rows == table(run(session, "SHOW TABLES")).num_rows == 1


def test_many_threads_share_cursors(open_session: OpenSession) -> None:
    session = open_session()

    def ask(thread: int) -> None:
        for number in range(1000 * thread, 1000 * thread + 60):
            assert rows(session, f"SELECT {number} AS a FROM range(3)") == [{"a": number}] * 3

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(ask, range(4)))
    assert 1 <= idle(session) <= 4

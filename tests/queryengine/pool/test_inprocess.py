"""What is true of the in-process engine alone; `test_engines` has what every engine does."""

import re
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest

from queryengine.engine import Query
from queryengine.errors import (
    EngineBusyError,
    EngineUnavailableError,
    QueryCancelledError,
    QueryError,
    QueryTimeoutError,
    ResourceLimitError,
    SqlError,
    StatementNotAllowedError,
)
from queryengine.execution.instance import EngineInstance
from queryengine.execution.statement_result import StatementResult
from queryengine.pool import statement_queue
from queryengine.pool.inprocess import InProcessEngine
from runtimeconf.errors import ConfigError
from runtimeconf.model import MIB
from tests.open_files import open_files
from tests.operating_system.full_disk import no_room
from tests.queryengine.asking import ask, begin, error_of
from tests.queryengine.conftest import FLIGHTS, MakeEngine
from tests.queryengine.publishing import ENDLESS, Publisher, wait_until


@pytest.fixture
def engine(publisher: Publisher, make_engine: MakeEngine) -> InProcessEngine:
    publisher.publish(flights=FLIGHTS)
    return make_engine(views={"few": "SELECT * FROM flights WHERE id < 3"})


def test_the_lock_holds_behind_the_gate(engine: InProcessEngine, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("a\n1\n")
    lease = engine._runner.sessions.lease()
    assert isinstance(lease.session, EngineInstance)
    cursor = lease.session._connection.cursor()
    cursor.execute("USE runtime")

    for sql in (
        f"FROM read_csv('{tmp_path}/data.csv')",
        f"COPY (SELECT 1) TO '{tmp_path}/out.csv'",
        f"ATTACH '{tmp_path}/new.duckdb' AS x",
        "SET memory_limit = '100GB'",
        "SET lock_configuration = false",
        "SET enable_external_access = true",
        "RESET max_execution_time",
        "INSTALL httpfs",
        "LOAD httpfs",
        "INSERT INTO _s0.main.flights VALUES (1, 'x', 1)",
        "SELECT * FROM secret_frame",
    ):
        secret_frame = duckdb.sql("SELECT 1")  # a replacement scan would look for it here
        with pytest.raises(duckdb.Error):
            cursor.execute(sql)
        del secret_frame
    cursor.close()
    lease.release()

    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["data.csv"]


@pytest.mark.parametrize("cast", ["1::VARIANT", "TRY_CAST([1] AS variant[])", "NULL::STRUCT(a VARIANT)"])
def test_a_cast_to_variant_is_refused(engine: InProcessEngine, cast: str) -> None:
    with pytest.raises(StatementNotAllowedError, match=r"write to_variant\(x\), or use the command serve"):
        ask(engine, f"SELECT {cast} AS v")

    assert ask(engine, "SELECT to_variant([1]) AS v") == b'[{"v":[1]}]'


def test_a_view_that_cannot_be_made_stops_the_start(publisher: Publisher, make_engine: MakeEngine) -> None:
    with pytest.raises(ConfigError, match=r"views\[0\]\.sql"):
        make_engine(views={"bad": "DELETE FROM flights"})

    assert not (publisher.state_dir / "tmp").exists()


def test_without_room_for_scratch_statements_run_and_only_a_spill_fails(
    publisher: Publisher, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.publish(flights=FLIGHTS)
    spilled = "SELECT hash(i)::VARCHAR || repeat('x', 200) AS s FROM range(2000000) t(i) ORDER BY s"
    spills = f"SELECT count(*) AS n FROM ({spilled})"
    with no_room(monkeypatch):
        engine = make_engine(memory_limit_bytes=192 * MIB)
    publisher.publish(flights="SELECT 7 AS id")

    assert ask(engine, "SELECT id FROM flights") == b'[{"id":7}]', "also in the session over newer data"
    with pytest.raises(ResourceLimitError, match=r"more (temporary space|memory) than is available"):
        ask(engine, spills)
    assert engine.is_alive()
    assert engine._runner.scratch.keep()
    assert ask(engine, spills) == b'[{"n":2000000}]'
    assert engine._runner.scratch.path.is_dir()


def test_duckdbs_own_clock_is_a_time_limit_too(make_engine: MakeEngine) -> None:
    engine = make_engine(timeout_s=0.5)
    engine._runner._watchdog.close()

    with pytest.raises(QueryTimeoutError):
        ask(engine, ENDLESS)

    engine._runner._watchdog = type(engine._runner._watchdog)()


def test_a_statement_that_loses_its_slot_to_another_key_is_repeated(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statement_queue, "RECLAIM_S", 0.0)
    engine = make_engine(workers=2, queue_timeout_s=0.5)
    begun: list[Future[StatementResult]] = []
    for query_id in ("older", "newer"):
        query = Query(sql=ENDLESS, query_id=query_id, fingerprint="flood")
        begun.append(begin(partial(engine.run, query)))
        wait_until(lambda: engine._admission.queue.running == len(begun))

    engine.run(Query(sql="SELECT 1", fingerprint="other")).close()

    with pytest.raises(EngineBusyError):
        engine.run(Query(sql="SELECT 1", fingerprint="flood"))
    states = {(one.query_id, one.state) for one in engine.active("flood")}
    assert states == {("older", "running"), ("newer", "queued")}, "it waits longer than others"
    assert engine.cancel("older", "flood")
    wait_until(lambda: [one.state for one in engine.active("flood")] == ["running"])
    assert engine.cancel("newer", "flood")
    assert [error_of(one) for one in begun] == [QueryCancelledError, QueryCancelledError]


def test_close_ends_what_runs_and_leaves_nothing(engine: InProcessEngine, publisher: Publisher) -> None:
    assert engine.status() is None, "there are no worker processes"
    streaming = engine.run(Query(sql="SELECT * FROM range(200000000)"))
    running = begin(lambda: ask(engine, ENDLESS))
    wait_until(lambda: engine._admission.queue.running == 2)

    engine.close()
    engine.close()

    assert isinstance(running.exception(2), EngineUnavailableError)
    with pytest.raises(EngineUnavailableError):
        list(streaming)
    assert list((publisher.state_dir / "tmp").iterdir()) == []
    wait_until(lambda: not open_files(publisher.state_dir))
    assert not engine.is_alive()
    with pytest.raises(EngineUnavailableError):
        ask(engine, "SELECT 1")


def test_spilled_files_are_in_the_state_directory_and_are_removed(
    publisher: Publisher, make_engine: MakeEngine
) -> None:
    engine = make_engine(memory_limit_bytes=100 * 2**20)
    scratch = publisher.state_dir / "tmp"
    sql = "SELECT v FROM (SELECT repeat(range::VARCHAR, 8) AS v FROM range(3000000) ORDER BY hash(range))"

    result = engine.run(Query(sql=sql))
    spilled = [path for path in scratch.rglob("*") if path.is_file()]
    result.close()
    engine.close()

    assert spilled
    assert scratch.stat().st_mode & 0o077 == 0
    assert list(scratch.iterdir()) == []


def test_an_encoder_that_fails_is_an_error_of_this_room(
    engine: InProcessEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Any:
        yield (b"[",)
        raise ZeroDivisionError

    monkeypatch.setattr("queryengine.execution.statement_runner.encode_parts", broken)

    with pytest.raises(QueryError, match="could not be encoded"):
        ask(engine, "SELECT 1")

    assert engine._admission.queue.running == 0


@pytest.mark.parametrize(
    ("sql", "line"),
    [
        pytest.param("SELECT 1, nope", "LINE 1: SELECT 1, nope", id="a column"),
        pytest.param("SELECT 1,\n nope", "LINE 2:  nope", id="on the second line"),
        pytest.param("-- a comment\n\n SELECT 1,\n nope", "LINE 4:  nope", id="after a comment"),
        pytest.param("-- a comment\r\nSELECT 1,\r\n nope", "LINE 3:  nope", id="Windows line ends"),
        pytest.param(
            "/* é\n🦆 */ SELECT '日本', nope", "LINE 2: SELECT '日本', nope", id="characters of several bytes"
        ),
        pytest.param("\nSELECT 1::UHUGEINT,\n nope", "LINE 3:  nope", id="a projected statement"),
        pytest.param("\nSELECT 1::UHUGEINT,\n 'x'::INTEGER", "LINE 3:  'x'::INTEGER", id="a value"),
        pytest.param("\nexplain analyze SELECT 1,\n nope", "LINE 3:  nope", id="explained"),
        pytest.param("\nexplain SELECT nope", "LINE 2: SELECT nope", id="explained on one line"),
        pytest.param("\n\nPIVOT flights\nON nope", "LINE 4: ON nope", id="a pivot"),
        pytest.param("\nSUMMARIZE\nSELECT nope", "LINE 3: SELECT nope", id="summarised"),
        pytest.param("\nSELECT $1,\n nope", "LINE 3:  nope", id="parameters"),
    ],
)
def test_an_error_shows_its_line_as_it_was_sent(engine: InProcessEngine, sql: str, line: str) -> None:
    parameters = [1] if "$1" in sql else None
    for _ in range(2):  # the second time it is known, and may be run another way
        with pytest.raises(SqlError) as refused:
            ask(engine, sql, parameters)
        assert str(refused.value).split("\n\n")[1].split("\n")[0].rstrip() == line
    if "nope" in sql:
        with pytest.raises(SqlError, match="\n\n" + re.escape(line)):
            engine.describe(Query(sql=sql, parameters=parameters))

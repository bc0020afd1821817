import io
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

from queryengine.cancellation import Interruption
from queryengine.engine import Query
from queryengine.errors import (
    DatasetNotLoadedError,
    EngineUnavailableError,
    ParameterError,
    QueryCancelledError,
    QueryError,
    QueryTimeoutError,
    SqlError,
    SqlSyntaxError,
    StatementNotAllowedError,
)
from tests.cluster.clusters import ENDLESS, ClusterEngine, Sail, config_of, in_place, write_flights
from tests.cluster.conftest import MakeClusterEngine
from tests.cluster.kubernetes import SailCluster
from tests.queryengine.publishing import wait_until


@pytest.mark.parametrize(
    ("sql", "answer"),
    [
        ("SELECT count(*) AS n, sum(id) AS s FROM flights", b'[{"n":1000,"s":499500}]'),
        ("SELECT id FROM FLIGHTS WHERE id < 2 ORDER BY id", b'[{"id":0},{"id":1}]'),
        ("SELECT * FROM few ORDER BY id", b'[{"id":0},{"id":1},{"id":2}]'),
        ("SELECT id FROM flights WHERE id < 0", b"[]"),
        ("SELECT 1 AS a, 2 AS a", b'[{"a":1,"a_1":2}]'),
        (
            "SELECT true AS b, 1.50BD AS d, DATE '2024-02-03' AS day, TIMESTAMP '2024-02-03 04:05:06' AS at",
            b'[{"b":true,"d":1.50,"day":"2024-02-03","at":"2024-02-03T04:05:06Z"}]',
        ),
        (
            "SELECT array(1, 2) AS l, map('k', 1) AS m, named_struct('a', 1) AS r, NULL AS n",
            b'[{"l":[1,2],"m":{"k":1},"r":{"a":1},"n":null}]',
        ),
        ("DESCRIBE few", b'[{"col_name":"id","data_type":"bigint","comment":null}]'),
    ],
)
def test_a_statement_is_answered_by_the_cluster(engine: ClusterEngine, sql: str, answer: bytes) -> None:
    assert engine.run(sql) == answer


def test_names_with_a_dot_are_in_their_schema(sail: Sail, tmp_path: Path) -> None:
    dataset = replace(in_place("flights", write_flights(tmp_path)), name="air.flights")
    views = {"air.few": "SELECT id FROM air.flights WHERE id < 2", "few": "SELECT id FROM air.few WHERE id < 1"}
    config = config_of(tmp_path / "state", sail.address, [dataset], views)
    with closing(ClusterEngine(config)) as engine:
        assert engine.run("SELECT air.few.id FROM runtime.air.few ORDER BY 1") == b'[{"id":0},{"id":1}]'
        assert engine.run("SELECT * FROM few") == b'[{"id":0}]'
        assert engine.run("SELECT count(*) AS n FROM air.flights", relations={"air.flights"}) == b'[{"n":1000}]'
        with pytest.raises(SqlError, match=r"^Table 'air\.flights' does not exist\.$"):
            engine.run("SELECT * FROM air.flights", relations=())
        for sql in ('FROM "air"."few"', 'SELECT * FROM "runtime"."air"."few"'):  # of Flight SQL's metadata
            described = engine.describe(sql).schema
            assert described is not None
            assert pa.ipc.read_schema(pa.py_buffer(described)).names == ["id"]


def test_each_format_has_the_rows(engine: ClusterEngine) -> None:
    sql = "SELECT id, name FROM flights WHERE id < 2 ORDER BY id"

    assert engine.run(sql, encoding="csv") == b"id,name\n0,n0\n1,n1\n"
    assert json.loads(engine.run(sql, encoding="vnd"))["row_count"] == 2
    with pa.ipc.open_stream(io.BytesIO(engine.run(sql, encoding="arrow"))) as stream:
        assert stream.read_all().to_pydict() == {"id": [0, 1], "name": ["n0", "n1"]}
    with pa.ipc.open_stream(io.BytesIO(engine.run("SELECT id FROM few WHERE id < 0", encoding="arrow"))) as stream:
        assert stream.read_all().schema == pa.schema([("id", pa.int64())])


@pytest.mark.parametrize(
    ("sql", "parameters", "answer"),
    [
        ("SELECT count(*) AS n FROM flights WHERE id < ? AND carrier = ?", [10, 0], b'[{"n":4}]'),
        ("SELECT name FROM flights WHERE id = $id", {"id": 7}, b'[{"name":"n7"}]'),
        ("SELECT :x AS x", {"x": "it's"}, b'[{"x":"it\'s"}]'),
        (
            "SELECT ? AS a, ? AS b, ? AS c, ? AS d",
            [None, True, 1.5, 2**40],
            b'[{"a":null,"b":true,"c":1.5,"d":1099511627776}]',
        ),
    ],
)
def test_parameters_are_arguments(engine: ClusterEngine, sql: str, parameters: object, answer: bytes) -> None:
    assert engine.run(sql, parameters) == answer


@pytest.mark.parametrize(
    ("sql", "error", "message"),
    [
        ("SELECT altitude FROM flights", SqlError, "altitude"),
        ("SELECT * FROM nowhere", SqlError, "nowhere"),
        ("SELEC 1", SqlSyntaxError, "SELEC"),
        ("SELECT * FROM parquet.`/etc/passwd`", StatementNotAllowedError, ""),
        ("SELECT INTERVAL 1 DAY AS i", SqlError, 'Column "i" has the type interval day to second'),
        ("SELECT * FROM unfit", SqlError, "View 'unfit' does not fit the data"),
        ("SELECT * FROM missing", DatasetNotLoadedError, "Dataset 'missing' cannot be read by the cluster"),
        ("SELECT ? AS a", ParameterError, "takes 1 parameter"),
    ],
)
def test_an_error_is_of_the_tree(engine: ClusterEngine, sql: str, error: type[QueryError], message: str) -> None:
    with pytest.raises(error) as caught:
        engine.run(sql, [] if "?" in sql else None)

    assert message in str(caught.value)
    assert type(caught.value) is error
    assert "file:" not in str(caught.value)


@pytest.mark.parametrize("mode", ["", "EXTENDED ", "FORMATTED ", "COST "])
def test_a_plan_shows_declared_names_and_no_paths(engine: ClusterEngine, tmp_path: Path, mode: str) -> None:
    plan = engine.run(f"EXPLAIN {mode}SELECT f.id FROM flights f JOIN few ON f.id = few.id").decode()

    assert "Physical Plan" in plan
    assert ("few" in plan) == bool(mode in {"EXTENDED ", "COST "})
    assert not re.search(r"v[0-9a-f]{16}", plan)
    assert str(tmp_path) not in plan


@pytest.mark.parametrize(
    ("sql", "names", "parameters"),
    [
        ("SELECT id, name AS n FROM flights", ["id", "n"], ()),
        ("SELECT id FROM flights WHERE id = ?", ["id"], ("1",)),
        ("EXPLAIN SELECT 1", ["plan"], ()),
        ("SHOW TABLES", ["namespace", "tableName", "isTemporary"], ()),
    ],
)
def test_a_statement_is_described_as_it_is_answered(
    engine: ClusterEngine, sql: str, names: list[str], parameters: tuple[str, ...]
) -> None:
    described = engine.describe(sql)

    assert described.schema is not None
    schema = pa.ipc.read_schema(pa.py_buffer(described.schema))
    assert (schema.names, described.parameters, described.answer) == (names, parameters, None)
    with pa.ipc.open_stream(io.BytesIO(engine.run(sql, [1] * len(parameters) or None, encoding="arrow"))) as stream:
        assert stream.schema == schema


def test_a_wrong_statement_cannot_be_described(engine: ClusterEngine) -> None:
    with pytest.raises(SqlError, match="altitude"):
        engine.describe("SELECT altitude FROM flights")

    assert engine.describe("SELECT altitude FROM flights WHERE id = ?").schema is None


def test_the_results_of_a_cluster_are_not_kept(engine: ClusterEngine) -> None:
    lease = engine.runner.sessions.lease(engine.runner.admit("SELECT 1", frozenset()))
    lease.release()

    assert not lease.session.is_cacheable(engine.runner.admit("SELECT 1", frozenset()))
    assert not lease.session.holds_superseded({})


def test_a_cancelled_statement_stops_on_the_cluster(engine: ClusterEngine, sail: Sail) -> None:
    interruption = Interruption()
    timer = threading.Timer(1.0, interruption.stop, (QueryCancelledError,))
    timer.start()

    with pytest.raises(QueryCancelledError):
        engine.run(ENDLESS, interruption=interruption)

    sail.wait_until_idle()
    assert engine.run("SELECT 1 AS a") == b'[{"a":1}]'


def test_a_statement_has_its_time(engine: ClusterEngine, sail: Sail) -> None:
    with pytest.raises(QueryTimeoutError):
        engine.run(ENDLESS, limit_s=1.0)

    sail.wait_until_idle()


def test_a_result_that_is_not_read_to_its_end_stops(engine: ClusterEngine, sail: Sail) -> None:
    with ExitStack() as held:
        query = Query(sql="SELECT a.id FROM range(0, 100000) a, range(0, 1000000) b", query_id="r")
        result = engine.runner.run(query, Interruption(), held)
    assert next(iter(result)).startswith(b'[{"id":')
    result.close()

    sail.wait_until_idle()


def test_a_session_that_has_ended_is_replaced(engine: ClusterEngine) -> None:
    first = engine.session_id()
    engine.connection().release_session(first)

    assert engine.run("SELECT count(*) AS n FROM flights") == b'[{"n":1000}]'
    assert engine.session_id() != first


@pytest.mark.exhaustive
def test_a_statement_whose_session_ends_begins_again_in_the_next_one(
    make_cluster_engine: MakeClusterEngine, tmp_path: Path
) -> None:
    with SailCluster(tmp_path) as cluster, ThreadPoolExecutor(1) as pool:
        engine = make_cluster_engine(cluster)
        first, before = engine.session_id(), cluster.cpu_s()
        sql = "SELECT sum((a.id * b.id) % 7) AS n FROM range(0, 140) a, range(0, 7000000) b"
        asked = pool.submit(engine.run, sql)
        wait_until(lambda: cluster.cpu_s() > before + 0.5, within_s=60.0)

        engine.connection().release_session(first)

        assert asked.result() == b'[{"n":2520000000}]'
        assert engine.session_id() != first


@pytest.mark.exhaustive
def test_a_cluster_that_was_started_again_is_told_everything_again(
    make_cluster_engine: MakeClusterEngine, tmp_path: Path
) -> None:
    with Sail(tmp_path) as cluster:
        engine = make_cluster_engine(cluster)
        assert engine.run("SELECT count(*) AS n FROM few") == b'[{"n":3}]'
        cluster.kill()
        with pytest.raises(EngineUnavailableError, match="cannot be reached"):
            engine.run("SELECT count(*) AS n FROM few")
        wait_until(lambda: not engine.runner.sessions.is_ready)
        cluster.start()

        wait_until(lambda: engine.runner.sessions.is_ready)
        assert engine.run("SELECT count(*) AS n FROM few") == b'[{"n":3}]'


def test_an_engine_starts_without_its_cluster(make_cluster_engine: MakeClusterEngine, tmp_path: Path) -> None:
    cluster = Sail(tmp_path)

    engine = make_cluster_engine(cluster)

    assert not engine.runner.sessions.is_ready
    with pytest.raises(EngineUnavailableError, match="cannot be reached"):
        engine.run("SELECT 1")


def test_csv_files_are_read_with_their_parameters(sail: Sail, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("1;'a;b'\n2;c\n")
    params = {"file_format": "csv", "csv_has_header": "false", "csv_delimiter": ";", "csv_quote": "'"}
    config = config_of(tmp_path / "state", sail.address, [in_place("rows", tmp_path / "rows.csv", **params)])
    with closing(ClusterEngine(config)) as engine:
        assert engine.run("SELECT * FROM rows ORDER BY 1") == b'[{"_c0":1,"_c1":"a;b"},{"_c0":2,"_c1":"c"}]'

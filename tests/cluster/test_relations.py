"""Datasets that the runtime loads, and a cluster reads as Parquet."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from cluster.config import ClusterConfig
from cluster.keeper import BEAT_S, DEFINE_S, DROP_S, Keeper
from cluster.protocol import messages
from cluster.shared_session import VIEW_PREFIX
from queryengine.errors import DatasetNotLoadedError, QueryError
from runtimeconf.model import DatasetConfig, RuntimeConfig
from tests.cluster.clusters import (
    ClusterEngine,
    Sail,
    SharedPublisher,
    config_of,
    in_place,
    write_flights,
)
from tests.queryengine.publishing import wait_until

VIEWS = {"totals": "SELECT version, count(*) AS n, sum(x) AS s FROM numbers GROUP BY version"}


def numbers(version: int, rows: int = 1000) -> str:
    """Return the rows of one version of the dataset `numbers`."""
    return f"SELECT {version} AS version, i * {version} AS x FROM range({rows}) t(i)"


@pytest.fixture
def shared(tmp_path: Path) -> SharedPublisher:
    return SharedPublisher(tmp_path / "state", tmp_path / "storage")


@pytest.fixture
def config(sail: Sail, tmp_path: Path, shared: SharedPublisher) -> RuntimeConfig:
    loaded = [DatasetConfig(name=name, from_="postgres:t", connector="postgres") for name in ("numbers", "Other")]
    datasets = [*loaded, in_place("flights", write_flights(tmp_path))]
    return config_of(tmp_path / "state", sail.address, datasets, VIEWS, location=shared.location)


@pytest.fixture
def engine(config: RuntimeConfig) -> Iterator[ClusterEngine]:
    with closing(ClusterEngine(config)) as made:
        yield made


def test_each_statement_reads_what_is_published_when_it_begins(engine: ClusterEngine, shared: SharedPublisher) -> None:
    with pytest.raises(DatasetNotLoadedError, match="Dataset 'numbers' is not loaded yet"):
        engine.run("SELECT * FROM numbers")
    with pytest.raises(DatasetNotLoadedError, match="View 'totals' has no data yet"):
        engine.run("SELECT * FROM totals")
    session_id = engine.session_id()

    for version in (1, 2, 3):
        shared.publish(numbers=numbers(version))
        assert engine.run("SELECT * FROM totals") == (
            f'[{{"version":{version},"n":1000,"s":{499500 * version}}}]'.encode()
        )
        assert engine.run("SELECT max(x) AS m FROM numbers") == f'[{{"m":{999 * version}}}]'.encode()

    assert engine.run("SELECT count(*) AS n FROM flights") == b'[{"n":1000}]'
    assert engine.session_id() == session_id


def test_a_publication_concerns_only_its_readers(engine: ClusterEngine, shared: SharedPublisher) -> None:
    shared.publish(numbers=numbers(1), other="SELECT 1 AS a")
    session = engine.session
    files = {one.dataset: one.file for one in shared.publish(other="SELECT 2 AS a").snapshots}

    def reads_the_same(sql: str) -> bool:
        known = frozenset({"numbers", "other", "flights", "totals"})
        return session.reads_the_same(engine.runner._gate.admit(sql, known), files)

    assert reads_the_same("SELECT * FROM totals JOIN flights ON id = n")
    assert not reads_the_same("SELECT * FROM totals JOIN other ON a = n")
    assert not reads_the_same("SHOW TABLES")
    assert engine.run("SELECT a FROM OTHER") == b'[{"a":2}]'


def test_no_statement_sees_two_versions(engine: ClusterEngine, shared: SharedPublisher) -> None:
    shared.publish(numbers=numbers(1))
    ended = threading.Event()
    answers: list[bytes] = []

    def ask() -> None:
        while not ended.is_set():
            sql = "SELECT a.version, t.version AS v, count(*) AS n FROM numbers a, totals t GROUP BY 1, 2"
            answers.append(engine.run(sql))

    thread = threading.Thread(target=ask)
    thread.start()
    for version in range(2, 6):
        shared.publish(numbers=numbers(version))
        answered = len(answers)
        wait_until(lambda answered=answered: len(answers) > answered + 1)  # type: ignore[misc]
    ended.set()
    thread.join()

    assert set(answers) <= {f'[{{"version":{v},"v":{v},"n":1000}}]'.encode() for v in range(1, 6)}
    assert answers[-1] == b'[{"version":5,"v":5,"n":1000}]'


TYPES = """
SELECT true AS bool, (-128)::TINYINT AS i8, 255::UTINYINT AS u8, 65535::USMALLINT AS u16, 4294967295::UINTEGER AS u32,
    18446744073709551615::UBIGINT AS u64, 99999999999999999999999999999999999999::HUGEINT AS i128, 7::UHUGEINT AS u128,
    1.5::FLOAT AS f, 0.1 + 0.2 AS d, 1.50::DECIMAL(38,10) AS dec, 'é "x"' AS s, '\\x00\\xFF'::BLOB AS blob,
    DATE '1500-02-28' AS day, TIMESTAMP '1969-12-31 23:59:59.999999' AS ts,
    TIMESTAMPTZ '2024-02-03 04:05:06.5+00' AS tz, TIMESTAMP_S '2024-01-01 00:00:01' AS ts_s,
    TIMESTAMP_MS '2024-01-01 00:00:00.001' AS ts_ms, TIMESTAMP_NS '2024-01-01 00:00:00.000001' AS ts_ns,
    TIME '01:02:03.000004' AS t, '87c6ae0a-0d25-4bd1-9b6c-e4bb2d8a6b8c'::UUID AS u, 'a'::ENUM('a', 'b') AS e,
    INTERVAL '1 day 2 seconds' AS iv, [1, NULL]::UTINYINT[] AS l,
    {'a b': 1::UBIGINT, 'd': [{'e': DATE '2024-01-01'}]} AS st, MAP {'k': 1::UINTEGER} AS m, NULL::INTEGER AS n
"""


def test_values_are_those_of_the_snapshot(
    engine: ClusterEngine, config: RuntimeConfig, shared: SharedPublisher
) -> None:
    shared.publish(numbers=numbers(1, 0), other=TYPES)

    with closing(ClusterEngine(replace(config, engine=None, datasets=config.datasets[:2], views=()))) as duckdb_engine:
        assert engine.run("SELECT * FROM other") == duckdb_engine.run("SELECT * FROM other")
    assert engine.run("SELECT * FROM numbers") == b"[]"


def test_the_keeper_defines_new_versions_and_drops_old_ones(
    engine: ClusterEngine, config: RuntimeConfig, shared: SharedPublisher
) -> None:
    assert config.engine is not None
    keeper = Keeper(config, ClusterConfig.of(config.engine), "a")
    shared.publish(numbers=numbers(1))
    keeper.step(0.0)
    before = set(engine.connection().options(engine.session_id(), VIEW_PREFIX))

    shared.publish(numbers=numbers(2))
    keeper.step(BEAT_S)
    both = set(engine.connection().options(engine.session_id(), VIEW_PREFIX))
    assert before < both
    old = next(view for view in before if view.endswith("_numbers"))

    for now in (DEFINE_S, DEFINE_S + DROP_S, 2 * DEFINE_S + DROP_S):
        keeper.step(now)
    left = set(engine.connection().options(engine.session_id(), VIEW_PREFIX))
    assert old in both - left
    assert engine.run("SELECT max(version) AS v FROM numbers") == b'[{"v":2}]'
    with pytest.raises(QueryError, match=old):
        engine.connection().row_type(
            engine.session_id(), messages.Relation(sql=messages.SQL(query=f"SELECT * FROM `{old}`"))
        )
    keeper.leave()


def test_a_view_that_was_dropped_is_defined_again(engine: ClusterEngine, shared: SharedPublisher) -> None:
    shared.publish(numbers=numbers(1))
    assert engine.run("SELECT max(version) AS v FROM numbers") == b'[{"v":1}]'
    view = engine.session._required().relations["numbers"].view

    engine.session._shared.drop(engine.session_id(), view)

    assert engine.run("SELECT max(version) AS v FROM numbers") == b'[{"v":1}]'

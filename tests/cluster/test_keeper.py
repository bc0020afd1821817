import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from cluster.cancelled_jobs import STUCK_S
from cluster.config import ClusterConfig
from cluster.connection import Connection
from cluster.errors import SessionLostError
from cluster.identity import engine_tag, query_tag
from cluster.keeper import BEAT_S, DEFINE_S, STALE_S, Keeper
from cluster.protocol import messages
from queryengine.errors import QueryError, QueryTimeoutError
from runtimeconf.model import RuntimeConfig
from tests.cluster.clusters import (
    ENDLESS,
    UNSTOPPABLE,
    ClusterEngine,
    Sail,
    config_of,
    in_place,
    write_flights,
)
from tests.cluster.kubernetes import SailCluster
from tests.queryengine.publishing import wait_until

BEATS = "spark.querykeep.engine."


@pytest.fixture
def config(sail: Sail, tmp_path: Path) -> RuntimeConfig:
    datasets = [in_place("flights", write_flights(tmp_path))]
    return config_of(tmp_path / "state", sail.address, datasets, {"few": "SELECT id FROM flights WHERE id < 3"})


@pytest.fixture
def connection(config: RuntimeConfig) -> Iterator[Connection]:
    connection = Connection(cluster_of(config))
    yield connection
    connection.close()


def cluster_of(config: RuntimeConfig) -> ClusterConfig:
    assert config.engine is not None
    return ClusterConfig.of(config.engine)


def keeper_of(config: RuntimeConfig, engine: str) -> Keeper:
    return Keeper(config, cluster_of(config), engine)


def session_of(keeper: Keeper) -> str:
    assert keeper._session is not None
    return keeper._session.id


def begin(connection: Connection, session_id: str, *tags: str) -> object:
    """Begin an endless operation, and return the call once the cluster runs it."""
    plan = messages.Plan(root=messages.Relation(sql=messages.SQL(query=ENDLESS)))
    call = connection.execute(session_id, plan, str(uuid.uuid4()), tags)
    next(call)
    return call


def ends(call: object) -> bool:
    """Return whether the operation ends before its result is complete."""
    return not any(response.HasField("result_complete") for response in call)  # type: ignore[attr-defined]


def test_the_last_engine_ends_the_session(config: RuntimeConfig, connection: Connection) -> None:
    first, second = keeper_of(config, "a"), keeper_of(config, "b")
    for keeper in (first, second):
        keeper.step(0.0)
    session_id = session_of(first)
    assert session_of(second) == session_id
    assert set(connection.options(session_id, BEATS)) == {"a", "b"}

    first.leave()
    assert set(connection.options(session_id, BEATS)) == {"b"}

    second.leave()
    with pytest.raises(SessionLostError):
        connection.options(session_id, BEATS)


def test_an_engine_that_is_gone_leaves_nothing_running(config: RuntimeConfig, connection: Connection) -> None:
    gone, other = keeper_of(config, "gone"), keeper_of(config, "other")
    gone.step(0.0)
    other.step(0.0)
    call = begin(connection, session_of(gone), engine_tag("gone"))

    assert 0 < other.step(STALE_S - 1) <= BEAT_S
    assert set(connection.options(session_of(other), BEATS)) == {"gone", "other"}
    other.step(STALE_S + BEAT_S)

    assert ends(call)
    assert set(connection.options(session_of(other), BEATS)) == {"other"}
    other.leave()


def test_the_engine_that_took_over_need_not_wait(config: RuntimeConfig, connection: Connection) -> None:
    gone = keeper_of(config, "gone")
    gone.step(0.0)
    call = begin(connection, session_of(gone), engine_tag("gone"))
    successor = Keeper(config, cluster_of(config), "next", predecessor="gone")

    successor.step(0.0)

    assert ends(call)
    assert set(connection.options(session_of(successor), BEATS)) == {"next"}
    successor.leave()


def test_an_engine_that_beats_is_left_alone(config: RuntimeConfig, connection: Connection) -> None:
    first, second = keeper_of(config, "a"), keeper_of(config, "b")
    for number in range(8):
        for keeper in (first, second):
            keeper.step(number * BEAT_S)

    assert set(connection.options(session_of(first), BEATS)) == {"a", "b"}
    first.leave()
    second.leave()


def test_the_operation_of_a_lost_worker_is_ended(config: RuntimeConfig, connection: Connection) -> None:
    keeper = keeper_of(config, "a")
    keeper.step(0.0)
    call = begin(connection, session_of(keeper), engine_tag("a"), query_tag("lost"))

    keeper.lost("lost", 1.0)
    assert 0 < keeper.step(1.0) <= 2.0

    assert ends(call)
    keeper.leave()


def test_a_session_whose_cluster_does_not_stop_is_replaced(tmp_path: Path) -> None:
    with (
        SailCluster(tmp_path) as cluster,
        closing(ClusterEngine(config_of(tmp_path / "state", cluster.address, []))) as engine,
    ):
        keeper = keeper_of(engine.runner._config, "a")
        keeper.step(0.0)
        first = session_of(keeper)
        with pytest.raises(QueryTimeoutError):
            engine.run(UNSTOPPABLE, limit_s=3.0)

        keeper.step(BEAT_S)
        keeper.step(BEAT_S + STUCK_S)
        keeper.step(BEAT_S + STUCK_S)

        assert session_of(keeper) != first
        cluster.wait_until_idle()
        assert engine.run("SELECT 1 AS a") == b'[{"a":1}]'
        assert engine.session_id() == session_of(keeper)
        keeper.leave()


def test_files_that_are_new_are_seen_after_a_while(config: RuntimeConfig, tmp_path: Path) -> None:
    keeper = keeper_of(config, "a")
    keeper.step(0.0)
    (tmp_path / "flights" / "1000.parquet").rename(tmp_path / "flights" / "renamed.parquet")

    keeper.step(DEFINE_S)

    assert keeper._session is not None
    assert keeper._session.unreadable == {}
    keeper.leave()


def test_a_session_that_has_ended_is_begun_again(config: RuntimeConfig, connection: Connection) -> None:
    keeper = keeper_of(config, "a")
    keeper.step(0.0)
    first = session_of(keeper)
    connection.release_session(first)

    keeper.step(BEAT_S)
    keeper.step(2 * BEAT_S)

    assert session_of(keeper) != first
    keeper.leave()


def test_a_cluster_that_is_gone_is_waited_for(config: RuntimeConfig, tmp_path: Path) -> None:
    with ExitStack() as held:
        cluster = held.enter_context(Sail(tmp_path))
        keeper = Keeper(config, ClusterConfig(address=cluster.address), "a")
        keeper.step(0.0)
        cluster.kill()

        assert keeper.step(BEAT_S) == pytest.approx(BEAT_S)
        keeper.leave()
        cluster.start()

        wait_until(lambda: _step(keeper) and keeper._session is not None)
        cluster.kill()
        keeper.leave()  # which is not raised


def _step(keeper: Keeper) -> bool:
    try:
        keeper._beat_at = 0.0
        keeper.step(1.0)
    except QueryError:
        return False
    return True

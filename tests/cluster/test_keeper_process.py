"""An engine whose workers run statements on a cluster, and what becomes of them when something dies."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from queryengine.cancellation import CancelSource
from queryengine.engine import Query, QueryEngine
from queryengine.errors import (
    EngineUnavailableError,
    EngineWorkerDiedError,
    QueryCancelledError,
    QueryError,
    QueryTimeoutError,
)
from system.addresses import Address
from system.process_usage import children
from tests.cluster.clusters import ENDLESS, Sail, config_of, in_place, write_flights
from tests.queryengine import worker_engine
from tests.queryengine.heartbeats import state_of
from tests.queryengine.publishing import wait_until

COUNT = Query(sql="SELECT count(*) AS n FROM flights")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sail]:
    with Sail(tmp_path_factory.mktemp("sail")) as started:
        yield started


@pytest.fixture(scope="module")
def started(cluster: Sail, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[QueryEngine, int]]:
    """An engine, and its process id: that of the only child of this process which is new."""
    directory = tmp_path_factory.mktemp("engine")
    address = Address("localhost", cluster.port)  # A worker may ask for the address of a name.
    config = config_of(directory / "state", address, [in_place("flights", write_flights(directory))])
    before = set(children(os.getpid()))
    with worker_engine.running(config) as engine:
        (pid,) = set(children(os.getpid())) - before
        yield engine, pid


@pytest.fixture
def engine(started: tuple[QueryEngine, int]) -> QueryEngine:
    return started[0]


@pytest.fixture
def arbiter(started: tuple[QueryEngine, int]) -> int:
    return started[1]


def workers(arbiter: int) -> dict[int, str]:
    """Return the phase of each worker by its process id. The keeper has no heartbeat file."""
    phases = {pid: state_of(pid).phase for pid in children(arbiter)}
    return {pid: phase for pid, phase in phases.items() if phase != "booting"}


def answer(engine: QueryEngine, query: Query = COUNT) -> bytes:
    result = engine.run(query)
    try:
        return b"".join(result)
    finally:
        result.close()


def answers(engine: QueryEngine) -> bool:
    """Whether a worker has a connection to the cluster."""
    try:
        return answer(engine) == b'[{"n":1000}]'
    except EngineUnavailableError:
        return False


def begin_endless(engine: QueryEngine, arbiter: int, pool: ThreadPoolExecutor) -> tuple[Future[bytes], int]:
    """Begin an endless statement; return its answer and its worker."""
    begun = pool.submit(answer, engine, Query(sql=ENDLESS))
    busy: list[int] = []

    def is_busy() -> bool:
        busy[:] = [pid for pid, phase in workers(arbiter).items() if phase == "busy"]
        return bool(busy)

    wait_until(is_busy)
    return begun, busy[0]


def test_workers_answer_from_the_cluster(engine: QueryEngine) -> None:
    assert answer(engine) == b'[{"n":1000}]'
    assert answer(engine, Query(sql="SELECT 1 AS a WHERE 1 = ?", parameters=[1])) == b'[{"a":1}]'


def test_the_operation_of_a_worker_that_was_killed_is_ended(engine: QueryEngine, arbiter: int, cluster: Sail) -> None:
    with ThreadPoolExecutor(1) as pool:
        begun, worker = begin_endless(engine, arbiter, pool)
        wait_until(lambda: cluster.cpu_s() > 0)
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(EngineWorkerDiedError):
            begun.result()

    cluster.wait_until_idle()
    assert answer(engine) == b'[{"n":1000}]'


@pytest.mark.exhaustive
def test_the_time_limit_ends_the_operation_and_spares_the_worker(
    engine: QueryEngine, arbiter: int, cluster: Sail
) -> None:
    wait_until(lambda: len(workers(arbiter)) == 2)
    before = set(workers(arbiter))

    with pytest.raises(QueryTimeoutError):
        answer(engine, Query(sql=ENDLESS, limit_s=1.5, timeout_s=1.5))

    cluster.wait_until_idle()
    assert set(workers(arbiter)) == before


@pytest.mark.exhaustive
def test_a_caller_that_leaves_ends_the_operation(engine: QueryEngine, cluster: Sail) -> None:
    cancel = CancelSource()
    timer = threading.Timer(1.0, cancel.cancel)
    timer.start()

    with pytest.raises(QueryCancelledError):
        engine.run(Query(sql=ENDLESS), cancel)

    cluster.wait_until_idle()


def test_a_keeper_that_died_is_replaced(engine: QueryEngine, arbiter: int) -> None:
    wait_until(lambda: len(workers(arbiter)) == 2)
    (keeper,) = set(children(arbiter)) - set(workers(arbiter))
    os.kill(keeper, signal.SIGKILL)

    wait_until(lambda: bool(set(children(arbiter)) - set(workers(arbiter)) - {keeper}))
    assert answer(engine) == b'[{"n":1000}]'


@pytest.mark.exhaustive
def test_two_slots_are_kept_for_short_statements(cluster: Sail, tmp_path: Path) -> None:
    config = config_of(tmp_path / "state", cluster.address, [in_place("flights", write_flights(tmp_path))])
    with worker_engine.running(config) as engine, ThreadPoolExecutor(4) as pool:
        assert answer(engine) == b'[{"n":1000}]'
        endless = [pool.submit(answer, engine, Query(sql=ENDLESS, fingerprint=key)) for key in "ab"]
        wait_until(lambda: (status := engine.status()) is not None and status.queued == 1)

        assert answer(engine, Query(sql=COUNT.sql, fingerprint="c")) == b'[{"n":1000}]'

        assert not any(statement.done() for statement in endless)
        engine.close()
        for statement in endless:
            with pytest.raises(QueryError):
                statement.result()
    cluster.wait_until_idle()


@pytest.mark.exhaustive
def test_a_cluster_that_is_gone_makes_the_engine_unready(tmp_path: Path) -> None:
    with Sail(tmp_path) as cluster:
        config = config_of(tmp_path / "state", cluster.address, [in_place("flights", write_flights(tmp_path))])
        with worker_engine.running(config) as engine:
            assert answer(engine) == b'[{"n":1000}]'

            cluster.kill()
            wait_until(lambda: not engine.is_alive())

            cluster.start()
            wait_until(engine.is_alive)
            wait_until(lambda: answers(engine))

import collections
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from cluster.cancelled_jobs import SHARED_S, STUCK_S, CancelledJobs
from cluster.config import ClusterConfig
from cluster.connection import Connection
from cluster.protocol import messages
from queryengine.errors import EngineUnavailableError, StatementError
from tests.cluster.clusters import ENDLESS, UNSTOPPABLE, Sail, cpu_s
from tests.cluster.kubernetes import SailCluster
from tests.queryengine.publishing import wait_until

_T = TypeVar("_T")


def answer_of(call: Callable[[], _T]) -> _T:
    """Return what *call* asks of a cluster, which may be too busy to answer at once."""
    for _ in range(5):
        with suppress(EngineUnavailableError):
            return call()
    return call()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SailCluster]:
    with SailCluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def connection(cluster: SailCluster) -> Iterator[Connection]:
    with closing(Connection(ClusterConfig(address=cluster.address))) as connection:
        yield connection


def begin(cluster: SailCluster, connection: Connection, session_id: str, sql: str) -> tuple[str, Any]:
    """Begin an operation. Return its id and its call once workers are in the midst of it."""
    operation_id = str(uuid.uuid4())
    plan = messages.Plan(root=messages.Relation(sql=messages.SQL(query=sql)))
    call = connection.execute(session_id, plan, operation_id, ())
    next(call)
    before = {pid: cpu_s(pid) for pid in cluster.pods.pids()}
    wait_until(lambda: sum(cpu_s(pid) - before.get(pid, 0.0) for pid in cluster.pods.pids()) > 3.0, within_s=240.0)
    return operation_id, call


@pytest.mark.exhaustive
def test_a_job_that_computes_on_needs_the_end_of_the_session(cluster: SailCluster, connection: Connection) -> None:
    jobs = CancelledJobs(connection)
    calls: list[object] = []  # A call that nothing refers to is cancelled.
    session_id = ""

    def compute(now: float) -> bool:
        return answer_of(lambda: jobs.compute(session_id, now))

    def is_stuck_alone() -> bool:
        """A query of ours may wait behind the job in one of the workers: then the next session is tried."""
        nonlocal session_id
        if session_id:
            connection.release_session(session_id)
        session_id = str(uuid.uuid4())

        stoppable, call = begin(cluster, connection, session_id, ENDLESS)
        calls.append(call)
        assert not compute(0.0)
        assert not jobs.are_stuck(1000.0)
        connection.interrupt(session_id, operation_id=stoppable)
        collections.deque(call, maxlen=0)  # It ends once the cluster has taken the interrupt.
        wait_until(lambda: not compute(0.0), within_s=60.0)

        unstoppable, call = begin(cluster, connection, session_id, UNSTOPPABLE)
        calls.append(call)
        connection.interrupt(session_id, operation_id=unstoppable)
        wait_until(lambda: compute(10.0), within_s=60.0)
        assert not jobs.are_stuck(10.0)
        assert jobs.are_stuck(10.0 + SHARED_S)
        return jobs.are_stuck(10.0 + STUCK_S)

    wait_until(is_stuck_alone, within_s=240.0)

    # Another statement has some time.
    calls.append(begin(cluster, connection, session_id, ENDLESS))
    assert compute(15.0)
    assert not jobs.are_stuck(15.0)
    assert jobs.are_stuck(10.0 + SHARED_S)
    connection.release_session(session_id)


def test_a_cluster_without_tables_of_its_work_is_believed(sail: Sail, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Connection(ClusterConfig(address=sail.address))) as connection:
        monkeypatch.setattr("cluster.cancelled_jobs._JOBS", "SELECT job_id, status FROM nowhere_{0}_{1}")
        jobs = CancelledJobs(connection)
        session_id = str(uuid.uuid4())

        assert not jobs.compute(session_id, 0.0)
        assert not jobs.compute(session_id, 1.0)

        with pytest.raises(StatementError):
            connection.rows(session_id, "SELECT * FROM nowhere")

"""Connections are spread over the workers, and none waits for a worker that accepts nothing."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from httpserver.connection_counts import ConnectionCounts
from tests.forking import fork
from tests.httpserver.web_tier import WebTier


@contextmanager
def another(counts: ConnectionCounts, connections: int) -> Iterator[int]:
    """Fork a worker with this number of connections, which ends with the block."""
    told, tells = os.pipe()
    pid = fork()
    if pid == 0:
        try:
            counts.join(2)
            counts.add(connections)
            os.write(tells, b".")
            signal.pause()
        finally:
            os._exit(1)
    os.close(tells)
    with open(told, "rb") as reader:  # noqa: PTH123 (a descriptor)
        reader.read(1)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.parametrize(("ours", "expected"), [(2, False), (3, False), (4, True)])
def test_a_worker_knows_whether_another_has_fewer(ours: int, expected: bool) -> None:
    counts = ConnectionCounts()
    counts.join(1)
    with another(counts, 3):
        counts.add(ours + 1)
        counts.add(-1)

        assert counts.others_have_fewer() is expected


def test_workers_that_are_dead_or_missing_or_left_are_not_counted() -> None:
    counts = ConnectionCounts()
    counts.join(2)
    counts.leave()
    counts.join(1)
    counts.add(5)
    alone = counts.others_have_fewer()
    with another(counts, 3):
        pass

    assert (alone, counts.others_have_fewer()) == (False, False)


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebTier]:
    directory: Path = tmp_path_factory.mktemp("web")
    with WebTier(directory, settings={"workers": 2}) as server:
        yield server


def test_a_suspended_worker_delays_no_connection_and_gets_the_next_ones(web: WebTier) -> None:
    still, other = web.workers()
    with ExitStack() as open_ones:

        def connected() -> int:
            client = open_ones.enter_context(web.connection())
            return int(client.get("/pid").body)

        os.kill(still, signal.SIGSTOP)
        try:
            while_stopped = [connected() for _ in range(8)]
        finally:
            os.kill(still, signal.SIGCONT)
        # On a busy machine it may miss some: other workers leave a connection to it for only 5 ms.
        later: list[int] = []
        while later.count(still) < 8 and len(later) < 400:
            later.append(connected())

    assert while_stopped == [other] * 8
    assert later.count(still) == 8

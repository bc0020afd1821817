"""Connections are spread over the workers, and none waits for a worker that accepts nothing."""

import copy
import os
import signal
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest

from httpserver.connection_counts import ConnectionCounts
from tests.httpserver.web_tier import WebTier

#: The process id of a worker that lives, and one that no process has.
ALIVE, DEAD = os.getpid(), 2**31 - 1


def worker(counts: ConnectionCounts, serial: int, connections: int, pid: int) -> ConnectionCounts:
    """Join as the process *pid*, with this number of connections, in the memory of *counts*."""
    joined = copy.copy(counts)
    with patch("os.getpid", return_value=pid):
        joined.join(serial)
    joined.add(connections)
    return joined


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        pytest.param([(4, ALIVE)], False, id="as many"),
        pytest.param([(5, ALIVE), (3, ALIVE)], True, id="fewer"),
        pytest.param([(3, DEAD)], False, id="dead"),
        pytest.param([], False, id="none"),
    ],
)
def test_a_worker_knows_whether_another_has_fewer(others: list[tuple[int, int]], expected: bool) -> None:
    counts = ConnectionCounts()
    ours = worker(counts, 1, 5, DEAD - 1)
    worker(counts, 2, 0, ALIVE).leave()
    for serial, (connections, pid) in enumerate(others, 3):
        worker(counts, serial, connections, pid)
    ours.add(-1)

    assert ours.others_have_fewer() is expected


def test_a_suspended_worker_delays_no_connection_and_gets_the_next_ones(tmp_path: Path) -> None:
    with WebTier(tmp_path, settings={"workers": 2}) as web, ExitStack() as open_ones:
        still, other = web.workers()

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

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

#: No process has this id.
NOBODY = 2**31 - 1


def another(counts: ConnectionCounts, serial: int, connections: int, pid: int) -> ConnectionCounts:
    """Join as the process *pid*, with this number of connections, in the memory of *counts*."""
    joined = copy.copy(counts)
    with patch("os.getpid", return_value=pid):
        joined.join(serial)
    joined.add(connections)
    return joined


@pytest.mark.parametrize(("connections", "expected"), [(2, False), (3, False), (4, True)])
def test_a_worker_knows_whether_another_has_fewer(connections: int, expected: bool) -> None:
    other = another(ConnectionCounts(), 2, 3, os.getpid())
    ours = another(other, 1, connections + 1, NOBODY)
    ours.add(-1)

    assert ours.others_have_fewer() is expected


def test_workers_that_are_dead_or_missing_or_left_are_not_counted() -> None:
    counts = ConnectionCounts()
    counts.join(2)
    counts.leave()
    counts.join(1)
    counts.add(5)
    alone = counts.others_have_fewer()
    another(counts, 2, 3, NOBODY)

    assert (alone, counts.others_have_fewer()) == (False, False)


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

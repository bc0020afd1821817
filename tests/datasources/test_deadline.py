import threading
import time

import duckdb
import pytest

from datasources.deadline import Deadline
from datasources.errors import INTERRUPTED, SnapshotError

ENDLESS = "SELECT count(*) FROM range(1000000000000) a"


def test_work_continues_before_the_deadline_which_names_its_setting() -> None:
    deadline = Deadline(60, threading.Event())

    deadline.check()
    deadline.sleep(0)

    assert not deadline.passed
    with pytest.raises(SnapshotError, match=r"^The load was stopped after 0 s, the refresh_timeout of the dataset\.$"):
        Deadline(0, threading.Event()).check()


def test_the_end_of_the_runtime_wakes_a_sleeper() -> None:
    stop = threading.Event()
    threading.Timer(0.05, stop.set).start()
    began = time.monotonic()

    with pytest.raises(SnapshotError, match=f"^{INTERRUPTED}$"):
        Deadline(60, stop).sleep(60)

    assert time.monotonic() - began < 30


@pytest.mark.parametrize("by", ["time", "stop"])
def test_a_statement_under_guard_is_interrupted(by: str) -> None:
    stop = threading.Event()
    deadline = Deadline(0.1 if by == "time" else 60, stop)
    threading.Timer(0.1, stop.set if by == "stop" else int).start()
    began = time.monotonic()

    with (
        duckdb.connect() as connection,
        pytest.raises(SnapshotError, match="refresh_timeout" if by == "time" else INTERRUPTED),
        deadline.guard(connection),
    ):
        connection.execute(ENDLESS)

    assert time.monotonic() - began < 30


def test_another_interrupt_is_not_taken_for_the_deadline_and_no_thread_is_left() -> None:
    with duckdb.connect() as connection:
        threading.Timer(0.2, connection.interrupt).start()

        with pytest.raises(duckdb.InterruptException), Deadline(60, threading.Event()).guard(connection):
            connection.execute(ENDLESS)

    assert "load-deadline" not in {thread.name for thread in threading.enumerate()}

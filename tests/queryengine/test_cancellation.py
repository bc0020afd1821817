import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from queryengine.cancellation import CancelSource, Interruption, Watchdog
from queryengine.errors import EngineUnavailableError, QueryCancelledError, QueryTimeoutError
from tests.queryengine.publishing import wait_until


def test_a_cancel_source_calls_its_subscribers_once() -> None:
    source = CancelSource()
    calls: list[str] = []
    source.subscribe(partial(calls.append, "a"))
    source.subscribe(partial(calls.append, "b"))
    unsubscribe = source.subscribe(partial(calls.append, "gone"))

    unsubscribe()
    unsubscribe()
    source.cancel()
    source.cancel()
    assert calls == ["a", "b"]
    assert source.cancelled
    unsubscribe = source.subscribe(partial(calls.append, "late"))
    unsubscribe()

    assert calls == ["a", "b", "late"]


def test_concurrent_cancels_call_a_subscriber_once() -> None:
    source = CancelSource()
    calls: list[int] = []
    source.subscribe(partial(calls.append, 1))
    barrier = threading.Barrier(8)

    def cancel() -> None:
        barrier.wait()
        source.cancel()

    with ThreadPoolExecutor(8) as threads:
        for _ in range(8):
            threads.submit(cancel)

    assert calls == [1]


def test_an_interruption_calls_what_is_attached_and_nothing_after_detach() -> None:
    interruption = Interruption()
    calls: list[int] = []
    interruption.attach(partial(calls.append, 1))
    interruption.check()
    assert calls == []

    interruption.stop(partial(QueryTimeoutError, 3))
    interruption.stop(QueryCancelledError)
    with pytest.raises(QueryTimeoutError, match="after 3 s"):
        interruption.check()  # The first reason stands.
    interruption.detach()
    interruption.stop(QueryCancelledError)
    assert calls == [1, 1]
    interruption.attach(partial(calls.append, 2))

    assert calls == [1, 1, 2], "at once, because there is a reason to stop"


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    made = Watchdog()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("limit_s", "left_s"),
    [
        pytest.param(0.2, None, id="the whole limit"),
        pytest.param(0.2, 60.0, id="no more than the limit"),
        pytest.param(60.0, 0.2, id="what is left of it"),
    ],
)
def test_the_watchdog_stops_what_is_due_and_repeats_until_it_is_forgotten(
    watchdog: Watchdog, limit_s: float, left_s: float | None
) -> None:
    interruption, ended = Interruption(), Interruption()
    calls: list[float] = []
    interruption.attach(lambda: calls.append(time.monotonic()))
    started = time.monotonic()

    watchdog.watch(ended, 0.1)
    watchdog.watch(interruption, limit_s, left_s=left_s)
    watchdog.forget(ended)
    wait_until(lambda: len(calls) >= 3)
    watchdog.forget(interruption)
    watchdog.forget(interruption)

    assert calls[0] - started >= 0.2
    assert not ended.stopped
    with pytest.raises(QueryTimeoutError, match=f"after {limit_s:g} s"):
        interruption.check()


def test_the_watchdog_outlives_a_want_of_memory(watchdog: Watchdog) -> None:
    hungry, other = Interruption(), Interruption()
    calls: list[int] = []

    def interrupt() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise MemoryError

    hungry.attach(interrupt)
    watchdog.watch(hungry, 0.01)
    watchdog.watch(other, 0.02)
    wait_until(lambda: len(calls) > 2 and other.stopped)


def test_the_watchdog_wakes_for_a_statement_that_comes_after_a_pause(watchdog: Watchdog) -> None:
    for _ in range(2):
        wait_until(lambda: watchdog._asleep)
        interruption = Interruption()
        watchdog.watch(interruption, 0.01)
        wait_until(lambda interruption=interruption: interruption.stopped)  # type: ignore[misc]
        watchdog.forget(interruption)


def test_the_watchdog_stops_all_for_a_reason_of_its_owner(watchdog: Watchdog) -> None:
    interruptions = [Interruption(), Interruption()]
    for interruption in interruptions:
        watchdog.watch(interruption, 60)

    watchdog.stop_all(partial(EngineUnavailableError, "stopping"))

    for interruption in interruptions:
        with pytest.raises(EngineUnavailableError, match="stopping"):
            interruption.check()

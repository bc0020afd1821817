"""The threads of calls: as many as needed, and none that keeps objects alive afterwards."""

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from flightapi.call_threads import CallThreads
from flightapi.open_calls import MAX_SILENT_OF_KEY
from queryengine.pool.inprocess import InProcessEngine
from runtimeconf.model import RuntimeConfig
from tests.flightapi.endpoint import Silent, bearer, serving
from tests.queryengine.publishing import wait_until
from tests.system.harness import K1

MOST = 8
LONG_S = 60.0


@pytest.fixture(params=[0.05])
def threads(request: pytest.FixtureRequest) -> Iterator[CallThreads]:
    made = CallThreads(MOST, idle_s=request.param)
    yield made
    made.shutdown(cancel_futures=True)
    wait_until(lambda: made.count == 0)


keeps_idle_threads = pytest.mark.parametrize("threads", [LONG_S], indirect=True)


def test_threads_are_made_up_to_the_most_and_end_when_idle(threads: CallThreads) -> None:
    gate = threading.Event()
    running = threading.Semaphore(0)

    def work(number: int) -> int:
        running.release()
        gate.wait()
        return number

    futures = [threads.submit(work, number) for number in range(3 * MOST)]
    for _ in range(MOST):
        assert running.acquire(timeout=LONG_S)
    assert threads.count == MOST
    gate.set()

    assert [future.result(LONG_S) for future in futures] == list(range(3 * MOST))
    wait_until(lambda: threads.count == 0)
    assert threads.submit(work, 7).result(LONG_S) == 7


@keeps_idle_threads
def test_work_goes_to_the_thread_that_was_idle_last(threads: CallThreads) -> None:
    barrier = threading.Barrier(MOST)
    for future in [threads.submit(barrier.wait) for _ in range(MOST)]:
        future.result(LONG_S)

    used = set()
    for _ in range(3 * MOST):
        wait_until(lambda: len(threads._idle) == MOST)
        used.add(threads.submit(threading.get_ident).result(LONG_S))

    assert len(used) == 1


def test_an_error_is_in_the_future_and_the_thread_goes_on(threads: CallThreads) -> None:
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 // 0).result(LONG_S)

    assert threads.submit(lambda: 1).result(LONG_S) == 1


@keeps_idle_threads
def test_an_idle_thread_holds_nothing_of_the_last_call(threads: CallThreads) -> None:
    class Call:
        def run(self) -> None:
            pass

    for _ in range(2):
        call = Call()
        gone = weakref.ref(call)
        threads.submit(call.run).result(LONG_S)
        wait_until(lambda: len(threads._idle) == 1)

        del call
        gc.collect()

        assert gone() is None


def test_shutdown_refuses_new_work_and_cancels_waiting_work(threads: CallThreads) -> None:
    gate = threading.Event()
    futures = [threads.submit(gate.wait) for _ in range(MOST + 1)]

    threads.shutdown(cancel_futures=True)
    gate.set()

    assert all(future.result(LONG_S) for future in futures[:MOST])
    assert futures[MOST].cancelled()
    with pytest.raises(RuntimeError):
        threads.submit(gate.wait)


def test_a_server_lets_its_threads_go(config: RuntimeConfig, engine: InProcessEngine, silent: Silent) -> None:
    with serving(config, engine) as endpoint:
        threads = endpoint.server._threads
        threads._idle_s = 0.05
        calls = [silent(endpoint, "DoPut", bearer(K1)) for _ in range(MAX_SILENT_OF_KEY)]  # which stay open
        wait_until(lambda: threads.count >= MAX_SILENT_OF_KEY)

        for call in calls:
            call.cancel()

        wait_until(lambda: threads.count <= 1)

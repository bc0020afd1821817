"""A thread pool for calls that shrinks when it is idle."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: Seconds without work after which a thread ends.
IDLE_S = 10.0


class CallThreads(Executor):
    """
    An executor whose idle threads end, unlike those of `ThreadPoolExecutor`.

    Work goes to the most recently used idle thread, so a few calls per second keep only a few threads alive.

    Args:
        max_threads: The maximum number of threads. Further work waits.
        idle_s: Seconds without work after which a thread ends.
    """

    def __init__(self, max_threads: int, idle_s: float = IDLE_S) -> None:
        self._max_threads = max_threads
        self._idle_s = idle_s
        self._lock = threading.Lock()
        #: The current number of threads.
        self.count = 0
        self._idle: list[SimpleQueue[Callable[[], None] | None]] = []
        self._waiting: deque[tuple[Future[Any], Callable[[], None]]] = deque()
        self._is_closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function in a thread. Raises RuntimeError after `shutdown`."""
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 (stored in the future)
                future.set_exception(error)

        with self._lock:
            if self._is_closed:
                raise RuntimeError("The threads have been shut down.")
            if self._idle:
                self._idle.pop().put(work)
            elif self.count < self._max_threads:
                inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
                inbox.put(work)
                threading.Thread(target=self._run, args=(inbox,), name="flight-call").start()
                self.count += 1
            else:
                self._waiting.append((future, work))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop accepting work and let idle threads end. This never waits, because the server ends its calls itself."""
        with self._lock:
            self._is_closed = True
            for inbox in self._idle:
                inbox.put(None)
            self._idle.clear()
            if cancel_futures:
                for future, _ in self._waiting:
                    future.cancel()
                self._waiting.clear()

    def _run(self, inbox: SimpleQueue[Callable[[], None] | None]) -> None:
        work = inbox.get()
        while work is not None:
            work()
            del work  # An idle thread must not keep the last call's objects alive.
            work = self._next(inbox)

    def _next(self, inbox: SimpleQueue[Callable[[], None] | None]) -> Callable[[], None] | None:
        """Return the next work item. None ends the thread, which is then no longer counted."""
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()[1]
            if self._is_closed:
                self.count -= 1
                return None
            self._idle.append(inbox)
        try:
            work = inbox.get(timeout=self._idle_s)
        except Empty:
            with self._lock:
                if inbox in self._idle:
                    self._idle.remove(inbox)
                    self.count -= 1
                    return None
            work = inbox.get()  # Work arrived after the timeout.
        if work is None:
            with self._lock:
                self.count -= 1
        return work

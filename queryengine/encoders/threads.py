"""Several threads that encode one result: kernels of pyarrow release the GIL."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Final, Generic, TypeVar

_Piece = TypeVar("_Piece")
_Made = TypeVar("_Made")

#: The threads of a process. Two keep the thread that reads from the engine and sends busy. Each takes memory, for its
#: stack and a piece in progress, and a worker with the smallest `memory_limit` has little.
THREADS: Final = min(2, len(os.sched_getaffinity(0)))

#: How many pieces are in progress: one is done or queued while the threads work on the others.
_MAX_PENDING: Final = THREADS + 1


class InOrder(Generic[_Piece, _Made]):
    """Applies *make* to pieces in threads, and gives the results in the order of the pieces. Used by one thread."""

    def __init__(self, make: Callable[[_Piece], _Made]) -> None:
        self._make = make
        self._pending: deque[Future[_Made]] = deque()

    def give(self, piece: _Piece) -> Iterator[_Made]:
        """
        Submit one more piece, after giving the oldest result if too many are pending.

        Raises:
            MemoryError: Memory for a thread is lacking. Exceptions of *make* pass through.
        """
        if len(self._pending) == _MAX_PENDING:
            yield self._pending.popleft().result()
        try:
            self._pending.append(_threads(os.getpid()).submit(self._make, piece))
        except RuntimeError as exc:
            raise MemoryError from exc

    def rest(self) -> Iterator[_Made]:
        """Give all pending results."""
        while self._pending:
            yield self._pending.popleft().result()

    def close(self) -> None:
        """Drop the pending results. A thread may still finish its piece."""
        for future in self._pending:
            future.cancel()
        self._pending.clear()


@lru_cache(maxsize=1)
def _threads(_process: int) -> ThreadPoolExecutor:
    """Return the threads of this process: a fork does not inherit those of its parent."""
    return ThreadPoolExecutor(THREADS, "engine-encoder")

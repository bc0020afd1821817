"""Several threads at work on one answer: kernels of pyarrow release the interpreter's lock."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Final, Generic, TypeVar

_Piece = TypeVar("_Piece")
_Made = TypeVar("_Made")

#: The threads of a process. Two keep the one busy that asks the engine and sends. Each takes memory, for its stack and
#: a piece in the making, and a worker with the least `memory_limit` has little.
THREADS: Final = min(2, len(os.sched_getaffinity(0)))

#: So many pieces are under way: one is done, or waits, while the others are worked on.
_MOST_UNDER_WAY: Final = THREADS + 1


class InOrder(Generic[_Piece, _Made]):
    """What *make* makes of pieces, in threads, and in the order in which they were given. Not for two threads."""

    def __init__(self, make: Callable[[_Piece], _Made]) -> None:
        self._make = make
        self._under_way: deque[Future[_Made]] = deque()

    def give(self, piece: _Piece) -> Iterator[_Made]:
        """
        Have one more piece made, and give what is done where there is no room for it.

        Raises:
            MemoryError: There is none for a thread. What *make* raises passes through.
        """
        if len(self._under_way) == _MOST_UNDER_WAY:
            yield self._under_way.popleft().result()
        try:
            self._under_way.append(_threads(os.getpid()).submit(self._make, piece))
        except RuntimeError as exc:
            raise MemoryError from exc

    def rest(self) -> Iterator[_Made]:
        """Give all that is under way."""
        while self._under_way:
            yield self._under_way.popleft().result()

    def close(self) -> None:
        """Forget what is under way. It may still be worked on for a moment."""
        for future in self._under_way:
            future.cancel()
        self._under_way.clear()


@lru_cache(maxsize=1)
def _threads(_process: int) -> ThreadPoolExecutor:
    """Return the threads of this process; those of its parent are not here after a fork."""
    return ThreadPoolExecutor(THREADS, "engine-encoder")

"""Several threads that encode one result: kernels of pyarrow release the GIL."""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Final, TypeVar

_Piece = TypeVar("_Piece")
_Made = TypeVar("_Made")

#: The threads of a process. Two keep the thread that reads from the engine and sends busy. Each takes memory, for its
#: stack and a piece in progress, and a worker with the smallest `memory_limit` has little.
THREADS: Final = min(2, len(os.sched_getaffinity(0)))


def in_thread(make: Callable[[_Piece], _Made], piece: _Piece) -> Future[_Made]:
    """
    Call *make* with *piece* in a thread.

    Raises:
        MemoryError: Memory for a thread is lacking.
    """
    try:
        return _threads(os.getpid()).submit(make, piece)
    except RuntimeError as exc:
        raise MemoryError from exc


@lru_cache(maxsize=1)
def _threads(_process: int) -> ThreadPoolExecutor:
    """Return the threads of this process: a fork does not inherit those of its parent."""
    return ThreadPoolExecutor(THREADS, "engine-encoder")

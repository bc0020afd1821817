"""The result of one running statement: encoded chunks, and the resources that the statement holds until it ends."""

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial

from queryengine.cancellation import Interruption
from queryengine.engine import Parts, QueryTimings, length
from queryengine.errors import QueryCancelledError, QueryError, ResourceLimitError
from queryengine.manifest import Signature

logger = logging.getLogger(__name__)


class StatementResult:
    """
    A `QueryResult`. One thread iterates, and any thread can call `cancel` and `close`.

    Stopping a statement interrupts the thread that is computing a chunk, which then releases the statement's resources.
    A statement that is stopped between two chunks releases them immediately. A client that reads slowly or not at all
    therefore occupies an execution slot no longer than the time limit.
    """

    def __init__(
        self, chunks: Iterator[Parts], timings: QueryTimings, interruption: Interruption, held: ExitStack
    ) -> None:
        """Take over a running statement and its resources *held*, which are closed once, when the statement ends."""
        self.is_complete = False  # whether all chunks have been computed
        self.data_version: Signature = None  # see `QueryResult`
        self.timings = timings
        self._chunks = chunks
        self._interruption = interruption
        self._held = held
        self._lock = threading.Lock()
        self._ready: deque[Parts] = deque()
        self._computing = False
        self._read_to_end = False
        self._freed = False
        self._release: threading.Thread | None = None
        self._interrupt: Callable[[], None] = lambda: None

    def begin(self, interrupt: Callable[[], None], *, to_end: bool) -> None:
        """
        Compute the first chunk, or with *to_end* all chunks. *interrupt* stops the engine while it computes a chunk.

        Raises:
            QueryError: The statement failed. Its resources are released.
        """
        self._interrupt = interrupt
        self._interruption.attach(self._stop)
        self._ready.extend(list(self.parts() if to_end else itertools.islice(self.parts(), 1)))
        self.is_complete = to_end

    def complete(self, chunk: Parts) -> None:
        """
        Use *chunk* as the complete result, and release the statement's resources. Call this instead of `begin`.

        Raises:
            QueryError: The statement was stopped.
        """
        self._end(complete=True)
        self._interruption.check()
        self._ready.append(chunk)
        self.is_complete = True

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """Return the next chunk, or raise the reason why the result is incomplete."""
        return b"".join(next(self.parts()))

    def parts(self) -> Iterator[Parts]:
        """Yield the same chunks as the iterator, but in parts, which avoids the copy that joins them."""
        while (chunk := self._next()) is not None:
            yield chunk

    def _next(self) -> Parts | None:
        with self._lock:
            if self._ready:
                return self._ready.popleft()
            if self._read_to_end:
                return None
            if self._freed:
                self._interruption.check()
                raise QueryCancelledError
            self._computing = True
        try:
            self._interruption.check()
            chunk = self._compute()
        except BaseException:
            self._end(complete=False)
            raise
        if chunk is None:
            self._end(complete=True)
        with self._lock:
            self._computing = False
        return chunk

    def cancel(self) -> None:
        """Stop the statement. The iterator then raises `QueryCancelledError`."""
        self._interruption.stop(QueryCancelledError)

    def close(self) -> None:
        """
        Stop the statement if it is still running, and release its resources. Repeated calls are harmless.

        Unless another thread is computing a chunk, all resources are released when this method returns.
        """
        with self._lock:
            computing, release = self._computing, self._release
        if computing:
            self._interruption.stop(QueryCancelledError)
        elif release is not None:
            release.join()
        else:
            self._end(complete=False)

    def _compute(self) -> Parts | None:
        started, ran_before_ms = time.perf_counter(), self.timings.run_ms
        try:
            chunk = next(self._chunks, None)
        except QueryError:
            raise
        except MemoryError as exc:
            raise ResourceLimitError("The result needs more memory than is available: select less at once.") from exc
        except Exception as exc:
            logger.exception("encoder failure")
            raise QueryError("The result could not be encoded.") from exc
        finally:
            elapsed_ms = (time.perf_counter() - started) * 1000
            self.timings.encode_ms += elapsed_ms - (self.timings.run_ms - ran_before_ms)
        if chunk is not None:
            self.timings.bytes += length(chunk)
        return chunk

    def _stop(self) -> None:
        """Interrupt or release a stopped statement. Called repeatedly until the statement has ended."""
        with self._lock:
            computing = self._computing
            if not computing and not self._freed and self._release is None:
                # Use another thread, because this one may be the watchdog of all statements and a rollback in DuckDB
                # can be slow. If there is not enough memory for a thread, the next call tries again.
                end = partial(self._end, complete=False)
                with suppress(RuntimeError):
                    (release := threading.Thread(target=end, name="engine-release", daemon=True)).start()
                    self._release = release
        if computing:
            self._interrupt()

    def _end(self, *, complete: bool) -> None:
        with self._lock:
            self._computing = False
            if self._freed:
                return
            self._freed = True
            self._read_to_end = complete
        if not complete:
            self._interrupt()  # DuckDB may be computing the next rows, and closing would wait for them.
        self._held.close()

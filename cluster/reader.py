"""The rows of one statement on a cluster."""

import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import grpc
import pyarrow as pa

from cluster.cancelled_jobs import STOPPED
from cluster.connection import Connection
from cluster.errors import CUT, UNREACHABLE, SessionLostError, translated
from cluster.types import as_schema, schema_of
from queryengine.cancellation import Interruption
from queryengine.errors import EngineUnavailableError, QueryError
from queryengine.manifest import Column

logger = logging.getLogger(__name__)

#: How often in a row a stream that ended early is resumed without a response in between.
_REATTACHMENTS: Final = 3

_UNREADABLE: Final = "The result from the cluster cannot be read."


class RemoteReader:
    """
    The rows of one operation of a session, as a `ResultReader`.

    The result is complete only once the cluster reports this and still has the session. If a stream ends earlier, the
    cluster may have closed it because of its age, so it is resumed. If the cluster no longer knows the operation, the
    result is truncated.
    """

    columns: tuple[Column, ...]
    schema: pa.Schema
    encoded: tuple[bytes, int, float] | None = None

    def __init__(
        self,
        connection: Connection,
        session_id: str,
        interruption: Interruption,
        *,
        sql: str,
        rewrite: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda batch: batch,
    ) -> None:
        """Prepare to run a statement. *sql* is for errors. *rewrite* changes each batch."""
        self._connection = connection
        self._session_id = session_id
        self._interruption = interruption
        self._sql = sql
        self._rewrite = rewrite
        self._operation_id = str(uuid.uuid4())
        self._call: Any = None
        self._last_response_id = ""
        self._attempts = 0
        self._pending: deque[pa.RecordBatch] = deque()
        self._rows = 0  # received so far
        self._lock = threading.Lock()
        self._is_interrupted = False
        self._is_over = False  # on the cluster
        self.is_complete = False

    def start(self, plan: Any, tags: Sequence[str]) -> None:
        """
        Run *plan* until its first rows have arrived, or all of them.

        Raises:
            SessionLostError: The session has ended before any part of the result arrived.
            QueryError: The statement failed, or was stopped.
        """
        self._interruption.check()
        self._call = self._connection.execute(self._session_id, plan, self._operation_id, tags)
        self._interruption.attach(self.interrupt)
        while not self._pending and not self.is_complete:
            self._advance()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches as they arrive. Raises QueryError."""
        while True:
            while self._pending:
                yield self._pending.popleft()
            if self.is_complete:
                return
            try:
                self._advance()
            except SessionLostError as error:
                raise QueryError(CUT) from error

    def interrupt(self) -> None:
        """Tell the cluster to end the operation, without waiting. Keepers watch whether it ends."""
        with self._lock:
            if self._is_interrupted or self._is_over or self._call is None:
                return
            self._is_interrupted = True
            self._connection.interrupt(self._session_id, operation_id=self._operation_id)
            self._connection.announce(self._session_id, STOPPED, self._operation_id)
            self._call.cancel()

    def close(self) -> None:
        """End the operation if it is still running."""
        self._interruption.detach()
        self.interrupt()

    def _advance(self) -> None:
        """Read the next response, or resume the stream."""
        self._interruption.check()
        try:
            response = next(self._call, None)
        except grpc.RpcError as error:
            self._interruption.check()
            self._go_on_after(error)
            return
        if response is None:
            self._interruption.check()
            self._take_up_again()
            return
        self._attempts = 0
        self._last_response_id = response.response_id
        if response.HasField("schema"):
            self.columns, self.schema = schema_of(response.schema)
        match response.WhichOneof("response_type"):
            case "arrow_batch":
                self._pending.extend(self._batches(response.arrow_batch))
            case "result_complete":
                self._is_over = True
                # Sail also reports a result as complete if it was truncated by the end of the session. It then refuses
                # this call.
                self._connection.release(self._session_id, self._operation_id)
                self.is_complete = True

    def _batches(self, part: Any) -> list[pa.RecordBatch]:
        """Return the non-empty batches in *part*, which must follow the received rows and have the stated row count."""
        try:
            with pa.ipc.open_stream(part.data) as stream:
                batches = [self._rewrite(as_schema(batch, self.schema)) for batch in stream if batch.num_rows]
        except (pa.ArrowException, AttributeError, OSError, ValueError, KeyError) as error:
            logger.exception("the cluster sent a batch that cannot be read")
            raise QueryError(_UNREADABLE) from error
        rows = sum(batch.num_rows for batch in batches)
        if rows != part.row_count or (part.HasField("start_offset") and part.start_offset != self._rows):
            fields = {"rows": rows, "before": self._rows, "row_count": part.row_count, "offset": part.start_offset}
            logger.error("the cluster lost or repeated rows", extra={"fields": fields})
            raise QueryError(_UNREADABLE)
        self._rows += rows
        return batches

    def _go_on_after(self, error: grpc.RpcError) -> None:
        """Resume a broken stream if its operation may still be running. Otherwise raise the translated *error*."""
        found = translated(error, self._sql)
        self._is_over = not isinstance(found, EngineUnavailableError)
        if self._attempts and not isinstance(found, EngineUnavailableError | SessionLostError):
            raise QueryError(CUT) from error  # The cluster no longer knows the operation.
        if not isinstance(found, EngineUnavailableError) or not self._last_response_id:
            raise found from error
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise QueryError(CUT) from error
        self._take_up_again(is_unreachable=not self._rows)

    def _take_up_again(self, *, is_unreachable: bool = False) -> None:
        self._attempts += 1
        if not self._last_response_id or self._attempts > _REATTACHMENTS:
            is_lost = is_unreachable or not self._last_response_id
            raise EngineUnavailableError(UNREACHABLE) if is_lost else QueryError(CUT)
        with self._lock:
            if not self._is_interrupted:
                self._call = self._connection.reattach(self._session_id, self._operation_id, self._last_response_id)

"""One request to an engine worker and its response, over a connection that may have served earlier statements."""

import enum
import inspect
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from queryengine import errors
from queryengine.engine import QueryTimings
from queryengine.errors import EngineWorkerDiedError, QueryError
from queryengine.manifest import Signature
from queryengine.pool import messages
from queryengine.pool.broker_client import unreachable
from queryengine.pool.frames import FrameDecoder, FrameError, Kind
from queryengine.pool.messages import End, Failure, decoded

logger = logging.getLogger(__name__)

_RECEIVE_BYTES = 64 * 1024
_SEND_BYTES = 256 * 1024


def _rebuilder(kind: type[QueryError]) -> Callable[[Failure], QueryError]:
    """Return a function that rebuilds an error of *kind* from its constructor arguments."""
    if "__init__" not in vars(kind):
        return lambda failure: kind(failure.message)
    parameters = inspect.signature(kind).parameters.values()
    names = [one.name for one in parameters if one.kind is not one.KEYWORD_ONLY]
    return lambda failure: kind(*(failure.arguments[name] for name in names))


#: The function that rebuilds an error from its frame, by code.
ERRORS: Mapping[str, Callable[[Failure], QueryError]] = {
    kind.code: _rebuilder(kind)
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, QueryError)
}


unreadable = partial(QueryError, "The engine's response cannot be read.")


class NotStartedError(Exception):
    """The worker has not started the statement and will not start it. Another worker can run it."""


class Phase(enum.Enum):
    """The progress of the response."""

    SENT = enum.auto()  # nothing has arrived yet
    STREAMING = enum.auto()  # the header has arrived
    FINISHED = enum.auto()  # END or ERROR has arrived
    CUT = enum.auto()  # the worker closed the connection before END or ERROR


class Exchange:
    """
    A request and its response. One thread sends and receives. Any thread can call `ask_to_stop` and `hang_up`.

    Args:
        connection: The connection to a worker that is waiting for a request.
        reused: Whether the connection has served another statement. The worker may then end before it starts this one.
    """

    def __init__(self, connection: socket.socket, *, reused: bool) -> None:
        self.phase = Phase.SENT
        self.chunks: deque[bytes] = deque()  # received and not taken yet
        self.end: End | None = None
        self.timings: QueryTimings | None = None  # the worker's figures so far
        self.data_version: Signature = None
        self._connection = connection
        self._decoder = FrameDecoder()
        self.is_reused = reused

    @property
    def worker_is_done(self) -> bool:
        """Whether the worker is done with the statement."""
        return self.phase in (Phase.FINISHED, Phase.CUT)

    @property
    def is_reusable(self) -> bool:
        """Whether the worker is waiting for the next statement on the connection."""
        return self.phase is Phase.FINISHED and self._decoder.is_between_frames

    def send(self, frame: bytes) -> None:
        """
        Send the request.

        Raises:
            NotStartedError: The worker has ended.
        """
        try:
            sent = self._connection.send(frame)
            while sent < len(frame):
                sent += self._connection.send(frame[sent : sent + _SEND_BYTES])
        except OSError as error:
            if self.is_reused:
                raise NotStartedError from error
            # Otherwise the worker may have responded before it ended, which `receive` will find out.

    def receive(self) -> None:
        """
        Receive the next part of the response.

        Raises:
            NotStartedError: The worker ended before it read the request.
            QueryError: The statement failed, or the response is incomplete (`Phase.CUT`) or invalid.
        """
        try:
            # Receive a long payload at once, so that it is not copied again.
            flags = socket.MSG_WAITALL if self._decoder.missing else 0
            data = self._connection.recv(self._decoder.wanted, flags)
        except ConnectionResetError as error:
            if self.is_reused and self.phase is Phase.SENT:
                raise NotStartedError from error
            data = b""
        except OSError:
            data = b""
        if not data:
            self.phase = Phase.CUT
            raise EngineWorkerDiedError
        try:
            for kind, payload in self._decoder.feed(data):
                self._take(kind, payload)
                if self.phase is Phase.FINISHED:
                    break
        except FrameError as error:
            logger.exception("an engine worker sent an invalid response")
            raise unreadable() from error

    def ask_to_stop(self) -> None:
        """Close the sending side, which tells the worker that the result is no longer needed."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def hang_up(self) -> None:
        """Shut the connection down, which ends `send` and `receive`."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def drain(self, timeout_s: float) -> bool:
        """Discard the remaining data of a worker that was asked to stop. Return False if it runs after *timeout_s*."""
        until = time.monotonic() + timeout_s
        with self._connection:
            while (left_s := until - time.monotonic()) > 0:
                try:
                    self._connection.settimeout(left_s)
                    if not self._connection.recv(_RECEIVE_BYTES):
                        return True
                except TimeoutError:
                    return False
                except OSError:
                    return True
        return False

    def _take(self, kind: Kind, payload: bytes) -> None:
        if kind is Kind.DATA and self.phase is Phase.STREAMING:
            self.chunks.append(payload)
        elif kind is Kind.HEADER:
            self.phase = Phase.STREAMING
            self.data_version = decoded(payload, messages.HEADER).data_version
        elif kind is Kind.PROGRESS and self.phase is Phase.STREAMING:
            self.timings = decoded(payload, messages.PROGRESS)
        elif kind is Kind.END:
            self.end = decoded(payload, messages.END)
            self.timings = self.end.timings
            self.phase = Phase.FINISHED
        elif kind is Kind.ERROR:
            failure = decoded(payload, messages.FAILURE)
            self.timings = failure.timings
            self.phase = Phase.FINISHED
            raise _rebuilt(failure)
        elif kind is Kind.CLOSING and self.phase is Phase.SENT:
            raise NotStartedError
        else:
            raise FrameError(f"a frame of kind {kind.name} is out of place")


def connect(path: str) -> socket.socket:
    """
    Connect to an engine worker at *path*.

    Raises:
        EngineUnavailableError: There is no worker, or this process has no free descriptors.
    """
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(path)
        except BaseException:
            connection.close()
            raise
    except OSError as error:
        raise unreachable() from error
    return connection


def _rebuilt(failure: Failure) -> QueryError:
    """Return the error that an ERROR frame describes."""
    try:
        return ERRORS[failure.code](failure)
    except KeyError:
        logger.exception("an engine worker sent an unknown error", extra={"fields": {"code": failure.code}})
        return QueryError("The statement failed.")

"""
One RPC: its caller, its messages, its end, and its errors.

gRPC waits forever for the client's next message, and for the client to read the next response. Here every wait has a
time limit, which one clock enforces for all calls.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, NoReturn

import grpc
from msgspec import Struct

from authkeys.principal import Principal
from flightapi.error_table import Refusal, refusal_of
from flightapi.errors import MalformedMessageError
from flightapi.open_calls import OpenCalls
from queryengine.ids import accepted_id, new_id
from telemetry import spans
from telemetry.trace_context import TRACEPARENT, log_fields

logger = logging.getLogger(__name__)

#: Trailing metadata of every call, and of errors.
REQUEST_ID = "x-request-id"
ERROR_CODE = "x-error-code"
#: Trailing metadata of a call that runs a statement: the id by which the statement is listed and cancelled.
QUERY_ID = "x-query-id"

#: Seconds within which all messages of a call must arrive. Afterwards only the response takes time.
IDLE_S = 30.0
#: The limit for a handshake, which anybody can start. It includes queueing. With one tick it amounts to two seconds.
HANDSHAKE_IDLE_S = 1.5
#: The limit for messages and handshakes once the server is stopping.
STOPPING_IDLE_S = 1.0
#: Seconds beyond the statement timeout that a client may read nothing. Only an error can follow the timeout.
SEND_GRACE_S = 30.0

#: Seconds between two checks for expired waits.
TICK_S = 0.5


_ENDED = Refusal(
    status=grpc.StatusCode.CANCELLED, code="cancelled", message="The call timed out waiting for the client."
)


class CallEndedError(Exception):
    """The RPC has its status; nothing more can be sent."""


class _Wait(Struct, eq=False):
    """A block that must be left by `deadline`, a monotonic time. Otherwise `end` is called."""

    waits: "set[_Wait]"
    deadline: float
    end: Callable[[], None]
    is_for_message: bool

    def __enter__(self) -> None:
        self.waits.add(self)

    def __exit__(self, *_: object) -> None:
        self.waits.discard(self)


class IdleClock:
    """Ends calls of silent clients. One thread checks every *tick_s* seconds, until `close`."""

    def __init__(self, tick_s: float = TICK_S) -> None:
        self._tick_s = tick_s
        # Every message uses this set, so there is no lock and each access must be one atomic operation of the
        # interpreter. tuple(set) is not atomic: garbage collection may switch threads while it iterates.
        self._waits: set[_Wait] = set()
        self._stops_by = math.inf
        self._housekeeping: list[Callable[[], None]] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flight-idle-clock", daemon=True)
        self._thread.start()

    def limit(self, seconds: float, end: Callable[[], None], *, message: bool = False) -> AbstractContextManager[None]:
        """
        Call *end* if the block takes longer than *seconds*, plus up to one tick.

        *message* marks a wait for a client message, which `begin_stop` shortens.
        """
        return _Wait(self._waits, time.monotonic() + seconds, end, is_for_message=message)

    def each_tick(self, act: Callable[[], None]) -> None:
        """Call *act*, which must not raise, on every tick."""
        self._housekeeping.append(act)

    def begin_stop(self) -> None:
        """Limit every wait for a message to `STOPPING_IDLE_S` from now on."""
        self._stops_by = time.monotonic() + STOPPING_IDLE_S

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._tick_s):
            now = time.monotonic()
            is_silent = now >= self._stops_by
            for wait in self._waits.copy():
                if wait.deadline <= now or (is_silent and wait.is_for_message):
                    try:
                        self._waits.remove(wait)
                    except KeyError:
                        continue  # The block was left in the meantime.
                    wait.end()
            for act in self._housekeeping:
                act()


class Call:
    """An authenticated RPC *name*. `request_id` and `trace` are the caller's if they are well-formed."""

    def __init__(  # noqa: PLR0913 (keywords)
        self,
        principal: Principal,
        requests: Iterator[bytes],
        context: Any,
        *,
        name: str,
        clock: IdleClock,
        idle_s: float,
        check_again: Callable[[Principal, Any], Principal],
        open_calls: OpenCalls,
    ) -> None:
        self.principal = principal
        self.key = principal.fingerprint
        self.began = time.monotonic()
        self.waits_for: Literal["", "message", "reader"] = ""
        self.waits_since = self.began
        self._open_calls = open_calls
        self._check_again = check_again
        self.request_id = request_id_of(context)
        self.trace = spans.begin(traceparents_of(context))
        self._name = name
        self.context = context
        self._requests = requests
        self._clock = clock
        self._idle_s = idle_s
        self._is_ended = False
        self._held: list[bytes | None] = []  # a message that has arrived before it is asked for
        self._trailing: tuple[tuple[str, str], ...] = ()
        self.add_trailing(REQUEST_ID, self.request_id)

    def open(self) -> AbstractContextManager[None]:
        """Count this call as open during the block. Raises CallsBusyError."""
        return self._open_calls.enter(self)

    def add_trailing(self, name: str, value: str) -> None:
        """Add *name* to the trailing metadata."""
        self._trailing = (*self._trailing, (name, value))
        self.context.set_trailing_metadata(self._trailing)

    def wait(self) -> None:
        """Wait for the next message, or for the end of the client's side. Raises the same errors as `messages`."""
        self._held.append(self._next())

    def messages(self) -> Iterator[bytes]:
        """
        Yield each serialised client message until the client closes its side.

        Raises:
            grpc.RpcError, CallEndedError: The client disconnected, or sent nothing for too long.
        """
        while (message := self._next()) is not None:
            yield message

    def message(self) -> bytes:
        """
        Return the client's single message.

        Raises:
            MalformedMessageError: The client sent no message.
            grpc.RpcError, CallEndedError: See `messages`.
        """
        message = self._next()
        if message is None:
            raise MalformedMessageError("The call has no message.")
        return message

    def _next(self) -> bytes | None:
        if self._held:
            return self._held.pop()
        left_s = self.began + self._idle_s - time.monotonic()
        self.waits_for = "message"
        with self._clock.limit(left_s, self.end, message=True):
            message = next(self._requests, None)
        self.waits_for = ""
        if message is None and self._is_ended:
            # gRPC does not reliably distinguish a stream cancelled here from a stream that the client closed.
            end_call(self.context, _ENDED)
        # A reload may have changed the keys while the message was on its way.
        self.principal = self._check_again(self.principal, self.context)
        return message

    def end(self) -> None:
        """End the RPC because its client is silent. Thread-safe."""
        self._is_ended = True
        self.context.cancel()

    @contextmanager
    def sending(self, seconds: float) -> Iterator[None]:
        """End the RPC if the block, which sends a response, takes longer than *seconds*."""
        self.waits_since = time.monotonic()
        self.waits_for = "reader"
        with self._clock.limit(seconds, self.end):
            yield
        self.waits_for = ""

    def within(self, seconds: float) -> AbstractContextManager[None]:
        """End the RPC if the block, which waits for the client, takes longer than *seconds*."""
        return self._clock.limit(seconds, self.end)

    def send_span(self, error: str) -> None:
        """Send the span of this RPC with the code *error*, which is empty after success."""
        attributes = {
            "rpc.system.name": "grpc",
            "rpc.method": self._name,
            "querykeep.key": self.principal.name or None,
            "querykeep.request_id": self.request_id,
        }
        duration_s = time.monotonic() - self.began
        spans.send(self.trace, self._name, duration_s, attributes, kind="server", error=error)

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call *callback* once when the RPC ends, or now if it has ended. It must not block."""
        if not self.context.add_callback(callback):
            callback()


def request_id_of(context: Any) -> str:
    """Return the caller's request id if it is well-formed, otherwise a new one."""
    given = [value for key, value in context.invocation_metadata() or () if key == REQUEST_ID]
    accepted = accepted_id(given[0]) if len(given) == 1 else None
    return accepted or new_id()


def traceparents_of(context: Any) -> list[str]:
    """Return the values of `traceparent` in the metadata."""
    return [value for key, value in context.invocation_metadata() or () if key == TRACEPARENT]


def end_call(context: Any, refusal: Refusal) -> NoReturn:
    """
    End the RPC of *context* with *refusal*.

    Raises:
        CallEndedError: Always. gRPC requires an exception, of any type.
    """
    try:
        context.abort(refusal.status, refusal.message)
    except Exception as ended:  # gRPC raises a bare Exception
        raise CallEndedError from ended
    raise AssertionError  # abort raises


@contextmanager
def _ending(call: Call) -> Iterator[None]:
    """End the RPC with the status from the error table if the block fails. gRPC itself would expose the error."""
    code = "cancelled"
    try:
        yield
        code = ""
    except (grpc.RpcError, CallEndedError):
        raise
    except Exception as error:
        refusal = refusal_of(error)
        code = refusal.code
        if refusal.is_internal:
            fields = {"request_id": call.request_id, **log_fields(call.trace)}
            logger.exception("a call failed", extra={"fields": fields})
        call.add_trailing(ERROR_CODE, refusal.code)
        end_call(call.context, refusal)
    finally:
        call.send_span(code)


def one_answer(act: Callable[[Call], bytes], begin: Callable[[Iterator[bytes], Any], Call]) -> Any:
    """Return the handler of an RPC with one response. *begin* builds a call from gRPC's arguments; *act* handles it."""

    def behave(requests: Iterator[bytes], context: Any) -> bytes:
        call = begin(requests, context)
        with _ending(call), call.open():
            return act(call)

    # Use a streaming handler even for a single message, because gRPC allows a limited wait only on a stream.
    return grpc.stream_unary_rpc_method_handler(behave)


def many_answers(
    act: Callable[[Call], Iterator[bytes]], begin: Callable[[Iterator[bytes], Any], Call], send_s: float
) -> Any:
    """Like `one_answer`, for any number of responses. The client must read each within *send_s* seconds."""

    def behave(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        call = begin(requests, context)
        with _ending(call), call.open():
            for answer in act(call):
                with call.sending(send_s):
                    yield answer

    return grpc.stream_stream_rpc_method_handler(behave)

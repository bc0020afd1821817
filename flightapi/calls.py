"""
One RPC as the service sees it: who calls, what comes, when it ends, and how errors leave.

gRPC waits without end for the next message of a client, and for the client to take the next answer. Here each wait has
a limit, kept by one clock for all calls.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import grpc

from authkeys.principal import Principal
from flightapi.error_table import Refusal, refusal_of
from flightapi.errors import MalformedMessageError
from queryengine.ids import accepted_id, new_id

logger = logging.getLogger(__name__)

#: The metadata that ends every call, and that of an error's stable code.
REQUEST_ID = "x-request-id"
ERROR_CODE = "x-error-code"
#: Of a call that runs a statement: the id under which it is listed and cancelled.
QUERY_ID = "x-query-id"

#: Seconds that a call waits for the next message of its client.
IDLE_S = 30.0
#: The same for a handshake, which may come from anybody, its turn included: with a tick, two seconds.
HANDSHAKE_IDLE_S = 1.5
#: The same for both once the server stops.
STOPPING_IDLE_S = 1.0
#: Seconds that a client may take nothing, beyond the time limit of statements: all that could follow then is an error.
SEND_GRACE_S = 30.0

#: Seconds between two looks at who has kept a call waiting.
TICK_S = 0.5


_ENDED = Refusal(status=grpc.StatusCode.CANCELLED, code="cancelled", message="The client kept the call waiting.")


class CallEndedError(Exception):
    """The RPC has its status; nothing more can be said."""


class _Wait:
    """A block that is to be left by *deadline*, on the monotonic clock, or else *end* is called."""

    __slots__ = ("_waits", "deadline", "end", "is_for_message")

    def __init__(self, waits: set[_Wait], deadline: float, end: Callable[[], None], *, message: bool) -> None:
        self._waits = waits
        self.deadline = deadline
        self.end = end
        self.is_for_message = message

    def __enter__(self) -> None:
        self._waits.add(self)

    def __exit__(self, *_: object) -> None:
        self._waits.discard(self)


class IdleClock:
    """Ends calls whose client does nothing, looking every *tick_s* seconds. One thread, until `close`."""

    def __init__(self, tick_s: float = TICK_S) -> None:
        self._tick_s = tick_s
        # Every message is waited for: each use of this is one step of the interpreter, so it needs no lock. A tuple of
        # it would not be one: the garbage collector may run in between, and let another thread go on.
        self._waits: set[_Wait] = set()
        self._stops_by = math.inf
        self._housekeeping: list[Callable[[], None]] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flight-idle-clock", daemon=True)
        self._thread.start()

    def limit(self, seconds: float, end: Callable[[], None], *, message: bool = False) -> AbstractContextManager[None]:
        """
        Call *end* when the block has not been left in *seconds*, give or take a tick.

        *message* says that it waits for a message, which is not for long once `begin_stop` was called.
        """
        return _Wait(self._waits, time.monotonic() + seconds, end, message=message)

    def each_tick(self, act: Callable[[], None]) -> None:
        """Call *act*, which does not fail, with every tick, twice a second."""
        self._housekeeping.append(act)

    def begin_stop(self) -> None:
        """Have no call wait for a message for longer than `STOPPING_IDLE_S` from now on."""
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
                        continue  # It was left meanwhile.
                    wait.end()
            for act in self._housekeeping:
                act()


class Call:
    """An accepted RPC. `request_id` is the caller's own when that is well-formed."""

    def __init__(
        self, principal: Principal, requests: Iterator[bytes], context: Any, clock: IdleClock, idle_s: float
    ) -> None:
        self.principal = principal
        self.request_id = request_id_of(context)
        self.context = context
        self._requests = requests
        self._clock = clock
        self._idle_s = idle_s
        self._is_ended = False
        self._last_words: tuple[tuple[str, str], ...] = ()
        self.say_last(REQUEST_ID, self.request_id)

    def say_last(self, name: str, value: str) -> None:
        """Have the metadata that ends the call hold *name*."""
        self._last_words = (*self._last_words, (name, value))
        self.context.set_trailing_metadata(self._last_words)

    def messages(self) -> Iterator[bytes]:
        """
        Give each message of the client, serialised, until it has sent its last.

        Raises:
            grpc.RpcError, CallEndedError: The call ended: the client left, or sent nothing for too long.
        """
        while (message := self._next()) is not None:
            yield message

    def message(self) -> bytes:
        """
        Return the one message of the client.

        Raises:
            MalformedMessageError: There is none.
            grpc.RpcError, CallEndedError: As `messages`.
        """
        message = self._next()
        if message is None:
            raise MalformedMessageError("The call has no message.")
        return message

    def _next(self) -> bytes | None:
        with self._clock.limit(self._idle_s, self.end, message=True):
            message = next(self._requests, None)
        if message is None and self._is_ended:
            # gRPC tells a stream that was ended here from one that its client has closed only some of the time.
            end_call(self.context, _ENDED)
        return message

    def end(self) -> None:
        """End the RPC, which its client has kept waiting for too long. It may be called in any thread."""
        self._is_ended = True
        self.context.cancel()

    def within(self, seconds: float) -> AbstractContextManager[None]:
        """End the RPC when the block, in which the client is waited for, has not been left in *seconds*."""
        return self._clock.limit(seconds, self.end)

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call *callback* when the RPC has ended in any way, once, or now when it has already. It must not block."""
        if not self.context.add_callback(callback):
            callback()


def request_id_of(context: Any) -> str:
    """Return the caller's request id if it is well-formed, else a new one."""
    given = [value for key, value in context.invocation_metadata() or () if key == REQUEST_ID]
    accepted = accepted_id(given[0]) if len(given) == 1 else None
    return accepted or new_id()


def end_call(context: Any, refusal: Refusal) -> NoReturn:
    """
    End the RPC of *context* with *refusal*.

    Raises:
        CallEndedError: Always; gRPC waits for an exception, and takes any.
    """
    try:
        context.abort(refusal.status, refusal.message)
    except Exception as ended:  # its way to say so
        raise CallEndedError from ended
    raise AssertionError  # abort raises


def abort(call: Call, error: Exception) -> NoReturn:
    """
    End the RPC with what the table says of *error*.

    Raises:
        CallEndedError: Always.
    """
    refusal = refusal_of(error)
    if refusal.is_internal:
        logger.error("a call failed", exc_info=error, extra={"fields": {"request_id": call.request_id}})
    call.say_last(ERROR_CODE, refusal.code)
    end_call(call.context, refusal)


def one_answer(act: Callable[[Call], bytes], begin: Callable[[Iterator[bytes], Any], Call]) -> Any:
    """Return the handler of an RPC with one answer: *act* makes it, *begin* the call of what gRPC gives."""

    def behave(requests: Iterator[bytes], context: Any) -> bytes:
        call = begin(requests, context)
        try:
            return act(call)
        except (grpc.RpcError, CallEndedError):
            raise
        except Exception as error:  # noqa: BLE001 (whatever it is, gRPC would show it to the caller)
            abort(call, error)

    # The messages of a unary request are few, but a client may send none: only of a stream can the wait be limited.
    return grpc.stream_unary_rpc_method_handler(behave)


def many_answers(
    act: Callable[[Call], Iterator[bytes]], begin: Callable[[Iterator[bytes], Any], Call], send_s: float
) -> Any:
    """As `one_answer`, for an RPC with any number of answers, each of which is taken within *send_s* seconds."""

    def behave(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        call = begin(requests, context)
        try:
            for answer in act(call):
                with call.within(send_s):
                    yield answer
        except (grpc.RpcError, CallEndedError):
            raise
        except Exception as error:  # noqa: BLE001 (as above)
            abort(call, error)

    return grpc.stream_stream_rpc_method_handler(behave)

"""
The handshake in all its forms. Its answer is the presented key, so no token ever expires.

A client that sends metadata (Basic or Bearer) receives metadata, `authorization: Bearer <key>`. A classic client sends
user and password in its first message (`BasicAuth` of `Flight.proto`) and receives the key in a message; it then sends
the key as `auth-token-bin`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator

from authkeys.credentials import Absent, Presented, Reason
from flightapi.authentication import Accepted, Authenticator, Refused, Undecided, refuse_call
from flightapi.calls import HANDSHAKE_IDLE_S, Call
from flightapi.errors import HandshakesBusyError, MalformedMessageError
from flightapi.protocol import messages
from system.process_limits import give_memory_back

#: The token of a caller that presented nothing to send back, while authentication is off.
ANONYMOUS_TOKEN = "anonymous"  # noqa: S105 (not a secret)

#: Longer messages are refused unread: a key has a few hundred bytes at most.
MAX_MESSAGE_BYTES = 64 * 1024

#: Handshakes that may wait at once, and those among them that may read their message. Anybody can start one: each
#: waiting handshake takes a thread, each reading one the memory of a message.
MAX_WAITING = 16
MAX_READING = 2
#: Seconds that a handshake may read while others wait. An honest client sends its message together with the call.
PATIENCE_S = 0.1


class _Waiting:
    """A handshake that waits for its message. It has been reading since `reads_since` (infinity: not yet)."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.reads_since = math.inf


class Handshake:
    """
    Answers handshakes as *authenticator* decides.

    A waiting handshake makes room for newer ones, the oldest first, so silent clients cannot lock others out.
    """

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        # Oldest first; the first `MAX_READING` read their message.
        self._waiting: list[_Waiting] = []
        self._changed = threading.Condition()

    def answer(self, call: Call, decision: Accepted | Undecided) -> Iterator[bytes]:
        """Answer one handshake."""
        if isinstance(decision, Accepted):
            bearer = decision.presented if _can_be_sent(decision.presented) else ANONYMOUS_TOKEN
            call.context.send_initial_metadata((("authorization", f"Bearer {bearer}"),))
            yield _response(b"")
            return
        classic = self._authenticate_by_message(call)
        if classic is None:
            return
        if isinstance(classic, Refused):
            refuse_call(call.context, classic.reason, "Handshake")
        yield _response(classic.presented.encode() or ANONYMOUS_TOKEN.encode())

    def _authenticate_by_message(self, call: Call) -> Accepted | Refused | None:
        """
        Decide by the message of *call*; None if it has no message and needs none.

        Raises:
            HandshakesBusyError: The handshake could not read its message in time, because others were reading.
            grpc.RpcError, CallEndedError: The client sent nothing in time.
        """
        waiting = _Waiting(call)
        deadline = time.monotonic() + HANDSHAKE_IDLE_S
        with self._changed:
            if len(self._waiting) == MAX_WAITING:
                self._end(self._waiting[0])
            self._waiting.append(waiting)
        try:
            with self._changed:
                self._wait_for_turn(waiting, deadline)
            with call.within(deadline - time.monotonic()):
                return self._read(call)
        finally:
            with self._changed:
                self._leave(waiting)

    def _wait_for_turn(self, waiting: _Waiting, deadline: float) -> None:
        while waiting not in self._waiting[:MAX_READING]:
            now = time.monotonic()
            if now >= deadline or waiting not in self._waiting:
                raise HandshakesBusyError
            oldest = self._waiting[0]
            if now - oldest.reads_since >= PATIENCE_S:
                self._end(oldest)
            else:
                self._changed.wait(min(PATIENCE_S, deadline - now))
        waiting.reads_since = time.monotonic()

    def _end(self, waiting: _Waiting) -> None:
        waiting.call.end()
        self._leave(waiting)

    def _leave(self, waiting: _Waiting) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)
            self._changed.notify_all()

    def _read(self, call: Call) -> Accepted | Refused | None:
        message = next(call.messages(), None)
        if message is None:
            return None if self._authenticator.is_open else Refused(Reason.MISSING)
        if len(message) > MAX_MESSAGE_BYTES:
            del message
            give_memory_back()  # Anybody can send this; the allocator would keep the memory, once for each thread.
            return Refused(Reason.UNKNOWN)
        return self._authenticate_message(message)

    def _authenticate_message(self, message: bytes) -> Accepted | Refused:
        try:
            payload = messages.parse(messages.HandshakeRequest, message).payload
            password = messages.parse(messages.BasicAuth, payload).password
        except MalformedMessageError:
            return Refused(Reason.UNKNOWN)
        return self._authenticator.authenticate(Presented(password) if password else Absent())


def _can_be_sent(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable()


def _response(payload: bytes) -> bytes:
    return bytes(messages.HandshakeResponse(payload=payload).SerializeToString())

"""
The handshake, in every form that clients have: what it gives back is the key that was presented, so nothing expires.

With metadata (Basic or Bearer) the answer is metadata, `authorization: Bearer <key>`. Without, the first message holds
user and password (`BasicAuth` of `Flight.proto`), and the answer is a message with the key, which such clients send as
`auth-token-bin` from then on.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator

from authkeys import audit
from flightapi.authentication import Accepted, Judge, Refused, Undecided, refuse_call
from flightapi.calls import HANDSHAKE_IDLE_S, Call
from flightapi.errors import HandshakesBusyError, MalformedMessageError
from flightapi.protocol import messages
from system.process_limits import give_memory_back

#: What a caller gets where everybody may call and it has presented nothing that can be sent back.
NOTHING = "anonymous"

#: The longest message that is looked into: a key is a few hundred bytes at most.
MAX_MESSAGE_BYTES = 64 * 1024

#: Handshakes that may wait at once, and of these, read their message: whoever they are, the first hold a thread each,
#: and the second as much memory as two messages may have.
MAX_WAITING = 16
MAX_READING = 2
#: Seconds that one may read while others wait. The message of a client that means it comes right behind its call.
PATIENCE_S = 0.1


class _Waiting:
    """A handshake that waits for its message; it reads since the time *reads_since*."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.reads_since = math.inf


class Handshake:
    """
    Answers handshakes by what *judge* says.

    Those that wait for their message make room for others, the oldest first: silent ones keep nobody out for long,
    however many they are.
    """

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        # Oldest first; the first `MAX_READING` of them read.
        self._waiting: list[_Waiting] = []
        self._changed = threading.Condition()

    def answer(self, call: Call, verdict: Accepted | Undecided) -> Iterator[bytes]:
        """Answer one handshake."""
        if isinstance(verdict, Accepted):
            bearer = verdict.presented if _can_be_sent(verdict.presented) else NOTHING
            call.context.send_initial_metadata((("authorization", f"Bearer {bearer}"),))
            yield _response(b"")
            return
        found = self._found(call)
        if found is None:
            return
        if isinstance(found, Refused):
            refuse_call(call.context, found, "Handshake")
        yield _response(found.presented.encode() or NOTHING.encode())

    def _found(self, call: Call) -> Accepted | Refused | None:
        """
        Decide by the message of *call*; None when there is none and none is needed.

        Raises:
            HandshakesBusyError: Its turn did not come.
            grpc.RpcError, CallEndedError: It sent nothing, and was ended.
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
            return None if self._judge.is_open else Refused(audit.MISSING)
        if len(message) > MAX_MESSAGE_BYTES:
            del message
            give_memory_back()  # Allocators would keep as much for each thread, and anybody may send it.
            return Refused(audit.UNKNOWN)
        return self._of_message(message)

    def _of_message(self, message: bytes) -> Accepted | Refused:
        try:
            payload = messages.parse(messages.HandshakeRequest, message).payload
            password = messages.parse(messages.BasicAuth, payload).password
        except MalformedMessageError:
            return Refused(audit.UNKNOWN)
        return self._judge.of_key(password) if password or self._judge.is_open else Refused(audit.MISSING)


def _can_be_sent(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable()


def _response(payload: bytes) -> bytes:
    return bytes(messages.HandshakeResponse(payload=payload).SerializeToString())

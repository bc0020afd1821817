"""
The handshake, in every form that clients have: what it gives back is the key that was presented, so nothing expires.

With metadata (Basic or Bearer) the answer is metadata, `authorization: Bearer <key>`. Without, the first message holds
user and password (`BasicAuth` of `Flight.proto`), and the answer is a message with the key, which such clients send as
`auth-token-bin` from then on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from authkeys import audit
from flightapi.authentication import Accepted, Judge, Refused, Undecided, refuse_call
from flightapi.calls import Call
from flightapi.errors import MalformedMessageError
from flightapi.protocol import messages
from queryengine.process_limits import give_memory_back

#: What a caller gets where everybody may call and it has presented nothing that can be sent back.
NOTHING = "anonymous"

#: The longest message that is looked into: a key is a few hundred bytes at most.
MAX_MESSAGE_BYTES = 64 * 1024

#: Handshakes that may wait at once, and of these, read their message: whoever they are, the first hold a thread each,
#: and the second as much memory as two messages may have.
MAX_WAITING = 16
MAX_READING = 2
#: Seconds that one waits for its turn to read.
TURN_S = 2.0


class Handshake:
    """Answers handshakes by what *judge* says."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._room = threading.BoundedSemaphore(MAX_WAITING)
        self._turn = threading.BoundedSemaphore(MAX_READING)

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
        """Decide by the message of *call*; None when there is none and none is needed."""
        if not self._room.acquire(blocking=False):
            return Refused(audit.MISSING)
        try:
            if not self._turn.acquire(timeout=TURN_S):
                return Refused(audit.MISSING)
            try:
                return self._read(call)
            finally:
                self._turn.release()
        finally:
            self._room.release()

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

"""
The handshake in all its forms. The response is the presented key, so no token ever expires.

A client that sends metadata (Basic or Bearer) receives metadata, `authorization: Bearer <key>`. A classic client sends
user and password in its first message (`BasicAuth` in `Flight.proto`), receives the key in a message, and then sends
the key as `auth-token-bin`.
"""

import math
import threading
import time
from collections.abc import Iterator

from authkeys.access import Access
from authkeys.credentials import Reason
from flightapi.authentication import Accepted, authenticate, refuse_call
from flightapi.calls import HANDSHAKE_IDLE_S, Call
from flightapi.errors import HandshakesBusyError, MalformedMessageError
from flightapi.protocol import messages
from runtimeconf.secret import Secret
from system.process_limits import give_memory_back

#: The token for a caller that presented no credential while authentication is off.
ANONYMOUS_TOKEN = "anonymous"  # noqa: S105 (not a secret)

#: Longer messages are refused unread. A key has a few hundred bytes at most.
MAX_MESSAGE_BYTES = 64 * 1024

#: The number of handshakes that may wait at once, and the number of these that may read their message. Anybody can
#: start a handshake. Each waiting handshake takes a thread, and each reading handshake also takes the memory of a
#: message.
MAX_WAITING = 16
MAX_READING = 2
#: Seconds that a handshake may read while others wait. A well-behaved client sends its message with the call.
PATIENCE_S = 0.1


class Handshake:
    """
    Authenticates handshakes with *access*. See `refuse_call` for *trusted_proxies*.

    When there are too many handshakes, the oldest waiting one is ended, so silent clients cannot lock others out.
    """

    def __init__(self, access: Access, trusted_proxies: tuple[str, ...]) -> None:
        self._access = access
        self._trusted_proxies = trusted_proxies
        # When each handshake began to read its message (infinity: not yet), oldest first. The first `MAX_READING` may
        # read.
        self._waiting: dict[Call, float] = {}
        self._changed = threading.Condition()

    def answer(self, call: Call, decision: Accepted | None) -> Iterator[bytes]:
        """Handle one handshake."""
        if decision is not None:
            presented = decision.presented
            can_be_sent = presented and presented.isascii() and presented.isprintable()
            bearer = presented if can_be_sent else ANONYMOUS_TOKEN
            call.context.send_initial_metadata((("authorization", f"Bearer {bearer}"),))
            yield _response(b"")
            return
        classic = self._authenticate_by_message(call)
        if classic is None:
            return
        if isinstance(classic, Reason):
            refuse_call(call.context, classic, "Handshake", self._trusted_proxies)
        yield _response(classic.presented.encode() or ANONYMOUS_TOKEN.encode())

    def _authenticate_by_message(self, call: Call) -> Accepted | Reason | None:
        """
        Authenticate by the message of *call*. Return None if there is no message and none is needed.

        Raises:
            HandshakesBusyError: The handshake could not read its message in time because others were reading.
            grpc.RpcError, CallEndedError: The client sent nothing in time.
        """
        deadline = time.monotonic() + HANDSHAKE_IDLE_S
        with self._changed:
            if len(self._waiting) == MAX_WAITING:
                self._end(next(iter(self._waiting)))
            self._waiting[call] = math.inf
        try:
            with self._changed:
                self._wait_for_turn(call, deadline)
            with call.within(deadline - time.monotonic()):
                return self._read(call)
        finally:
            with self._changed:
                self._leave(call)

    def _wait_for_turn(self, call: Call, deadline: float) -> None:
        while call not in list(self._waiting)[:MAX_READING]:
            now = time.monotonic()
            if now >= deadline or call not in self._waiting:
                raise HandshakesBusyError
            oldest, reads_since = next(iter(self._waiting.items()))
            if now - reads_since >= PATIENCE_S:
                self._end(oldest)
            else:
                self._changed.wait(min(PATIENCE_S, deadline - now))
        self._waiting[call] = time.monotonic()

    def _end(self, call: Call) -> None:
        call.end()
        self._leave(call)

    def _leave(self, call: Call) -> None:
        if self._waiting.pop(call, None) is not None:
            self._changed.notify_all()

    def _read(self, call: Call) -> Accepted | Reason | None:
        message = next(call.messages(), None)
        if message is None:
            return None if self._access.key_set is None else Reason.MISSING
        if len(message) > MAX_MESSAGE_BYTES:
            del message
            give_memory_back()  # Anybody can send this, and the allocator would keep the memory for each thread.
            return Reason.UNKNOWN
        try:
            payload = messages.parse(messages.HandshakeRequest, message).payload
            password = messages.parse(messages.BasicAuth, payload).password
        except MalformedMessageError:
            return Reason.UNKNOWN
        return authenticate(self._access, Secret(password) if password else Reason.MISSING)


def _response(payload: bytes) -> bytes:
    return bytes(messages.HandshakeResponse(payload=payload).SerializeToString())

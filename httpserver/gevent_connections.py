"""
A client's connection under gevent, as gunicorn's parser and response use it.

Reads end at a deadline, writes when nothing moves, and the end of the connection costs the client nothing of what was
sent to it.
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from contextlib import suppress

import gevent

from httpserver import connections

#: Seconds for a TLS handshake, from the connection's opening.
HANDSHAKE_TIMEOUT_S = 10.0
#: Seconds in which a client must take at least something of what is sent to it.
SEND_TIMEOUT_S = 60.0
#: Seconds, and bytes, that a client may go on sending after the last answer, while it may still be reading that.
LINGER_S = 2.0
LINGER_BYTES = 4 * 1024 * 1024

_READ_BYTES = 64 * 1024


class ClientConnection:
    """
    A connection with a client.

    `recv` raises `TimeoutError` at the deadline that `allow` sets, however the bytes trickle in. Args: the *client*'s
    gevent socket.
    """

    __slots__ = ("_deadline", "_held", "_socket")

    def __init__(self, client: socket.socket) -> None:
        client.settimeout(SEND_TIMEOUT_S)
        self._socket = client
        self._deadline = 0.0
        self._held: bytes | None = None

    def allow(self, seconds: float) -> None:
        """Let reads succeed for *seconds* from now, all together."""
        self._deadline = time.monotonic() + seconds

    def start_tls(self, context: ssl.SSLContext) -> None:
        """
        Speak TLS from now on.

        Raises:
            ssl.SSLError: The handshake failed.
            TimeoutError: It took longer than `HANDSHAKE_TIMEOUT_S`.
        """
        with gevent.Timeout(HANDSHAKE_TIMEOUT_S, TimeoutError("no TLS handshake in time")):
            secured = context.wrap_socket(self._socket, server_side=True, do_handshake_on_connect=False)
            self._socket = secured
            secured.do_handshake()

    def recv(self, size: int) -> bytes:
        """
        Return what the client sent, at most *size* bytes; nothing when it will send no more.

        Raises:
            TimeoutError: The time that was allowed is over.
        """
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("no time is left to read")
        if isinstance(self._socket, ssl.SSLSocket):
            # One recv reads more than once, and each time the timeout of the socket would begin anew. This one lives
            # within the call: nothing that swallows exceptions ever sees gevent's own.
            with gevent.Timeout(left_s, TimeoutError("the time to read is over")):
                return self._socket.recv(size)
        self._socket.settimeout(left_s)
        try:
            return self._socket.recv(size)
        finally:
            self._socket.settimeout(SEND_TIMEOUT_S)

    def send(self, data: bytes) -> int:
        """Send some of *data* and return how much."""
        return self._socket.send(data)

    def hold(self) -> None:
        """Keep back what is sent next until more follows, or `release`: a head leaves with the body it announces."""
        self._held = b""

    def release(self) -> None:
        """Send what is held back."""
        held, self._held = self._held, None
        if held:
            self.sendall(held)

    def sendall(self, data: bytes) -> None:
        """
        Send all of *data*.

        Raises:
            TimeoutError: For `SEND_TIMEOUT_S` the client took nothing. The connection is reset then: what is still on
                its way to a client that begins to read again must not look complete.
        """
        if self._held == b"":
            self._held = data
            return
        if self._held is not None:
            data, self._held = self._held + data, None  # A copy of few bytes costs less than a call with two parts.
        self._send_all([memoryview(data)] if data else [])

    def send_parts(self, *parts: bytes) -> None:
        """
        Send all of *parts*, one after another, and before them what is held back; without a copy but under TLS.

        Raises:
            TimeoutError: As `sendall`.
        """
        if isinstance(self._socket, ssl.SSLSocket):
            self.sendall(b"".join(parts))
            return
        held, self._held = self._held, None
        self._send_all([memoryview(part) for part in (held, *parts) if part])

    def _send_all(self, rest: list[memoryview]) -> None:
        try:
            while rest:
                sent = self._socket.send(rest[0]) if len(rest) == 1 else self._socket.sendmsg(rest)
                while rest and sent >= len(rest[0]):
                    sent -= len(rest.pop(0))
                if rest:
                    rest[0] = rest[0][sent:]
        except TimeoutError:
            self.reset()
            raise

    def stop_reading(self) -> None:
        """Let whoever reads get what has come already and then the end; from any greenlet."""
        self._say_goodbye()
        # On a descriptor of its own: gevent's shutdown would raise in the reader, that of TLS would drop the layer.
        with suppress(OSError), socket.socket(fileno=os.dup(self.fileno())) as twin:
            twin.shutdown(socket.SHUT_RD)

    def finish(self) -> None:
        """
        Close after an answer, so that all of it reaches the client even while that still sends.

        A connection that is closed with something unread is reset, and a reset overtakes the answer (RFC 9112, 9.6).
        """
        self.allow(LINGER_S)
        if isinstance(self._socket, ssl.SSLSocket):
            # It says that this was all; waiting for the client to say so too ends when that still sends.
            with suppress(OSError), gevent.Timeout(LINGER_S, TimeoutError()):
                self._socket.unwrap()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            unread = LINGER_BYTES
            while unread > 0 and (data := self.recv(_READ_BYTES)):
                unread -= len(data)
        self.close()

    def reset(self) -> None:
        """Break the connection off, visibly."""
        self._held = None
        with suppress(OSError):
            connections.reset(self)

    def close(self) -> None:
        """Close the connection. More than one call is harmless."""
        self._say_goodbye()
        self._socket.close()

    def fileno(self) -> int:
        """Return the file descriptor, -1 when closed."""
        return self._socket.fileno()

    def setsockopt(self, level: int, name: int, value: bytes) -> None:
        """Set an option of the socket."""
        self._socket.setsockopt(level, name, value)

    def detach(self) -> int:
        """Give up the file descriptor and return it."""
        return self._socket.detach()

    def _say_goodbye(self) -> None:
        """Under TLS, tell the client that the connection ends here, without waiting (a `close_notify`)."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.fileno() >= 0:
            self._socket.settimeout(0.0)
            with suppress(OSError, ValueError):  # The client's own goodbye has not come, or nothing is open any more.
                self._socket.unwrap()
            self._socket.settimeout(SEND_TIMEOUT_S)

"""
A client connection under gevent, in the form that gunicorn's parser and response use.

Reads have a deadline, writes have a stall timeout, and closing never loses data already sent to the client.
"""

import socket
import ssl
import time
from contextlib import suppress

import gevent

from httpserver.truncation_guard import reset

#: Seconds for a TLS handshake, counted from the opening of the connection.
HANDSHAKE_TIMEOUT_S = 10.0
#: Seconds within which a client must accept at least some of the data sent to it.
SEND_TIMEOUT_S = 60.0
#: Seconds and bytes that a client may still send after the last response, which it may still be reading. A proxy that
#: cannot send the rest of a body returns 502 instead of our response, so the time limit should be reached first.
LINGER_S = 2.0
LINGER_BYTES = 64 * 1024 * 1024

_READ_BYTES = 64 * 1024


class ClientConnection:
    """
    A client connection over a gevent socket.

    `recv` raises `TimeoutError` at the deadline that `allow` sets, even if bytes keep trickling in. While it waits, the
    connection is in *waiting*, which is ordered by the start of the wait.
    """

    __slots__ = ("_deadline", "_gives_way", "_held", "_socket", "_waiting")

    def __init__(self, client: socket.socket, waiting: "dict[ClientConnection, None] | None" = None) -> None:
        client.settimeout(SEND_TIMEOUT_S)
        self._waiting = {} if waiting is None else waiting
        self._gives_way = False
        self._socket = client
        self._deadline = 0.0
        self._held: bytes | None = None

    def allow(self, seconds: float) -> None:
        """Set the deadline of all following reads to *seconds* from now."""
        self._deadline = time.monotonic() + seconds

    def start_tls(self, context: ssl.SSLContext) -> None:
        """
        Start TLS on this connection.

        Raises:
            ssl.SSLError: The handshake failed.
            TimeoutError: The handshake took longer than `HANDSHAKE_TIMEOUT_S`.
        """
        with gevent.Timeout(HANDSHAKE_TIMEOUT_S, TimeoutError("no TLS handshake in time")):
            secured = context.wrap_socket(self._socket, server_side=True, do_handshake_on_connect=False)
            self._socket = secured
            secured.do_handshake()

    def recv(self, size: int) -> bytes:
        """
        Return at most *size* bytes from the client, or b"" at the end of the data.

        Raises:
            TimeoutError: The deadline has passed.
        """
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("no time is left to read")
        self._waiting[self] = None
        try:
            data = self._receive(size, left_s)
        finally:
            self._waiting.pop(self, None)
        if self._gives_way and not data:
            raise TimeoutError("the connection makes room for another")
        return data

    def _receive(self, size: int, left_s: float) -> bytes:
        if isinstance(self._socket, ssl.SSLSocket):
            # One TLS recv may read several times, each with the full timeout of the socket. gevent's timeout limits the
            # whole call, and cannot be swallowed: it never leaves this block as gevent's own exception.
            with gevent.Timeout(left_s, TimeoutError("the time to read is over")):
                try:
                    return self._socket.recv(size)
                except ValueError:
                    return b""  # `stop_reading` has ended TLS because the client had ended it.
        self._socket.settimeout(left_s)
        try:
            return self._socket.recv(size)
        finally:
            self._socket.settimeout(SEND_TIMEOUT_S)

    def send(self, data: bytes) -> int:
        """Send part of *data* and return the number of bytes sent."""
        return self._socket.send(data)

    def hold(self) -> None:
        """Buffer the next `sendall` until more data or `release` follows, so that headers and body share a packet."""
        self._held = b""

    def release(self) -> None:
        """Send buffered data."""
        held, self._held = self._held, None
        if held:
            self.sendall(held)

    def sendall(self, data: bytes) -> None:
        """
        Send all of *data*.

        Raises:
            TimeoutError: The client accepted nothing for `SEND_TIMEOUT_S`. The connection is then reset, because data
                in flight must not look complete to a client that resumes reading.
        """
        if self._held == b"":
            self._held = data
            return
        if self._held is not None:
            data, self._held = self._held + data, None  # Copying a few bytes is cheaper than two sends.
        self._send_all([memoryview(data)] if data else [])

    def send_parts(self, *parts: bytes) -> None:
        """
        Send buffered data, then all of *parts* in order, without a copy except under TLS.

        Raises:
            TimeoutError: See `sendall`.
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
        """End reads, from any greenlet. The reader gets the data that has arrived, then the end of the stream."""
        self._notify_close()
        # Use a second socket object, because gevent's shutdown would raise in the reader, and a TLS shutdown would end
        # TLS. It has the same descriptor, because this method is also called when no descriptor is left.
        with suppress(OSError, ValueError):  # The socket may be closed.
            twin = socket.socket(fileno=self.fileno())
            try:
                twin.shutdown(socket.SHUT_RD)
            finally:
                twin.detach()

    def give_way(self) -> None:
        """End the current read, from any greenlet, as if its deadline had passed. `finish` then does not wait."""
        self._gives_way = True
        self.stop_reading()

    def finish(self) -> None:
        """
        Close the connection after a response such that all of it reaches a client that is still sending.

        Closing a connection with unread input sends a reset, which may overtake the response (RFC 9112, 9.6).
        """
        if self._gives_way:
            self.close()
            return
        self.allow(LINGER_S)
        if isinstance(self._socket, ssl.SSLSocket):
            # This sends the close_notify, and fails if the client keeps sending data instead of replying to it.
            with suppress(OSError, ValueError), gevent.Timeout(LINGER_S, TimeoutError()):
                self._socket.unwrap()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            unread = LINGER_BYTES
            while unread > 0 and (data := self.recv(_READ_BYTES)):
                unread -= len(data)
        self.close()

    def reset(self) -> None:
        """Reset the connection so that no response on it looks complete."""
        self._held = None
        with suppress(OSError):
            reset(self)

    def close(self) -> None:
        """Close the connection. More than one call is harmless."""
        self._notify_close()
        self._socket.close()

    def fileno(self) -> int:
        """Return the file descriptor, or -1 if closed."""
        return self._socket.fileno()

    def setsockopt(self, level: int, name: int, value: bytes) -> None:
        """Set a socket option."""
        self._socket.setsockopt(level, name, value)

    def detach(self) -> int:
        """Detach the file descriptor and return it."""
        return self._socket.detach()

    def _notify_close(self) -> None:
        """Under TLS, send a `close_notify` without waiting for the client's."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.fileno() >= 0:
            self._socket.settimeout(0.0)
            with suppress(OSError, ValueError):  # The client's close_notify has not arrived, or the socket is closed.
                self._socket.unwrap()
            self._socket.settimeout(SEND_TIMEOUT_S)

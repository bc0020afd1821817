"""Limit the time of a whole response. httpx limits single reads: a server that trickles bytes never times out."""

import time
from typing import Any

import httpcore
import httpx

#: A response with a lower average rate over a whole time-out counts as silent.
MIN_BYTES_PER_S = 100


def limit_response_time(client: httpx.Client) -> None:
    """Apply the read time-out of each request to its whole response; `allow_streaming` exempts rows."""
    # httpx cannot pass on a network backend, which httpcore supports: https://www.encode.io/httpcore/network-backends
    for transport in (client._transport, *client._mounts.values()):  # noqa: SLF001
        if isinstance(transport, httpx.HTTPTransport):
            transport._pool._network_backend = _Backend()  # noqa: SLF001


def allow_streaming(response: httpx.Response) -> None:
    """Allow the body of *response* any time, as long as enough of it arrives within each read time-out."""
    stream = response.extensions.get("network_stream")
    if isinstance(stream, _Stream):
        stream.allow_streaming()


class _Backend(httpcore.SyncBackend):
    """Opens connections whose reads share one time limit."""

    def connect_tcp(self, *args: Any, **kwargs: Any) -> httpcore.NetworkStream:
        """Connect."""
        return _Stream(super().connect_tcp(*args, **kwargs))


class _Stream(httpcore.NetworkStream):
    """
    A connection whose time-out starts when a request was last written.

    While rows stream, only the time spent waiting counts: the consumer may be slow.
    """

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream
        self._written_at = time.monotonic()
        self._is_streaming = False

    def allow_streaming(self) -> None:
        """Start to measure the rate."""
        self._is_streaming = True
        self._waited_s, self._received = 0.0, 0

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read the next bytes. Raises httpcore.ReadTimeout if the response as a whole takes too long."""
        if timeout is None:
            return self._stream.read(max_bytes)
        start = time.monotonic()
        left_s = timeout - (self._waited_s if self._is_streaming else start - self._written_at)
        if left_s <= 0:
            raise httpcore.ReadTimeout
        content = self._stream.read(max_bytes, left_s)
        if self._is_streaming:
            self._waited_s += time.monotonic() - start
            self._received += len(content)
            if self._received >= MIN_BYTES_PER_S * timeout:
                self._waited_s, self._received = 0.0, 0
        return content

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write a part of a request; the time-out of its response starts here."""
        self._stream.write(buffer, timeout)
        self._is_streaming = False
        self._written_at = time.monotonic()

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()

    def start_tls(self, *args: Any, **kwargs: Any) -> httpcore.NetworkStream:
        """Encrypt the connection."""
        return _Stream(self._stream.start_tls(*args, **kwargs))

    def get_extra_info(self, info: str) -> Any:
        """Return information about the connection."""
        return self._stream.get_extra_info(info)

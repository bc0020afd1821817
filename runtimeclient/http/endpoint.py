"""The endpoint of a runtime: its URL, TLS and connections with time limits."""

import ipaddress
import math
import os
import re
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpcore
import httpx

from runtimeclient.errors import UsageError
from runtimeclient.http.timeouts import MIN_BYTES_PER_S

_HOST = re.compile(rb"[a-z0-9._-]+|[0-9a-f:.]+", re.IGNORECASE)
#: Seconds after which a read looks for a signal.
_WAIT_S = 0.5
_LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The base URL of a runtime, without a trailing slash."""

    url: str
    origin: str  # scheme, host and port
    is_tls: bool
    is_loopback: bool  # requests stay on this machine, so no proxy is used


def parse_endpoint(text: str) -> Endpoint:
    """
    Parse a base URL: `http` or `https`, a host, optionally a port and a path prefix.

    Raises:
        UsageError: *text* is not such a URL. The message does not repeat a user name or password.
    """
    if "@" in text:
        raise UsageError("The HTTP endpoint must not contain a user name or password: use the API key options.")
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, UnicodeError) as exc:
        raise UsageError(f"The HTTP endpoint is not a URL: {exc}") from exc
    if url.scheme not in {"http", "https"}:
        hint = f": did you mean http://{text}?" if text and "://" not in text else "."
        raise UsageError(f"The HTTP endpoint must start with http:// or https://{hint}")
    if not _HOST.fullmatch(url.raw_host) or not (url.port is None or 0 < url.port < 65536):
        raise UsageError(f"The HTTP endpoint {text} must have a host. Its port, if any, must be from 1 to 65535.")
    if url.query or url.fragment or "?" in text or "#" in text:
        # Do not show the URL, because the user may have put the key into the query string.
        raise UsageError("The HTTP endpoint must not have a query string or fragment.")
    is_tls = url.scheme == "https"
    port = url.port or (443 if is_tls else 80)
    origin = f"{url.scheme}://{url.raw_host.decode().lower()}:{port}"
    return Endpoint(str(url).rstrip("/"), origin, is_tls, _is_loopback(url.host))


def _is_loopback(host: str) -> bool:
    name = host.lower().rstrip(".")
    if name in _LOOPBACK_NAMES or name.endswith(".localhost"):
        return True
    with suppress(OSError):
        name = socket.inet_ntoa(socket.inet_aton(name))  # The resolver also accepts 127.1 and 0x7f000001.
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    # Connecting to 0.0.0.0 or [::] reaches this machine.
    return bool(mapped.is_loopback or mapped.is_unspecified)


_ROOT_FILE, _ROOT_DIRECTORIES, _KEY_LOG = "SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE"


def tls_context(root_certificate_file: Path | None) -> ssl.SSLContext:
    """
    Return a context that trusts the roots in a PEM file.

    None means the file in SSL_CERT_FILE, else the directories in SSL_CERT_DIR, else the package certifi.

    Raises:
        UsageError: The file, or a variable of the environment, cannot be used.
    """
    if root_certificate_file is not None:
        with _usage_errors(f"The root certificate file {root_certificate_file}"):
            return ssl.create_default_context(cafile=root_certificate_file)
    if file := os.environ.get(_ROOT_FILE):
        with _usage_errors(f"The root certificate file {file}, named by {_ROOT_FILE},"):
            return ssl.create_default_context(cafile=file)
    if directories := os.environ.get(_ROOT_DIRECTORIES):
        # OpenSSL ignores a missing directory. Without any directory, it would trust no server.
        if not any(map(os.path.isdir, directories.split(os.pathsep))):
            raise UsageError(f"{_ROOT_DIRECTORIES} cannot be used: {directories} is not a directory.")
        with _usage_errors(f"The directory {directories}, named by {_ROOT_DIRECTORIES},"):
            return ssl.create_default_context(capath=directories)
    with _usage_errors("The root certificate file of the package certifi"):
        return httpx.create_ssl_context(trust_env=False)


@contextmanager
def _usage_errors(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        log = os.environ.get(_KEY_LOG)
        if log and exc.filename == log:  # Python opens this file when it creates a context.
            raise UsageError(f"The file {log}, named by {_KEY_LOG}, cannot be written: {exc.strerror}.") from exc
        reason = exc.strerror if exc.errno and not isinstance(exc, ssl.SSLError) else "it is not a PEM certificate"
        raise UsageError(f"{what} cannot be used: {reason}.") from exc


def limit_response_time(client: httpx.Client) -> "Connections":
    """
    Apply the read timeout of each request to its whole response. `allow_streaming` exempts rows.

    Returns:
        The connections that *client* opens from now on.
    """
    connections = Connections()
    # httpx cannot pass on a network backend, which httpcore supports: https://www.encode.io/httpcore/network-backends
    for transport in (client._transport, *client._mounts.values()):  # noqa: SLF001
        if isinstance(transport, httpx.HTTPTransport):
            transport._pool._network_backend = connections  # noqa: SLF001
    return connections


def allow_streaming(response: httpx.Response) -> None:
    """Allow the body of *response* any time, as long as enough of it arrives within each read timeout."""
    stream = response.extensions.get("network_stream")
    if isinstance(stream, _Stream):
        stream.allow_streaming()


class Connections(httpcore.SyncBackend):
    """Opens connections whose reads share one time limit."""

    def __init__(self) -> None:
        super().__init__()
        self._streams: weakref.WeakSet[_Stream] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._is_broken = False

    def connect_tcp(self, host: str, *args: Any, **kwargs: Any) -> httpcore.NetworkStream:
        """Connect."""
        # httpcore passes ASCII. Python encodes a str by IDNA, whose tables are slow to import, and which raises
        # UnicodeError for a name that cannot be resolved, such as `a..b`.
        name: Any = host.encode("ascii")
        return self.add(super().connect_tcp(name, *args, **kwargs))

    def add(self, stream: httpcore.NetworkStream) -> "_Stream":
        """Return *stream* with the time limit. Raises httpcore.ConnectError after `break_off`."""
        added = _Stream(stream, self)
        with self._lock:
            self._streams.add(added)
            if not self._is_broken:
                return added
        stream.close()
        raise httpcore.ConnectError

    def break_off(self) -> None:
        """Break every connection, and refuse new ones. Any thread may call it; one that reads gets an error."""
        with self._lock:
            self._is_broken = True
            streams = list(self._streams)
        for stream in streams:
            with suppress(OSError):
                stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


class _Stream(httpcore.NetworkStream):
    """
    A connection whose timeout starts when a request was last written.

    While rows stream, only the time spent waiting counts, because the consumer may be slow.
    """

    def __init__(self, stream: httpcore.NetworkStream, connections: Connections) -> None:
        self._stream = stream
        self._connections = connections
        self._written_at = time.monotonic()
        self._is_streaming = False

    def allow_streaming(self) -> None:
        """Start to measure the rate."""
        self._is_streaming = True
        self._waited_s, self._received = 0.0, 0

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read the next bytes. Raises httpcore.ReadTimeout if the response as a whole takes too long."""
        if timeout is None:
            return self._read_until(math.inf, max_bytes)
        start = time.monotonic()
        left_s = timeout - (self._waited_s if self._is_streaming else start - self._written_at)
        if left_s <= 0:
            raise httpcore.ReadTimeout
        content = self._read_until(start + left_s, max_bytes)
        if self._is_streaming:
            self._waited_s += time.monotonic() - start
            self._received += len(content)
            if self._received >= MIN_BYTES_PER_S * timeout:
                self._waited_s, self._received = 0.0, 0
        return content

    def _read_until(self, end: float, max_bytes: int) -> bytes:
        """Read, in short waits: a Ctrl-C just before a wait takes effect only after it."""
        while True:
            try:
                return self._stream.read(max_bytes, min(_WAIT_S, max(end - time.monotonic(), 0.001)))
            except httpcore.ReadTimeout:
                if time.monotonic() >= end:
                    raise

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write part of a request. The timeout of its response starts here."""
        self._stream.write(buffer, timeout)
        self._is_streaming = False
        self._written_at = time.monotonic()

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()

    def start_tls(self, *args: Any, **kwargs: Any) -> httpcore.NetworkStream:
        """Encrypt the connection."""
        return self._connections.add(self._stream.start_tls(*args, **kwargs))

    def get_extra_info(self, info: str) -> Any:
        """Return information about the connection."""
        return self._stream.get_extra_info(info)

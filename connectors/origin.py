"""
A connection to the server from which files are downloaded: one scheme, host and port.

A redirect to another origin is refused, so credentials are sent only to the intended server. Certificates are always
verified. A read ends when the server has been silent for too long. The connection is cut off at the load's deadline, so
a server that occasionally sends a byte cannot delay a load. httpx is built on the same httpcore, but would normalise
the signed paths of S3.

Downloads are saved in the load's scratch space.
"""

import os
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import certifi
import httpcore

from datasources.deadline import Deadline
from datasources.errors import SourceError
from datasources.sources.pinned_file import PinnedFile
from datasources.sources.scratch_files import ScratchSpace, too_large
from runtimeconf.fields import InvalidValueError
from runtimeconf.network import is_near, parse_origin

_MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})

_PORTS = {"http": 80, "https": 443}


class Body(Protocol):
    """Content sent by a server, such as an `Answer`."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, with lower-case names."""

    @property
    def length(self) -> int | None:
        """The length in bytes according to the server; None if it is not known in advance."""

    def blocks(self) -> Iterator[bytes]:
        """Yield all bytes as sent. Raises SourceError."""


class Answer:
    """
    A response: `status`, `headers` (lower-case names), and the body as it arrives.

    *shown* names the request in errors.
    """

    def __init__(self, response: httpcore.Response, shown: str) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers
        }
        self._response = response
        self._shown = shown

    @property
    def length(self) -> int | None:
        """The length of the body according to the server, in bytes; None if it is not known in advance."""
        if "transfer-encoding" in self.headers:
            return None  # Transfer-Encoding overrides a length (RFC 9112, 6.3).
        text = self.headers.get("content-length")
        return int(text) if text is not None else None

    def beginning(self, limit: int) -> bytes:
        """Return the beginning of the body: all of it, or at least *limit* bytes."""
        content = bytearray()
        for block in self._response.iter_stream():
            content += block
            if len(content) >= limit:
                break
        return bytes(content)

    def blocks(self) -> Iterator[bytes]:
        """
        Yield the whole body as sent, without decoding it.

        Raises:
            SourceError: The response does not say where the body ends (RFC 9112, 6.3), so a truncated one could not be
                detected; or, through `Origin.request`, the body was truncated.
        """
        if self.length is None and "chunked" not in self.headers.get("transfer-encoding", "").lower():
            raise SourceError(
                f"'{self._shown}': the server reports neither the length of the file nor a chunked body, so a "
                "truncated file could not be detected."
            )
        yield from self._response.iter_stream()


class Origin:
    """
    One server, for use in one thread. The owner closes it.

    Args:
        origin: The origin, as returned by `parse_origin`.
        shown: The name of the source in errors.
        deadline: The end of the load.
        client_timeout_s: The maximum silence of the server, and the maximum time to connect.
        root_certificate_file: PEM file of the only roots to trust. None trusts the usual roots.

    Raises:
        SourceError: The certificate file or the proxy from the environment cannot be used.
    """

    def __init__(
        self, origin: str, shown: str, deadline: Deadline, client_timeout_s: float, root_certificate_file: Path | None
    ) -> None:
        self._silence_s = client_timeout_s
        self._origin = origin
        self._endpoint = _endpoint(origin)
        self._shown = shown
        self._deadline = deadline
        self._proxy = _proxy_for(*self._endpoint)
        context = tls_context(root_certificate_file) if self._endpoint[0] == "https" else None
        self._pool = httpcore.ConnectionPool(ssl_context=context, proxy=self._proxy, max_connections=1)
        self._sockets: set[int] = set()  # the inodes of the opened sockets
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._open.enter_context(self._deadline.cut_off(self._is_ours))
        self._open.enter_context(self._pool)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _note(self, event: str, info: Mapping[str, Any]) -> None:
        """Record the socket of a new connection, because another load of this process may use the same server."""
        if event == "connection.connect_tcp.complete":
            self._sockets.add(os.fstat(info["return_value"].get_extra_info("socket").fileno()).st_ino)

    def _is_ours(self, connection: socket.socket) -> bool:
        return os.fstat(connection.fileno()).st_ino in self._sockets

    @contextmanager
    def request(
        self, target: str, headers: Iterable[tuple[str, str]], *, method: str = "GET", body: bytes | None = None
    ) -> Iterator[Answer]:
        """
        Request *target* (a path with a query), and follow redirects within the origin.

        The response is open until the end of the block. The rest of its body is not read.

        Raises:
            SourceError: The server cannot be reached, does not speak HTTP, disconnects, or redirects elsewhere.
            SnapshotError: The deadline has passed.
        """
        # Headers are also read in this encoding, so an ETag is sent back unchanged.
        sent = [
            (name.encode("latin-1"), value.encode("latin-1")) for name, value in [("Host", self._host_header), *headers]
        ]
        for _ in range(_MAX_REDIRECTS + 1):
            self._deadline.check()
            connect_s = max(0.001, min(self._silence_s, self._deadline.left_s))
            timeouts = {"connect": connect_s, "read": self._silence_s, "write": self._silence_s, "pool": None}
            extensions = {"timeout": timeouts, "trace": self._note}
            request = self._pool.stream(method, self._url(target), headers=sent, content=body, extensions=extensions)
            with self._explained(), request as response:
                answer = Answer(response, self._shown)
                if answer.status not in _REDIRECTS or "location" not in answer.headers:
                    yield answer
                    # A connection that was cut off looks like the end of a body without a length.
                    self._deadline.check()
                    return
                target = self._within(target, answer.headers["location"])
        raise SourceError(f"'{self._shown}': the server redirects too often.")

    @property
    def _host_header(self) -> str:
        # Leave out the default port, as signatures do.
        return self._origin.partition("://")[2].removesuffix(f":{_PORTS[self._endpoint[0]]}")

    def _url(self, target: str) -> httpcore.URL:
        scheme, host, _ = self._endpoint
        port = urlsplit(self._origin).port
        return httpcore.URL(scheme=scheme.encode(), host=host.encode(), port=port, target=target.encode())

    def _within(self, target: str, location: str) -> str:
        """Return the target of a redirect, which may contain a token. Refuse a redirect to another origin."""
        try:
            url = urljoin(self._origin + target, location).partition("#")[0]
            origin, rest = parse_origin(url)
            rest.encode("ascii")
        except (InvalidValueError, ValueError):
            raise SourceError(f"'{self._shown}': the server redirects to an address that is not a URL.") from None
        if _endpoint(origin) != self._endpoint:
            raise SourceError(
                f"'{self._shown}': the server redirects to another server, {origin}. Redirects to other servers "
                "are not followed: if you trust that server, set it in the configuration."
            )
        return rest if rest.startswith("/") else f"/{rest}"

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn connection errors into sentences. The deadline takes precedence."""
        try:
            yield
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, httpcore.ProxyError) as exc:
            self._deadline.check()
            raise SourceError(f"'{self._shown}': {self._reason(exc)}.") from exc

    def _reason(self, error: Exception) -> str:
        cause = error.args[0] if error.args else None
        through = " through the proxy from the environment" if self._proxy is not None else ""
        silence = f"{self._silence_s:g} s, the client_timeout"
        untrusted = getattr(cause, "verify_message", None)
        why = cause.strerror if isinstance(cause, OSError) and cause.strerror else "the connection failed"
        reasons: tuple[tuple[bool, str], ...] = (
            (untrusted is not None, f"the certificate of the server is not trusted ({untrusted})"),
            (isinstance(cause, ssl.SSLError), "the server uses an incompatible version of TLS"),
            (isinstance(error, httpcore.ProxyError), "the proxy from the environment refused the connection"),
            (isinstance(cause, socket.gaierror), f"the server's host name cannot be resolved{through}"),
            (isinstance(error, httpcore.ConnectTimeout), f"no connection to the server{through} within {silence}"),
            (isinstance(error, httpcore.ConnectError), f"the server cannot be reached{through} ({why})"),
            (isinstance(error, httpcore.TimeoutException), f"the server was silent for {silence}"),
            (isinstance(error, httpcore.LocalProtocolError), "the address or a header cannot be sent"),
        )
        broken = "the connection broke, or the response was not HTTP, before all data had arrived"
        return next((reason for holds, reason in reasons if holds), broken)


class Downloads:
    """The downloads of a load into *space*. *max_size* is `max_download_size`, the limit for all bytes together."""

    def __init__(self, space: ScratchSpace, max_size: int | None) -> None:
        self._space = space
        self._left_bytes, self._limit = space.left_bytes, "query.temp_directory_limit"
        if max_size is not None and max_size < space.left_bytes:
            self._left_bytes, self._limit = max_size, "params.max_download_size"

    def save(self, answer: Body, shown: str) -> PinnedFile:
        """
        Save the body of *answer*. *shown* names it in errors.

        Raises:
            SourceError: The body is empty, truncated, or exceeds the limit.
            SnapshotError: The deadline has passed.
            OSError: The disk is full.
        """
        if answer.length is not None and answer.length > self._left_bytes:
            raise too_large(shown, self._limit)
        file = self._space.save(self._counted(answer.blocks(), shown), shown)
        if file.identity.size == 0:
            raise SourceError(f"'{shown}' is empty (0 bytes).")
        return file

    def _counted(self, blocks: Iterable[bytes], shown: str) -> Iterator[bytes]:
        for block in blocks:
            self._left_bytes -= len(block)
            if self._left_bytes < 0:
                raise too_large(shown, self._limit)
            yield block


def _endpoint(origin: str) -> tuple[str, str, int]:
    """Return the scheme, host and port of an origin (RFC 6454)."""
    parts = urlsplit(origin)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS[parts.scheme]


def tls_context(root_certificate_file: Path | None) -> ssl.SSLContext:
    """
    Return a client context that verifies servers with the roots in a PEM file; None means the usual roots.

    Raises:
        SourceError: The file cannot be used.
    """
    named = os.environ.get("SSL_CERT_FILE") if root_certificate_file is None else None
    try:
        # The default roots are those of the runtime's client, which are the same on every system.
        return ssl.create_default_context(cafile=root_certificate_file or named or certifi.where())
    except OSError as exc:
        reason = exc.strerror if exc.errno and not isinstance(exc, ssl.SSLError) else "it is not a PEM certificate"
        which = ", named by SSL_CERT_FILE in the environment of the runtime," if named else ""
        raise SourceError(f"The file of root certificates{which} cannot be used: {reason}.") from exc


def _proxy_for(scheme: str, host: str, port: int) -> httpcore.Proxy | None:
    """Return the proxy from the environment (HTTPS_PROXY, NO_PROXY and the like). It is not used for nearby hosts."""
    proxies = getproxies()
    url = proxies.get(scheme) or proxies.get("all")
    if not url or is_near(host) or proxy_bypass(f"{host}:{port}"):
        return None
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        origin, _ = parse_origin(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}")
    except (InvalidValueError, ValueError):
        raise SourceError("The proxy from the environment cannot be used: use an http:// or https:// URL.") from None
    auth = (unquote(parts.username), unquote(parts.password or "")) if parts.username is not None else None
    ssl_context = tls_context(None) if parts.scheme == "https" else None
    return httpcore.Proxy(origin, auth=auth, ssl_context=ssl_context)

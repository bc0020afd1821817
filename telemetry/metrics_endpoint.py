"""
The metrics endpoint: `GET` and `HEAD` of `/metrics`, and nothing else.

It is for scrapers, not for browsers. `prometheus_client` chooses and writes the format. A connection serves one request
in its own thread, and is closed after a few seconds. At most `MAX_CONNECTIONS` are served at once, and the others wait.
A hundred silent clients delay a scrape by less than the usual timeout of 10 s.
"""

import logging
import math
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family

from system.addresses import Address
from telemetry import metrics, upstream_names
from telemetry.families import family
from telemetry.metrics import Metric, Series

logger = logging.getLogger(__name__)

PATH = "/metrics"

MAX_CONNECTIONS = 32

#: Seconds within which a request must arrive, and within which its response must be read.
REQUEST_S = 1.0
RESPONSE_S = 5.0

_POLL_S = 0.5
_PLAIN = "text/plain; charset=utf-8"
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class RuntimeMetrics:
    """
    Collects the metrics that *sources* return, in the order of `METRICS`. Metrics without series are omitted.

    The runtime *began* at this time, in seconds since 1970.
    """

    def __init__(self, *sources: Callable[[], Mapping[Metric, Series]], began: float) -> None:
        self._sources = sources
        self._began = round(began, 3)
        self.has_upstream_names = False

    def collect(self) -> Iterator[Family]:
        """Yield all families as of now."""
        found: dict[Metric, Series] = {metrics.START_TIME: {(): self._began}}
        for source in self._sources:
            found |= source()
        families = [family(metric, found.get(metric, {})) for metric in metrics.METRICS]
        if self.has_upstream_names:
            families += upstream_names.families(found)
        yield from (one for one in families if one.samples)


class MetricsServer(ThreadingMixIn, HTTPServer):
    """
    Serves *registry* on *listener*, a listening socket that is closed by `stop`.

    On a loopback address, the server accepts only requests whose `Host` is also a loopback address. This prevents web
    pages in a browser on this machine from reading the metrics through their own host names. Responses are written one
    at a time so that many requests leave time for the other threads.
    """

    daemon_threads = True

    def __init__(self, listener: socket.socket, registry: CollectorRegistry) -> None:
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.registry = registry
        self.is_local = Address(listener.getsockname()[0], 0).is_loopback
        self.writing = threading.Lock()
        #: The time at which each open connection is closed.
        self.deadlines: dict[socket.socket, float] = {}
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, args=[_POLL_S], name="metrics", daemon=True)

    def start(self) -> None:
        """Start serving."""
        self.socket.setblocking(False)
        self._thread.start()

    def stop(self) -> None:
        """Stop accepting connections."""
        self._stopped.set()
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # ends the wait for a connection
        self.shutdown()
        self.server_close()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Wait for a slot, then accept. Raises OSError."""
        if not self._slots.acquire(timeout=_POLL_S):
            raise TimeoutError
        try:
            request, address = super().get_request()
        except OSError as error:
            self._slots.release()
            if not isinstance(error, BlockingIOError):  # no descriptor left
                self._stopped.wait(_POLL_S)
            raise
        self.deadlines[request] = time.monotonic() + REQUEST_S
        return request, address

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        del self.deadlines[request]
        super().shutdown_request(request)
        self._slots.release()

    def service_actions(self) -> None:
        """End the connections whose time is up."""
        now = time.monotonic()
        for request, deadline in list(self.deadlines.items()):
            if now > deadline:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the error, unless the client has disconnected or the machine has no threads left."""
        error = sys.exception()
        if not isinstance(error, OSError | RuntimeError):
            logger.error("The metrics could not be written", exc_info=error)


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    server_version, sys_version = "querykeep", ""
    default_request_version = "HTTP/1.0"  # so that an error has a status line
    error_content_type, error_message_format = _PLAIN, "%(explain)s\n"

    def do_GET(self) -> None:
        self.server.deadlines[self.request] = math.inf
        if self.server.is_local and not all(map(_is_loopback, self.headers.get_all("Host", ["localhost"]))):
            self._respond(HTTPStatus.MISDIRECTED_REQUEST, b"The Host is not an address of this machine.\n")
        elif self.path.partition("?")[0] != PATH:
            self._respond(HTTPStatus.NOT_FOUND, b"There is only /metrics here.\n")
        else:
            encode, content_type = _encoder(self.headers.get("Accept", ""))
            with self.server.writing:
                body = encode(self.server.registry)
            self._respond(HTTPStatus.OK, body, content_type)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _respond(self, status: HTTPStatus, body: bytes, content_type: str = _PLAIN) -> None:
        self.server.deadlines[self.request] = time.monotonic() + RESPONSE_S
        self.send_response(status)
        headers = {"Content-Type": content_type, "Content-Length": str(len(body)), "Connection": "close"}
        for name, value in (headers | _HEADERS).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def _encoder(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    try:
        return choose_encoder(accept)
    except TypeError:  # The requested version is not a number.
        return choose_encoder("")


def _is_loopback(host: str) -> bool:
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return Address(name.lower(), 0).is_loopback

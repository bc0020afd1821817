"""A collector of traces: it decodes what it gets, and answers well, late, with an error, or not at all."""

import gzip
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector(ThreadingHTTPServer):
    """
    A collector on a port of 127.0.0.1.

    `delay_s` passes before each answer, unless it must `hurry`. The status of an answer is `status`, and its body is
    `body`; if it `is_endless`, the body is sent again and again, with pauses of `pause_s`. `spans` are those of the
    requests that it accepted.
    """

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.delay_s = 0.0
        self.hurry = threading.Event()
        self.status = 200
        self.location = ""
        self.body = b""
        self.is_endless = False
        self.pause_s = 0.0
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.requests: list[dict[str, str]] = []
        self._thread = threading.Thread(target=self.serve_forever, args=[0.02])
        self._thread.start()

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://127.0.0.1:{self.server_port}"

    def named(self, name: str) -> list[Any]:
        """Return the spans of this name."""
        return [span for span in self.spans if span.name == name]

    def close(self) -> None:
        """Stop accepting."""
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Collector
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = gzip.decompress(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        server.requests.append({"path": self.path} | {name.lower(): value for name, value in self.headers.items()})
        server.hurry.wait(server.delay_s)
        status, answer = server.status, server.body  # The test may change them meanwhile.
        if status == 200:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                server.services |= {one.value.string_value for one in resource.resource.attributes}
                server.spans += [span for scope in resource.scope_spans for span in scope.spans]
        self.send_response(status)
        if not server.is_endless:
            self.send_header("Content-Length", str(len(answer)))
        if server.location:
            self.send_header("Location", server.location)
        with suppress(ConnectionError):
            self.end_headers()
            self.wfile.write(answer)
            while server.is_endless:
                self.wfile.write(answer)
                time.sleep(server.pause_s)
        self.close_connection = server.is_endless

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def collecting(port: int = 0) -> Iterator[Collector]:
    """A collector until the end of the block."""
    collector = Collector(port)
    try:
        yield collector
    finally:
        collector.close()


def attributes(span: Any) -> dict[str, Any]:
    """Return the attributes of *span*."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}

"""A runtime that starts before the source of its datasets, as a pod before its database."""

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.system.harness import K1, Server, wait_for

#: Seconds from the start of the runtime to that of the source, and the most until there are rows.
DOWN_S, PROMISED_S = 20.0, 10.0

CSV = b"n\n1\n2\n3\n"


class _File(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._head()
        self.wfile.write(CSV)

    def do_HEAD(self) -> None:
        self._head()

    def _head(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/csv")
        self.send_header("Content-Length", str(len(CSV)))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing of each request."""


class Source(ThreadingHTTPServer):
    """A file server that has a port, and refuses connections until it begins to listen."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _File, bind_and_activate=False)
        self.server_bind()
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)

    def begin(self) -> None:
        self.server_activate()
        self._thread.start()

    def end(self) -> None:
        if self._thread.ident is not None:
            self.shutdown()
            self._thread.join()
        self.server_close()


@contextmanager
def source() -> Iterator[Source]:
    made = Source()
    try:
        with socket.socket() as caller:
            assert caller.connect_ex(("127.0.0.1", made.server_port)) != 0
        yield made
    finally:
        made.end()


YAML = """
version: v1
runtime:
  auth: {{api-key: {{enabled: true, keys: [{key}]}}}}
  http: {{bind: "127.0.0.1:{port}"}}
  flight: {{enabled: false}}
datasets:
  - {{from: "http://127.0.0.1:{source}/hourly.csv", name: hourly, acceleration: {{refresh_check_interval: 1h}}}}
  - {{from: "http://127.0.0.1:{source}/nightly.csv", name: nightly, acceleration: {{refresh_cron: 0 4 29 2 *}}}}
  - {{from: "http://127.0.0.1:{source}/asked.csv", name: asked, acceleration: {{}}}}
  - {{from: "http://127.0.0.1:{source}/once.csv", name: once}}
views:
  - {{name: many, sql: SELECT * FROM hourly WHERE n > 1, materialized: true}}
"""


def next_refresh_at(server: Server, name: str) -> str | None:
    at: str | None
    (at,) = (one["next_refresh_at"] for one in server.listed("/v1/datasets") if one["name"] == name)
    return at


@pytest.mark.exhaustive
def test_a_runtime_that_starts_20_s_before_its_source_has_rows_within_10_s_of_it(tmp_path: Path) -> None:
    with source() as late:
        server = Server(tmp_path, wait_ready=False)
        server.text = YAML.format(key=K1, port=server.port, source=late.server_port)
        began = time.monotonic()
        with server:
            wait_for(lambda: time.monotonic() - began >= DOWN_S, "the source to begin", patience_s=2 * DOWN_S)
            assert server.get("/v1/ready").status_code == 503
            assert {one["status"] for one in server.listed("/v1/datasets")} == {"Error"}
            late.begin()
            back = time.monotonic()

            waited_s = {}
            for name, rows in {"hourly": 3, "nightly": 3, "asked": 3, "once": 3, "many": 2}.items():
                wait_for(lambda: server.sql(f"SELECT count(*) AS n FROM {name}").json() == [{"n": rows}], name)  # noqa: B023
                waited_s[name] = time.monotonic() - back
            assert server.answers("/v1/ready")

    assert max(waited_s.values()) <= PROMISED_S, waited_s


def test_a_first_load_that_failed_is_tried_again_before_its_interval_of_an_hour(tmp_path: Path) -> None:
    with source() as late:
        server = Server(tmp_path, wait_ready=False)
        server.text = YAML.format(key=K1, port=server.port, source=late.server_port)
        with server:
            wait_for(lambda: [run["status"] for run in server.refreshes("hourly")].count("failed") >= 2, "two failures")
            for name in ("hourly", "nightly", "asked", "once"):  # A dataset has no next time while it refreshes.
                wait_for(lambda: next_refresh_at(server, name) is not None, name)  # noqa: B023
            late.begin()

            wait_for(lambda: server.answers("/v1/ready"), "all datasets")

            runs = server.refreshes("hourly")
            assert [run["status"] for run in runs[:1]] == ["succeeded"]
            states = {one["name"]: one for one in server.listed("/v1/datasets")}
            assert {one["status"] for one in states.values()} == {"Ready"}
            assert states["hourly"]["next_refresh_at"] is not None
            assert states["asked"]["next_refresh_at"] is None
            assert all(later["requested_at"] > earlier["finished_at"] for later, earlier in itertools.pairwise(runs))

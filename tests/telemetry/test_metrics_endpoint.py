"""The metrics endpoint, whoever connects."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import timedelta

import httpx
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from telemetry import metrics_endpoint
from telemetry.metrics_endpoint import MAX_CONNECTIONS, MetricsServer
from tests.system.harness import NO_ROOTS, wait_for


class Collected:
    """One gauge, which may fail."""

    fails = False

    def collect(self) -> Iterator[Metric]:
        if self.fails:
            raise ValueError("on purpose")
        yield GaugeMetricFamily("one", "One.", 1)


@pytest.fixture
def collected() -> Collected:
    return Collected()


@pytest.fixture
def server(collected: Collected, monkeypatch: pytest.MonkeyPatch) -> Iterator[MetricsServer]:
    monkeypatch.setattr(metrics_endpoint, "_POLL_S", 0.05)
    registry = CollectorRegistry()
    registry.register(collected)
    made = MetricsServer(socket.create_server(("127.0.0.1", 0)), registry)
    made.start()
    yield made
    made.stop()


def ask(server: MetricsServer, method: str = "GET", path: str = "/metrics", **headers: str) -> httpx.Response:
    url = f"http://127.0.0.1:{server.server_address[1]}{path}"
    return httpx.request(method, url, headers=headers, verify=NO_ROOTS, trust_env=False, timeout=30)


def raw(server: MetricsServer, data: bytes) -> bytes:
    received = b""
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=30) as connection:
        connection.sendall(data)
        while part := connection.recv(65536):
            received += part
    return received


def test_the_metrics_are_there_and_nothing_else(server: MetricsServer) -> None:
    answer = ask(server)

    assert (answer.status_code, answer.text) == (200, "# HELP one One.\n# TYPE one gauge\none 1.0\n")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert (answer.headers["connection"], answer.headers["cache-control"]) == ("close", "no-store")
    assert ask(server, path="/metrics?name[]=x").text == answer.text
    head = ask(server, "HEAD")
    assert (head.status_code, head.text, head.headers["content-length"]) == (200, "", str(len(answer.content)))
    for path in ("/", "/metrics/", "/metrics/x", "/v1/sql", "/health"):
        assert ask(server, path=path).status_code == 404
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "BREW"):
        assert ask(server, method).status_code == 501


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("*/*", "text/plain; version=0.0.4"),
        ("application/openmetrics-text;version=1.0.0;q=0.6,text/plain;q=0.3", "application/openmetrics-text; version="),
        ("application/openmetrics-text;version=x", "text/plain; version=0.0.4"),
        ("text/plain;version=1.0.\xb2", "text/plain; version=0.0.4"),
    ],
)
def test_the_scraper_chooses_the_format(server: MetricsServer, accept: str, content_type: str) -> None:
    answer = raw(server, f"GET /metrics HTTP/1.1\r\nAccept: {accept}\r\n\r\n".encode("latin-1")).decode()

    assert answer.startswith("HTTP/1.0 200 ")
    assert f"\r\nContent-Type: {content_type}" in answer
    assert answer.endswith("# EOF\n") == ("openmetrics" in content_type)


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        *((host, 200) for host in ("localhost:1", "127.0.0.1", "[::1]:9090", "LOCALHOST")),
        *((host, 421) for host in ("evil.example", "127.0.0.1.evil.example:9090", "10.0.0.1", "[::2]:1", "")),
        ("localhost\r\nHost: evil.example", 421),
    ],
)
def test_a_page_of_a_browser_cannot_read_it_under_a_name_of_its_own(
    server: MetricsServer, hosts: str, status: int
) -> None:
    answer = raw(server, f"GET /metrics HTTP/1.1\r\nHost: {hosts}\r\n\r\n".encode())

    assert answer.startswith(f"HTTP/1.0 {status} ".encode())


def test_nonsense_and_faults_do_not_end_it(
    server: MetricsServer, collected: Collected, caplog: pytest.LogCaptureFixture
) -> None:
    assert raw(server, b"nonsense\r\n\r\n").startswith(b"HTTP/1.0 400 ")
    assert raw(server, b"GET /metrics HTTP/2.0\r\n\r\n").startswith(b"HTTP/1.0 505 ")
    assert raw(server, b"GET /metrics HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 200 ")
    with suppress(ConnectionResetError):
        assert b" 414 " in raw(server, b"x" * 70_000)
    assert caplog.messages == []
    collected.fails = True
    assert raw(server, b"GET /metrics HTTP/1.1\r\n\r\n") == b""
    collected.fails = False

    assert caplog.messages == ["The metrics could not be written"]
    assert ask(server).status_code == 200


def test_a_machine_without_threads_delays_a_scrape(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start
    refused: list[threading.Thread] = []

    def refuse(thread: threading.Thread) -> None:
        if "process_request" in thread.name and len(refused) < MAX_CONNECTIONS + 1:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    for _ in range(MAX_CONNECTIONS + 1):
        with pytest.raises(httpx.TransportError):
            ask(server)

    assert ask(server).status_code == 200


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\nHost: "])
def test_clients_that_send_no_whole_request_are_cut_off(
    server: MetricsServer, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_endpoint, "REQUEST_S", 0.2)
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        with suppress(OSError):
            while sent and not over.wait(0.05):
                connection.sendall(b"a")

    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.server_address[1])))
            for _ in range(2 * MAX_CONNECTIONS)
        ]
        for client in clients:
            client.sendall(sent)
        dripping = threading.Thread(target=drip, args=[clients[0]])
        dripping.start()
        assert ask(server).status_code == 200
        with suppress(ConnectionResetError):
            assert all(client.recv(1) == b"" for client in clients)
        over.set()
        dripping.join()


def test_a_client_that_does_not_read_is_cut_off(
    server: MetricsServer, collected: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_endpoint, "RESPONSE_S", 0.2)
    monkeypatch.setattr(collected, "collect", lambda: [GaugeMetricFamily("one", "x" * 50_000_000, 1)])

    with socket.create_connection(("127.0.0.1", server.server_address[1])) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        wait_for(lambda: server.deadlines, "the request")
        wait_for(lambda: not server.deadlines, "the end of the connection")


@pytest.mark.exhaustive
def test_a_hundred_silent_clients_delay_a_scrape_by_less_than_its_time_out(server: MetricsServer) -> None:
    with ExitStack() as silent:
        for _ in range(100):
            silent.enter_context(socket.create_connection(("127.0.0.1", server.server_address[1])))

        assert ask(server).elapsed < timedelta(seconds=8)


def test_many_scrapers_at_once(server: MetricsServer) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: ask(server).status_code, range(64)))

    assert answers == [200] * 64

"""The server of the page of metrics, whoever connects."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import timedelta

import httpx
import pytest

from telemetry import page_server
from telemetry.page_server import MAX_CONNECTIONS, PageServer
from tests.system.harness import NO_ROOTS


def page(accept: str) -> tuple[str, bytes]:
    if accept == "fail":
        raise RuntimeError("on purpose")
    return "text/plain", f"accept={accept}\n".encode()


@pytest.fixture
def server() -> Iterator[PageServer]:
    made = PageServer(socket.create_server(("127.0.0.1", 0)), page)
    made.start()
    yield made
    made.stop()


def ask(server: PageServer, method: str = "GET", path: str = "/metrics", **headers: str) -> httpx.Response:
    url = f"http://127.0.0.1:{server.port}{path}"
    return httpx.request(method, url, headers=headers, verify=NO_ROOTS, trust_env=False, timeout=30)


def raw(server: PageServer, data: bytes) -> bytes:
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(data)
        while part := connection.recv(65536):
            received += part
    return received


def test_the_page_is_there_and_nothing_else(server: PageServer) -> None:
    answer = ask(server, accept="text/x")

    assert (answer.status_code, answer.text) == (200, "accept=text/x\n")
    assert answer.headers["content-type"] == "text/plain"
    assert answer.headers["connection"] == "close"
    assert ask(server, path="/metrics?x=1").status_code == 200
    assert (ask(server, "HEAD").status_code, ask(server, "HEAD").text) == (200, "")
    for path in ("/", "/metrics/", "/metrics/x", "/v1/sql", "/health"):
        assert ask(server, path=path).status_code == 404
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(server, method).status_code == 405
    assert raw(server, b"get /metrics HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 405 ")
    assert ask(server, "POST").headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:9090", "10.0.0.1", "[::2]:1", ""])
def test_a_page_of_a_browser_cannot_read_it_under_a_name_of_its_own(server: PageServer, host: str) -> None:
    assert ask(server, host=host).status_code == 421


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:9090", "LOCALHOST"])
def test_loopback_hosts_may(server: PageServer, host: str) -> None:
    assert ask(server, host=host).status_code == 200


def test_nonsense_and_faults_do_not_end_it(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert raw(server, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert raw(server, b"GET /metrics HTTP/2\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert raw(server, b"GET /metrics HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    assert raw(server, b"GET /metrics HTTP/1.1\r\nAccept: fail\r\n\r\n") == b""
    with suppress(ConnectionResetError):
        assert raw(server, b"x" * 20_000) == b""
    assert ask(server).status_code == 200


def test_a_machine_without_threads_delays_a_scrape(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start
    refused: list[threading.Thread] = []

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "metrics-request" and len(refused) < MAX_CONNECTIONS + 1:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(page_server, "_POLL_S", 0.01)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    for _ in range(MAX_CONNECTIONS + 1):
        with pytest.raises(httpx.TransportError):
            ask(server)

    assert ask(server).status_code == 200


def test_silent_clients_cost_seconds_and_no_more(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_server, "REQUEST_S", 0.2)
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(2 * MAX_CONNECTIONS)]
    try:
        assert ask(server).status_code == 200
        assert all(connection.recv(1) == b"" for connection in silent)
    finally:
        for connection in silent:
            connection.close()


@pytest.mark.exhaustive
def test_a_hundred_silent_clients_delay_a_scrape_by_less_than_its_time_out(server: PageServer) -> None:
    with ExitStack() as silent:
        for _ in range(100):
            silent.enter_context(socket.create_connection(("127.0.0.1", server.port)))

        assert ask(server).elapsed < timedelta(seconds=8)


def test_many_scrapers_at_once(server: PageServer) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: ask(server).status_code, range(64)))

    assert answers == [200] * 64

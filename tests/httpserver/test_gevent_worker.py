"""The worker of the web tier without an engine: connections, answers, stops and failures."""

import os
import select
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.httpserver.web_tier import Client, WebTier
from tests.system.harness import K1, PATIENCE_S, wait_for

KEY = f"X-API-Key: {K1}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, tls_files: tuple[Path, Path]) -> Iterator[WebTier]:
    with WebTier(tmp_path_factory.mktemp("secured"), tls_files=tls_files) as server:
        yield server


@pytest.fixture(params=["plain", "secured"])
def server(request: pytest.FixtureRequest) -> WebTier:
    """The plain application, without and with TLS."""
    found: WebTier = request.getfixturevalue(request.param)
    return found


def test_a_connection_takes_many_requests_and_http_10_closes_it_unless_asked_otherwise(server: WebTier) -> None:
    with server.connection() as client:
        # An expectation without a body is ignored.
        assert len({client.get("/pid", "Expect: 100-continue").body for _ in range(20)}) == 1
        client.send(b"GET /pid HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert client.reply().headers["connection"] == "keep-alive"
        client.send(b"GET /pid HTTP/1.0\r\n\r\n")
        assert client.reply().headers["connection"] == "close"
        assert client.rest() == b""


def test_an_exception_that_ends_a_greenlet_is_a_log_line(plain: WebTier) -> None:
    with plain.connection() as client:
        assert client.get("/greenlet").status == 200

    wait_for(lambda: "ERROR httpserver.gevent_worker: an exception ended a greenlet" in plain.output(), "the line")
    wait_for(lambda: "\n    ValueError: invalid literal" in plain.output(), "its traceback")


def test_bodies_arrive_that_are_asked_for_large_or_chunked(server: WebTier) -> None:
    size, chunk = 3_000_000, 1_000_000
    with server.connection() as client:
        client.send(b"POST /body HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        assert client.reply(has_body=False).status == 100
        client.send(b"hello")
        assert client.reply().body == b"5"
        client.send(b"POST /body HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size + bytes(size))
        assert client.reply().body == b"%d" % size
        client.send(b"POST /body HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        client.send(b"%x\r\n%s\r\n" % (chunk, bytes(chunk)) * 6 + b"0\r\n\r\n")
        assert client.reply().body == b"%d" % (6 * chunk)


def test_h14_pipelined_requests_are_answered_in_order_and_head_without_a_body(runtime: WebTier) -> None:
    with_key = f"GET /v1/catalogs HTTP/1.1\r\nHost: localhost\r\n{KEY}\r\n\r\n".encode()
    without = b"GET /v1/catalogs HTTP/1.1\r\nHost: localhost\r\n\r\n"

    with runtime.connection() as client:
        client.send((with_key + without) * 50)
        assert [client.reply().status for _ in range(100)] == [200, 401] * 50
        client.send(b"HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.reply(has_body=False).headers["content-length"] == "3"
        assert client.get("/health").body == b"ok\n"


@pytest.mark.exhaustive
def test_neither_pipelined_requests_nor_a_long_answer_starve_other_clients(tmp_path: Path) -> None:
    with (
        WebTier(tmp_path, settings={"workers": 1}) as server,
        server.connection() as greedy,
        server.connection() as other,
    ):
        requests = b"GET /stream?chunks=1 HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5000
        sender = threading.Thread(target=greedy.send, args=(requests,))
        sender.start()
        assert greedy.reply().status == 200
        assert other.get("/pid").status == 200
        assert server.output().count("closed") < 4500
        for _ in range(4999):
            greedy.reply()
        sender.join()

        done = threading.Event()

        def read() -> None:
            assert greedy.get("/stream?chunks=50000&size=20000").is_complete
            done.set()

        used = server.cpu_s()
        reader = threading.Thread(target=read)
        reader.start()
        wait_for(lambda: server.cpu_s() > used + 0.2 or None, "the answer to begin")
        assert other.get("/pid").status == 200
        assert not done.is_set()
        reader.join(PATIENCE_S)

    assert done.is_set()


@pytest.mark.parametrize("path", ["/cut", "/break"])
def test_a_truncated_answer_never_looks_complete(server: WebTier, path: str) -> None:
    with server.connection() as client:
        try:
            is_complete = client.get(f"{path}?chunks=3").is_complete
        except (ConnectionResetError, ssl.SSLError):
            is_complete = False
    assert not is_complete

    with server.connection() as client:
        client.send(f"GET {path}?chunks=3 HTTP/1.0\r\n\r\n".encode())
        with pytest.raises((ConnectionResetError, ssl.SSLError)):
            client.rest()


def test_if_a_worker_dies_a_complete_answer_survives_and_one_that_would_end_by_closing_is_reset(
    server: WebTier, tmp_path: Path
) -> None:
    with WebTier(tmp_path, tls_files=server.tls_files) as dying, ExitStack() as stack:
        complete, begun = (stack.enter_context(dying.connection()) for _ in range(2))
        complete.send(b"GET /stream?chunks=3&size=1000 HTTP/1.0\r\n\r\n")
        begun.send(b"GET /stream?chunks=1000000&size=10&pause=0.01 HTTP/1.0\r\n\r\n")
        assert begun.connection.recv(1)
        ended = select.poll()
        ended.register(complete.connection, select.POLLRDHUP)
        assert ended.poll(60_000), "no end of the answer"
        for worker in dying.workers():
            os.kill(worker, signal.SIGKILL)

        # Under TLS too, where closing without a close_notify would be an error.
        assert len(complete.reply().body) == 3000
        with pytest.raises((ConnectionResetError, ssl.SSLError)):
            begun.rest()


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (b"GARBAGE\r\n\r\n", 400, "malformed_request"),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", 431, "headers_too_large"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", 414, "uri_too_long"),
        (b"GET / HTTP/1.1\r\nExpect: wonders\r\n\r\n", 417, "expectation_failed"),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: smoke\r\n\r\n", 501, "unsupported_transfer_coding"),
        (b"GET /fail HTTP/1.1\r\nHost: localhost\r\n\r\n", 500, "internal_error"),
    ],
)
def test_server_refusals_have_problem_bodies(server: WebTier, request_bytes: bytes, status: int, code: str) -> None:
    with server.connection() as client:
        client.send(request_bytes)
        answer = client.reply()
        assert client.rest() == b""

    assert (answer.status, answer.code, answer.headers["connection"]) == (status, code, "close")
    assert b"a" * 33 not in answer.body  # a request id may hold 32
    line = f"status={status} code={code} request_id={answer.headers['x-request-id']}"
    assert f"sqlapi.access: request refused by the server peer=127.0.0.1 method=- route=- {line}\n" in server.output()


def test_an_unread_body_is_skipped_unless_it_is_malformed_or_the_connection_closes(server: WebTier) -> None:
    with server.connection() as client:
        client.send(b"POST /pid HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30000\r\n\r\n" + bytes(30_000))
        assert client.reply().status == 200
        client.send(b"POST /pid HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
        assert client.reply().status == 200
        assert client.rest() == b""

    with server.connection() as client:
        client.send(b"POST /close HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000\r\n\r\n" + bytes(2_000_000))
        answer = client.reply()
        assert client.rest() == b""
    assert (answer.headers["connection"], answer.body) == ("close", b"closing")


@pytest.mark.exhaustive
def test_l10_a_slow_reader_costs_no_memory(server: WebTier) -> None:
    chunks, size = 3000, 65536
    with server.connection() as client:
        client.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        before = server.worker_memory_mb()
        client.send(b"GET /stream?chunks=%d&size=%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % (chunks, size))
        wait_for(lambda: client.connection.recv(1, socket.MSG_PEEK) if not server.tls_files else True, "the answer")
        while_it_waits = server.worker_memory_mb()
        answer = client.reply()
        after = server.worker_memory_mb()

    assert answer.is_complete
    assert len(answer.body) == chunks * size
    assert max(while_it_waits, after) - before < 30


def test_a_disconnect_during_an_answer_ends_it(plain: WebTier) -> None:
    before = plain.output().count("closed")
    with plain.connection() as client:
        client.send(b"GET /stream?chunks=1000000&pause=0.01 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.connection.recv(1000).startswith(b"HTTP/1.1 200")

    wait_for(lambda: plain.output().count("closed") > before, "the answer to be closed")


@pytest.mark.parametrize("half", [False, True], ids=["closed", "half-closed"])
def test_a_disconnect_before_the_answer_is_detected(server: WebTier, *, half: bool) -> None:
    before = server.output().count("gone")
    with server.connection() as client:
        client.send(f"GET /watch?s={PATIENCE_S} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        time.sleep(0.3)  # The client is idle for a moment; nothing depends on the duration.
        if half:
            with socket.socket(fileno=os.dup(client.connection.fileno())) as twin:
                twin.shutdown(socket.SHUT_WR)
            wait_for(lambda: server.output().count("gone") > before, "the server to notice")

    wait_for(lambda: server.output().count("gone") > before, "the server to notice")


def test_plain_http_on_the_tls_port_logs_one_line(secured: WebTier) -> None:
    before = secured.output()
    with socket.create_connection(("127.0.0.1", secured.port), timeout=PATIENCE_S) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with suppress(ConnectionResetError):
            assert not connection.recv(1000).startswith(b"HTTP")

    wait_for(lambda: "a TLS connection failed" in secured.output()[len(before) :], "the line")
    assert "Traceback" not in secured.output()[len(before) :]
    with secured.connection() as client:
        assert client.get("/pid").status == 200


def test_a_full_worker_closes_the_longest_idle_connection(tmp_path: Path) -> None:
    settings = {"workers": 1, "worker_connections": 4}
    with WebTier(tmp_path, settings=settings, http={"keep_alive": "1h"}) as server, ExitStack() as stack:
        clients = [stack.enter_context(server.connection()) for _ in range(4)]
        for client in clients:
            assert client.get("/pid").status == 200
        fifth = stack.enter_context(server.connection())
        assert fifth.get("/pid").status == 200
        assert clients[0].rest() == b""  # long before `keep_alive` is over
        assert [client.get("/pid").status for client in clients[1:]] == [200] * 3


def test_a_reload_changes_how_long_idle_connections_are_kept(tmp_path: Path) -> None:
    with WebTier(tmp_path, settings={"workers": 1}, http={"keep_alive": "1h"}) as server, ExitStack() as stack:
        clients = [stack.enter_context(server.connection())]
        assert clients[0].get("/reload?keep_alive_s=0.1").status == 200

        def closes_one() -> bool:
            clients.append(stack.enter_context(server.connection()))
            assert clients[-1].get("/pid").status == 200
            return bool(select.select([client.connection for client in clients], [], [], 0.2)[0])

        wait_for(closes_one, "the end of an idle connection")
        assert clients[-1].rest() == b""


def test_a_full_worker_ends_the_request_that_has_waited_longest_for_its_client(tmp_path: Path) -> None:
    body = b"POST /body HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
    begun = {
        "a chunk": (body + b"Transfer-Encoding: chunked\r\n\r\n", b"9\r\nSEL"),
        "a body": (body + b"Content-Length: 9\r\n\r\n", b""),
        "a head": (b"", b"GET /pid HTTP/1.1\r\nHost: local"),
    }
    settings = {"workers": 1, "worker_connections": 4, "worker_class": "tests.httpserver.web_server.PatientWorker"}
    with WebTier(tmp_path, settings=settings) as server, ExitStack() as stack:
        idle, *slow = (stack.enter_context(server.connection()) for _ in range(4))
        for client, (head, rest) in zip(slow, begun.values(), strict=True):
            # Once the first request is answered, the connection is served; the next one is never complete.
            assert client.get("/pid").status == 200
            client.send(head)
            assert not head or client.reply(has_body=False).status == 100
            client.send(rest)
            # The second answer comes after the worker has read what was there before the first one.
            assert [idle.get("/pid").status for _ in range(2)] == [200, 200]

        others: list[Client] = []
        for number, ended in enumerate((idle, *slow)):
            others.append(stack.enter_context(server.connection()))
            others[-1].send(b"GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = ended.rest()
            assert (b"request_timeout" in answer) is (ended is not idle), answer
            wait_for(lambda: server.output().count("holding") == len(others), "room for another")
            assert select.select([client.connection for client in slow[number:]], [], [], 0)[0] == []
        server.release()
    assert "Traceback" not in server.output()


def test_requests_under_way_are_not_ended_to_make_room(tmp_path: Path) -> None:
    with WebTier(tmp_path, settings={"workers": 1, "worker_connections": 2}) as server, ExitStack() as stack:
        busy, slow = (stack.enter_context(server.connection()) for _ in range(2))
        busy.send(b"GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_for(lambda: "holding" in server.output(), "the request")
        slow.send(b"POST /body HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nSEL")
        with server.connection() as another:
            assert another.get("/pid").status == 200

        server.release()

        assert busy.reply().body == b"released"


def test_a_low_descriptor_limit_still_serves_many_clients(tmp_path: Path) -> None:
    with WebTier(tmp_path, settings={"workers": 1}, max_descriptors=64) as server, ExitStack() as stack:
        idle = [stack.enter_context(server.connection()) for _ in range(100)]
        began, used = time.monotonic(), server.cpu_s()
        for _ in range(20):
            with server.connection() as client:
                assert client.get("/pid").status == 200
        assert server.cpu_s() - used < max(1.0, 0.2 * (time.monotonic() - began))
        assert idle[0].rest() == b""
        assert idle[-1].get("/pid").status == 200
    assert "Traceback" not in server.output()


@pytest.mark.exhaustive
def test_running_out_of_descriptors_uses_no_cpu(tmp_path: Path) -> None:
    """With fewer descriptors than connection slots, accepting fails until clients disconnect."""
    settings = {"workers": 1, "worker_connections": 100}
    with WebTier(tmp_path, settings=settings, max_descriptors=64) as server, ExitStack() as stack:

        def is_full() -> bool:
            return "connections cannot be accepted" in server.output()

        busy: list[Client] = []
        while len(busy) < 60:
            busy.append(stack.enter_context(server.connection()))
            busy[-1].send(b"GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\n")
            # Requests under way are never aborted to make room, but a connection without one would be.
            wait_for(lambda: server.output().count("holding") == len(busy) or is_full(), "the request")
        wait_for(is_full, "the warning")
        used, began = server.cpu_s(), time.monotonic()
        time.sleep(1)  # Meanwhile the worker can only retry.
        assert server.cpu_s() - used < 0.3 * (time.monotonic() - began)
        server.release()
        assert [client.reply().status for client in busy] == [200] * 60
    assert server.output().count("connections cannot be accepted") <= 3
    assert "Traceback" not in server.output()


def test_a_worker_survives_a_failed_accept_and_is_replaced_when_it_dies(tmp_path: Path) -> None:
    settings = {"workers": 1, "worker_class": "tests.httpserver.web_server.StumblingWorker"}
    with WebTier(tmp_path, settings=settings) as server:
        (first,) = server.workers()
        with server.connection() as client:
            assert int(client.get("/pid").body) == first
        assert "a connection could not be accepted: LookupError('an unexpected error')" in server.output()
        os.kill(first, signal.SIGKILL)

        wait_for(lambda: [pid for pid in server.workers() if pid != first], "another worker")
        with server.connection() as client:
            assert int(client.get("/pid").body) != first


def test_a_stop_waits_for_requests_but_not_for_idle_connections(server: WebTier, tmp_path: Path) -> None:
    with WebTier(tmp_path, tls_files=server.tls_files) as stopped, ExitStack() as stack:
        kept, silent, halfway, slow, pipelined = (stack.enter_context(stopped.connection()) for _ in range(5))
        assert kept.get("/pid").status == 200
        halfway.send(b"GET /pid HTTP/1.1\r\nHost: loc")
        for client in (slow, pipelined):
            client.send(b"GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\n")
        pipelined.send(b"GET /pid HTTP/1.1\r\nHost: localhost\r\n\r\n")
        handshake = stack.enter_context(socket.create_connection(("127.0.0.1", stopped.port), timeout=PATIENCE_S))
        wait_for(lambda: stopped.output().count("holding") == 2, "the slow requests to be under way")
        with stopped.connection() as last:  # Connections are accepted in order.
            assert last.get("/pid").status == 200

        stopped.process.send_signal(signal.SIGTERM)
        assert kept.rest() == b""
        assert silent.rest() == b""
        assert handshake.recv(1) in {b"", b"\x15"}  # the end, or a TLS alert before it
        assert halfway.rest() == b""
        with pytest.raises(OSError, match=r"refused|reset"), stopped.connection() as late:
            late.get("/pid")
        stopped.release()
        answer = slow.reply()
        assert (answer.body, answer.headers["connection"]) == (b"released", "close")
        assert pipelined.reply().body == b"released"
        assert pipelined.rest() == b""
        slow.close()
        assert stopped.process.wait(PATIENCE_S) == 0
    assert "cut off" not in stopped.output()
    assert "Traceback" not in stopped.output()


def test_a_stop_answers_the_request_that_an_idle_connection_sends_meanwhile(server: WebTier, tmp_path: Path) -> None:
    """A proxy reuses the connection before it learns of the stop."""
    settings = {"worker_class": "tests.httpserver.web_server.PatientWorker"}
    with (
        WebTier(tmp_path, settings=settings, tls_files=server.tls_files, shutdown_timeout="600s") as stopped,
        ExitStack() as stack,
    ):
        reused, slow = (stack.enter_context(stopped.connection()) for _ in range(2))
        assert reused.get("/pid").headers["connection"] == "keep-alive"
        slow.send(b"GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_for(lambda: "holding" in stopped.output(), "the slow request to be under way")

        stopped.process.send_signal(signal.SIGTERM)
        wait_for(lambda: refuses(stopped.port), "the stop")
        answer = reused.get("/pid")

        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert reused.rest() == b""
        stopped.release()
        assert slow.reply().body == b"released"


def refuses(port: int) -> bool:
    """Say whether nobody listens on *port*."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.exhaustive
def test_a_stop_aborts_requests_that_do_not_finish(tmp_path: Path) -> None:
    with WebTier(tmp_path, shutdown_timeout="2s") as server, ExitStack() as stack:
        held, streaming = (stack.enter_context(server.connection()) for _ in range(2))
        held.send(b"GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\n")
        streaming.send(b"GET /stream?chunks=1000000&size=10&pause=0.1 HTTP/1.0\r\n\r\n")
        assert streaming.connection.recv(1000)
        server.process.send_signal(signal.SIGTERM)

        assert held.rest() == b""
        with pytest.raises(ConnectionResetError):
            streaming.rest()
        assert server.process.wait(PATIENCE_S) == 0
    assert "requests were cut off" in server.output()
    assert "closed" in server.output()


def times_waited(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


@pytest.mark.exhaustive
def test_suspended_workers_are_not_killed_for_missing_heartbeats_but_die_with_their_arbiter(tmp_path: Path) -> None:
    with WebTier(tmp_path, settings={"timeout": 4}) as server:
        workers = server.workers()
        assert len(workers) == len(os.sched_getaffinity(0))
        everybody = [*workers, server.process.pid]
        for pid in everybody:
            os.kill(pid, signal.SIGSTOP)
        until = time.monotonic() + 4.1
        wait_for(lambda: time.monotonic() > until, "the heartbeats to be too old")
        waits = times_waited(server.process.pid)
        server.process.send_signal(signal.SIGCONT)
        wait_for(lambda: times_waited(server.process.pid) > waits + 1, "the arbiter to look")
        for pid in workers:
            os.kill(pid, signal.SIGCONT)

        with server.connection() as client:
            assert int(client.get("/pid").body) in workers
        assert server.workers() == workers

        server.stop(signal.SIGKILL)
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers) or None, "the workers' end")


@pytest.mark.exhaustive
def test_a_worker_that_is_stopped_or_blocked_is_replaced_and_the_others_answer(tmp_path: Path) -> None:
    with WebTier(tmp_path, settings={"timeout": 3, "workers": 2}) as server, ExitStack() as stack:
        stopped = server.workers()[1]
        os.kill(stopped, signal.SIGSTOP)
        while Path(f"/proc/{stopped}").exists():
            with server.connection() as client:
                assert int(client.get("/pid").body) != stopped
        wait_for(lambda: len(server.workers()) == 2, "another worker")

        blocking = stack.enter_context(server.connection())
        blocking.send(b"GET /block HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with suppress(ConnectionResetError):
            assert blocking.rest() == b""
        with server.connection() as client:
            assert client.get("/pid").status == 200
        assert server.output().count("does not respond part=web") == 2
        wait_for(lambda: len(server.workers()) == 2, "another worker")

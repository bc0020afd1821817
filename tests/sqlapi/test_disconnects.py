from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sqlapi.disconnects import DisconnectWatcher, connection_of, watch

PATIENCE_S = 20.0
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection: ours and the client's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    with client, server:
        yield server, client


def test_a_disconnect_is_reported_once(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    reports: list[float] = []
    gone = threading.Event()

    def on_gone() -> None:
        reports.append(time.monotonic())
        gone.set()

    watch = DisconnectWatcher().watch(server, on_gone)
    began = time.monotonic()
    client.close()

    assert gone.wait(PATIENCE_S)
    assert watch.gone
    assert reports[0] - began < 30
    watch.stop()
    assert len(reports) == 1


def test_a_reset_is_reported(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    gone = threading.Event()

    DisconnectWatcher().watch(server, gone.set)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    client.close()

    assert gone.wait(PATIENCE_S)


def test_a_client_that_keeps_sending_is_not_reported(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    watcher = DisconnectWatcher()
    gone, other_gone = threading.Event(), threading.Event()
    watch = watcher.watch(server, gone.set)

    client.sendall(b"the next request")
    # The end of another connection shows that the watcher has polled since.
    theirs, ours = socket.socketpair()
    watcher.watch(ours, other_gone.set)
    theirs.close()

    assert other_gone.wait(PATIENCE_S)
    assert not gone.is_set()
    assert not watch.gone
    ours.close()


def test_a_stopped_watch_reports_nothing(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    watcher = DisconnectWatcher()
    gone, other_gone = threading.Event(), threading.Event()

    watch = watcher.watch(server, gone.set)
    watch.stop()
    watch.stop()
    client.close()
    theirs, ours = socket.socketpair()
    watcher.watch(ours, other_gone.set)
    theirs.close()

    assert other_gone.wait(PATIENCE_S)
    assert not gone.is_set()
    ours.close()


def test_a_reused_descriptor_is_another_connection(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    watcher = DisconnectWatcher()
    first_gone, second_gone = threading.Event(), threading.Event()

    first = watcher.watch(server, first_gone.set)
    second = watcher.watch(server, second_gone.set)
    first.stop()
    # A late report about the first connection does not concern the second.
    first.report()
    assert not second_gone.is_set()
    client.close()

    assert second_gone.wait(PATIENCE_S)
    assert second.gone
    assert not first_gone.is_set()


def watching_threads() -> int:
    return sum(thread.name == "disconnects" for thread in threading.enumerate())


def test_one_thread_watches_many_connections() -> None:
    watcher = DisconnectWatcher()
    pairs = [socket.socketpair() for _ in range(50)]
    gone = [threading.Event() for _ in pairs]
    before = watching_threads()

    for (ours, _), event in zip(pairs, gone, strict=True):
        watcher.watch(ours, event.set)
    assert watching_threads() == before + 1
    for _, theirs in pairs[::2]:
        theirs.close()

    assert all(event.wait(PATIENCE_S) for event in gone[::2])
    assert not any(event.is_set() for event in gone[1::2])
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


def test_a_process_has_one_watcher(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    gone, other_gone = threading.Event(), threading.Event()
    theirs, ours = socket.socketpair()
    before = watching_threads()

    watch(server, gone.set)
    watch(ours, other_gone.set)
    assert watching_threads() <= before + 1
    client.close()
    theirs.close()

    assert gone.wait(PATIENCE_S)
    assert other_gone.wait(PATIENCE_S)
    ours.close()


def test_importing_creates_neither_threads_nor_locks() -> None:
    """Gevent patches them after the import; earlier ones would block its hub."""
    program = (
        "import threading; made = []\n"
        "def recording(name, real):\n"
        "    return lambda *args, **options: made.append(name) or real(*args, **options)\n"
        "for name in ('Condition', 'Lock', 'RLock', 'Event', 'Thread'):\n"
        "    setattr(threading, name, recording(name, getattr(threading, name)))\n"
        "import sqlapi.disconnects; print(made)"
    )

    ended = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)

    assert ended.stdout.strip() == "[]"


def test_without_a_connection_nothing_is_watched() -> None:
    watcher = DisconnectWatcher()
    closed = socket.socket()
    closed.close()

    for connection in (None, closed):
        watch = watcher.watch(connection, pytest.fail)
        assert not watch.gone
        watch.stop()
    assert watcher._thread is None


def test_a_connection_under_tls(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    gone = threading.Event()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with suppress(ssl.SSLError, OSError):
        secured = context.wrap_socket(server, server_side=True, do_handshake_on_connect=False)

    DisconnectWatcher().watch(secured, gone.set)
    client.close()

    assert gone.wait(PATIENCE_S)
    secured.close()


def test_the_connection_is_found_under_the_names_that_servers_use() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert connection_of({"gunicorn.socket": ours}) is ours
        assert connection_of({"runtime.socket": theirs, "gunicorn.socket": ours}) is theirs
        assert connection_of({}) is None

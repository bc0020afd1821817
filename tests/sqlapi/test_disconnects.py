import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from sqlapi.disconnects import DisconnectWatcher, watch
from tests.system.harness import run_program

PATIENCE_S = 20.0


@dataclass
class Connection:
    """Both ends of a TCP connection, ours and the client's, and the reports that the client has disconnected."""

    server: socket.socket
    client: socket.socket
    reports: list[float] = field(default_factory=list)
    gone: threading.Event = field(default_factory=threading.Event)

    def report(self) -> None:
        self.reports.append(time.monotonic())
        self.gone.set()


Connect = Callable[[], Connection]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Return a function that makes connections."""
    with ExitStack() as stack:

        def connect_one() -> Connection:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                client = stack.enter_context(socket.create_connection(listener.getsockname()))
                return Connection(stack.enter_context(listener.accept()[0]), client)

        yield connect_one


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_disconnect_is_reported_once(connect: Connect, is_reset: bool) -> None:
    one = connect()

    watch = DisconnectWatcher().watch(one.server, one.report)
    began = time.monotonic()
    if is_reset:
        one.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.client.close()

    assert one.gone.wait(PATIENCE_S)
    assert watch.gone
    assert one.reports[0] - began < 30
    watch.stop()
    assert len(one.reports) == 1


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_client_that_keeps_sending_and_a_stopped_watch_report_nothing(connect: Connect, is_stopped: bool) -> None:
    watcher, one, other = DisconnectWatcher(), connect(), connect()
    watch = watcher.watch(one.server, one.report)

    if is_stopped:
        watch.stop()
        watch.stop()
        one.client.close()
    else:
        one.client.sendall(b"the next request")
    # The end of another connection shows that the watcher has polled since.
    watcher.watch(other.server, other.report)
    other.client.close()

    assert other.gone.wait(PATIENCE_S)
    watch.stop()
    assert (one.gone.is_set(), watch.gone) == (False, False)


def test_a_reused_descriptor_is_another_connection(connect: Connect) -> None:
    watcher, one = DisconnectWatcher(), connect()
    first_gone = threading.Event()

    first, second = watcher.watch(one.server, first_gone.set), watcher.watch(one.server, one.report)
    first.stop()
    # A late report about the first connection does not concern the second.
    first.report()
    assert not one.gone.is_set()
    one.client.close()

    assert one.gone.wait(PATIENCE_S)
    assert (second.gone, first_gone.is_set()) == (True, False)


def watching_threads() -> int:
    return sum(thread.name == "disconnects" for thread in threading.enumerate())


def test_one_thread_of_a_process_watches_many_connections(connect: Connect) -> None:
    connections = [connect() for _ in range(50)]
    before = watching_threads()

    watches = [watch({"gunicorn.socket": one.server}, one.report) for one in connections]
    assert watching_threads() <= before + 1
    for one in connections[::2]:
        one.client.close()

    assert all(one.gone.wait(PATIENCE_S) for one in connections[::2])
    assert not any(one.gone.is_set() for one in connections[1::2])
    for watched in watches:
        watched.stop()


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

    assert run_program("-c", program).stdout.strip() == "[]"


def test_without_a_connection_nothing_is_watched() -> None:
    watcher = DisconnectWatcher()
    closed = socket.socket()
    closed.close()

    for connection in (None, closed):
        watch = watcher.watch(connection, pytest.fail)
        assert not watch.gone
        watch.stop()
    assert watcher._thread is None


def test_a_connection_under_tls(connect: Connect) -> None:
    one = connect()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with context.wrap_socket(one.server, server_side=True, do_handshake_on_connect=False) as secured:
        DisconnectWatcher().watch(secured, one.report)
        one.client.close()

        assert one.gone.wait(PATIENCE_S)

"""A real broker, a worker socket whose answers tests write, and clients of both."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from queryengine.engine import Query
from queryengine.pool import slot_scheduler
from queryengine.pool.broker import BROKER_SOCKET, Broker
from queryengine.pool.client import EngineClient
from queryengine.pool.client_result import ClientResult
from queryengine.pool.frames import FrameDecoder, Kind, encode, encode_data
from queryengine.pool.slots import ENGINE_SOCKET
from runtimeconf.model import QueryConfig, RuntimeConfig
from tests.queryengine.publishing import wait_until

#: A test fails after this long; a slow machine does not.
LONG_S = 30.0

HEADER = encode(Kind.HEADER, {})
END = encode(Kind.END, {"timings": {"rows": 1, "bytes": 9, "parse_ms": 0.25, "run_ms": 0.5, "encode_ms": 0.125}})


def data(payload: bytes) -> bytes:
    return b"".join(encode_data(payload))


def error(code: str, message: str = "No.", **arguments: Any) -> bytes:
    return encode(Kind.ERROR, {"code": code, "message": message, "arguments": arguments})


class Peer:
    """The worker's end of a statement's connection."""

    def __init__(self, connection: socket.socket, request: dict[str, Any]) -> None:
        self.socket = connection
        self.request = request

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(frames))

    def wait_for_stop(self) -> None:
        """Wait until the client asks for the end, or has gone."""
        with suppress(OSError):
            while self.socket.recv(4096):
                pass


Script = Callable[[Peer], None]


def one_row(peer: Peer) -> None:
    peer.send(HEADER, data(b'[{"a":1}]'), END)


def until_stopped(peer: Peer) -> None:
    peer.wait_for_stop()


def endless(peer: Peer) -> None:
    """Send a row, then nothing until the client asks to stop."""
    peer.send(HEADER, data(b"first"))
    peer.wait_for_stop()
    peer.send(error("query_cancelled"))


def stubborn(peer: Peer) -> None:
    """Answer nothing and ignore the request to stop."""
    peer.wait_for_stop()
    threading.Event().wait(LONG_S)


class ScriptedEngine:
    """Answers each statement in `scripts` by its function, in a thread of its own."""

    def __init__(self, state_dir: Path, limits: QueryConfig, processors: int = 8) -> None:
        self.scripts: dict[str, Script] = {
            "SELECT 1": one_row,
            "endless": endless,
            "wait": until_stopped,
            "stubborn": stubborn,
        }
        self.requests: list[dict[str, Any]] = []
        self.connections = 0
        self.keeps = False  # whether a connection may bring another statement
        self.killed: list[str] = []
        self.alive = limits.workers
        self.reports = True
        self._calls: list[Callable[[], None]] = []
        self._listener = socket.socket(socket.AF_UNIX)
        path = state_dir / ENGINE_SOCKET
        path.unlink(missing_ok=True)
        self._listener.bind(str(path))
        self._listener.listen(64)
        with patch.object(slot_scheduler, "PROCESSORS", processors):
            self.broker = Broker(state_dir / BROKER_SOCKET, limits, several_keys=True, kill=self.killed.append)
        self._ends = threading.Event()
        self._threads = [
            threading.Thread(target=self._poll, daemon=True),
            threading.Thread(target=self._accept, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def call(self, function: Callable[[], None]) -> None:
        """Call a function of the broker in its thread, and wait for that."""
        done = threading.Event()
        self._calls += [function, done.set]
        assert done.wait(30)

    def close(self) -> None:
        """End abruptly, as by a kill."""
        self._ends.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()
        self.broker.close()

    def _poll(self) -> None:
        while not self._ends.is_set():
            if self.reports:
                self.broker.report(alive=self.alive, killed=3)
            self.broker.poll(0.01)
            while self._calls:
                self._calls.pop(0)()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        decoder = FrameDecoder()
        with connection, suppress(OSError):
            while received := connection.recv(65536):
                for _, payload in decoder.feed(received):
                    sent = json.loads(payload)
                    request = {**sent.pop("query"), **sent}
                    self.requests.append(request)
                    self.scripts[request["sql"]](Peer(connection, request))
                    if not self.keeps:
                        return


class Tier:
    """A scripted engine in a state directory, which can be restarted, and clients of it."""

    def __init__(self, state_dir: Path, *, keeps: bool = False, processors: int = 8, **limits: Any) -> None:
        self.config = RuntimeConfig(
            file=state_dir / "runtime.yaml",
            state_dir=state_dir,
            query=QueryConfig(**{"workers": 2, "max_queued": 8, "queue_timeout_s": LONG_S, **limits}),
        )
        self.clients: list[EngineClient] = []
        self._processors = processors
        self._keeps = keeps
        self.start()

    def start(self) -> None:
        self.engine = ScriptedEngine(self.config.state_dir, self.config.query, self._processors)
        self.engine.keeps = self._keeps

    def client(self) -> EngineClient:
        made = EngineClient(self.config)
        self.clients.append(made)
        wait_until(made.is_alive)
        return made

    def restart(self) -> None:
        self.engine.close()
        self.start()

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Block the broker for the length of the block."""
        begun, go_on = threading.Event(), threading.Event()

        def stall() -> None:
            begun.set()
            go_on.wait(LONG_S)

        stalls = threading.Thread(target=self.engine.call, args=[stall])
        stalls.start()
        assert begun.wait(LONG_S)
        try:
            yield
        finally:
            go_on.set()
            stalls.join()

    def close(self) -> None:
        for made in self.clients:
            made.close()
        self.engine.close()

    def wait_until_idle(self) -> None:
        wait_until(lambda: self.engine.broker.is_idle)


MakeTier = Callable[..., Tier]


def run(engine: EngineClient, sql: str, **query: Any) -> ClientResult:
    return engine.run(Query(sql=sql, **query))

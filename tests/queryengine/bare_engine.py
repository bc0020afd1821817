"""Engine workers under gunicorn's own arbiter, in a process of their own: the program, and its control by tests."""

import json
import logging.config
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter

import queryengine.pool.worker
import runtimeconf.state
from queryengine.pool import gunicorn_worker
from queryengine.pool.frames import FrameDecoder, Kind, encode
from queryengine.pool.slots import ENGINE_SOCKET
from runtime_site.logs import logging_config
from runtimeconf.model import RuntimeConfig
from tests.queryengine.engine_process import config_of
from tests.queryengine.heartbeats import state_of
from tests.queryengine.publishing import wait_until

#: The grace period of a stopped statement before its worker dies; long, for slow machines.
GRACE_S = 20.0


class Application(BaseApplication):  # type: ignore[misc]  # gunicorn has no annotations
    def __init__(self, config: RuntimeConfig) -> None:
        self._config = config
        super().__init__()

    def load_config(self) -> None:
        for name, value in gunicorn_worker.options(self._config).items():
            self.cfg.set(name, value)


def main(state_dir: str, query: str, constants: str) -> None:
    logging.config.dictConfig(logging_config(os.environ))
    for name, value in json.loads(constants).items():
        setattr(queryengine.pool.worker, name, value)
    config = config_of(Path(state_dir), **json.loads(query))
    runtimeconf.state.set_config(config)
    Arbiter(Application(config)).run()


@dataclass
class Answer:
    """The answer on one connection."""

    data: bytes = b""
    end: dict[str, Any] | None = None
    error: dict[str, Any] | None = None

    @property
    def is_cut(self) -> bool:
        return self.end is None and self.error is None

    @property
    def code(self) -> str:
        return "" if self.error is None else str(self.error["code"])


@dataclass
class Engine:
    """A running arbiter."""

    process: subprocess.Popen[bytes]
    state_dir: Path
    timeout_s: float

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(60)
        try:
            connection.connect(str(self.state_dir / ENGINE_SOCKET))
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def listens(self) -> bool:
        try:
            self.connect().close()
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True

    def send(self, sql: str, **fields: Any) -> socket.socket:
        connection = self.connect()
        # A worker that stops reading has sent the reason before.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(request(sql, **{"timeout_s": self.timeout_s, **fields}))
        return connection

    def ask(self, sql: str, **fields: Any) -> Answer:
        with self.send(sql, **fields) as connection:
            return receive(connection)

    def workers(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in children.read_text().split()]

    def worker(self) -> int:
        """Wait until the only worker is idle; return its process id."""
        until = time.monotonic() + 60
        while not (workers := self.workers()) or state_of(workers[0]).phase not in ("idle", "unfit"):
            assert time.monotonic() < until
            time.sleep(0.01)
        return workers[0]


def request(sql: str, call: str = "run", relations: Sequence[str] = (), **query: Any) -> bytes:
    query = {"sql": sql, "timeout_s": 30.0, "query_id": "q", **query}
    return encode(Kind.REQUEST, {"call": call, "query": query, "relations": relations})


def still_works(engine: Engine) -> None:
    assert engine.ask("SELECT count(*) AS n FROM flights").data == b'[{"n":1000}]'


def receive(connection: socket.socket) -> Answer:
    answer = Answer()
    decoder = FrameDecoder()
    parts: list[bytes] = []
    while not answer.end and not answer.error:
        try:
            data = connection.recv(65536)
        except ConnectionResetError:
            data = b""
        if not data:
            break
        for kind, payload in decoder.feed(data):
            if kind is Kind.DATA:
                parts.append(payload)
            elif kind is Kind.END:
                answer.end = json.loads(payload)
            elif kind is Kind.ERROR:
                answer.error = json.loads(payload)
    answer.data = b"".join(parts)
    return answer


@contextmanager
def running(
    state_dir: Path,
    *,
    environment: dict[str, str] | None = None,
    constants: dict[str, Any] | None = None,
    inherited: Sequence[int] = (),
    program: str = __name__,
    **query: Any,
) -> Iterator[Engine]:
    """
    Run an engine over what *state_dir* publishes, until the block ends.

    *environment* is added to that of the tests; *constants* replace those in `queryengine.pool.worker`;
    *inherited* are descriptors that the arbiter gets; *program* is a module that calls `main`.
    """
    query = {"timeout_s": 30.0, "workers": 1, "memory_limit_bytes": 256 * 1024 * 1024, **query}
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", program),
            *(str(state_dir), json.dumps(query), json.dumps({"GRACE_S": GRACE_S} | (constants or {}))),
        ],
        env=os.environ | (environment or {}),
        cwd=Path(__file__).parents[2],
        pass_fds=inherited,
    )
    engine = Engine(process, state_dir, query["timeout_s"])
    try:
        wait_until(lambda: engine.listens or process.poll() is not None)
        assert process.poll() is None
        yield engine
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])

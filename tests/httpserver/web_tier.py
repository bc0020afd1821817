"""Start `tests.httpserver.web_server` and talk to it over real sockets."""

import json
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import yaml

from benchmarks.processes import cpu_s
from tests.system.harness import K1, K2, PATIENCE_S, PYTHON, Program, free_port, wait_for
from tests.system.processes import memory_bytes


@dataclass
class WebTier(Program):
    """The web tier without an engine. Use it as a context manager."""

    directory: Path
    application: Literal["runtime", "plain"] = "plain"
    settings: dict[str, Any] = field(default_factory=dict)
    http: dict[str, Any] = field(default_factory=dict)
    tls_files: tuple[Path, Path] | None = None  # certificate, key
    max_descriptors: int | None = None
    shutdown_timeout: str = "30s"
    port: int = field(default_factory=free_port)

    def __enter__(self) -> Self:
        runtime: dict[str, Any] = {
            "auth": {"api-key": {"enabled": True, "keys": [K1, K2]}},
            "http": {"bind": f"127.0.0.1:{self.port}", **self.http},
            "shutdown_timeout": self.shutdown_timeout,
        }
        if self.tls_files is not None:
            certificate, key = self.tls_files
            runtime["tls"] = {"enabled": True, "certificate_file": str(certificate), "key_file": str(key)}
        file = self.directory / "runtime.yaml"
        file.write_text(yaml.safe_dump({"version": "v1", "kind": "Spicepod", "name": "test", "runtime": runtime}))
        file.chmod(0o600)
        self.log = self.directory / "server.log"
        command = [PYTHON, "-m", "tests.httpserver.web_server", self.application, json.dumps(self.settings)]
        self.run(["sh", "-c", f'{self._limit} exec "$@"', "sh", *command], {**os.environ, "RUNTIME_CONFIG": str(file)})
        wait_for(self._answers, "the web tier to answer")
        # The arbiter pauses between two forks.
        wanted = self.settings.get("workers", len(os.sched_getaffinity(0)))
        wait_for(lambda: len(self.workers()) >= wanted, f"{wanted} workers")
        return self

    @property
    def _limit(self) -> str:
        return "" if self.max_descriptors is None else f"ulimit -n {self.max_descriptors};"

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.output()
        try:
            with self.connection() as client:
                return client.get("/health").status in {200, 401}
        except OSError:
            return False

    def release(self) -> None:
        """Let "/hold" answer."""
        (self.directory / "released").touch()

    def workers(self) -> list[int]:
        """Return the process ids of the workers that run."""
        pid = self.process.pid
        return [int(name) for name in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def worker_memory_mb(self) -> float:
        """Return the sum of the workers' resident memory, in MB."""
        return sum(memory_bytes(pid, "VmRSS") for pid in self.workers()) / 1024**2

    def cpu_s(self) -> float:
        """Return the CPU time that the workers have used, in seconds."""
        return sum(cpu_s(pid) for pid in self.workers())

    @contextmanager
    def connection(self) -> "Iterator[Client]":
        """A connection to the server."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as plain:
            if self.tls_files is None:
                with closing(Client(plain)) as client:
                    yield client
                return
            context = ssl.create_default_context(cafile=self.tls_files[0])
            # Otherwise Python treats a reset as the end of the connection.
            secured = context.wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=False)
            with secured, closing(Client(secured)) as client:
                yield client


@dataclass
class Reply:
    """One answer: `headers` by lower-case name; `is_complete` according to its framing."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_complete: bool = True

    @property
    def code(self) -> str:
        assert self.headers["content-type"] == "application/problem+json"
        return str(json.loads(self.body)["code"])


class Client:
    """A client that sees the bytes on the wire."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._file = connection.makefile("rb")

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def get(self, path: str, *headers: str) -> Reply:
        self.send("\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode())
        return self.reply()

    def close(self) -> None:
        self._file.close()
        self.connection.close()

    def rest(self) -> bytes:
        """Return everything until the server closes the connection."""
        return self._file.read()

    def reply(self, *, has_body: bool = True) -> Reply:
        """Read one answer according to its framing; it is incomplete if the connection ends early."""
        status = int(self._file.readline().split(b" ")[1])
        headers = {}
        while line := self._file.readline().decode("latin-1").strip():
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        if not has_body:
            return Reply(status, headers, b"")
        if "content-length" in headers:
            length = int(headers["content-length"])
            body = self._file.read(length)
            return Reply(status, headers, body, len(body) == length)
        if headers.get("transfer-encoding") == "chunked":
            return self._chunked(status, headers)
        return Reply(status, headers, self._file.read())

    def _chunked(self, status: int, headers: dict[str, str]) -> Reply:
        parts = []
        while (line := self._file.readline()).endswith(b"\r\n"):
            size = int(line, 16)
            parts.append(self._file.read(size))
            if self._file.readline() != b"\r\n":
                break
            if size == 0:
                return Reply(status, headers, b"".join(parts))
        return Reply(status, headers, b"".join(parts), is_complete=False)

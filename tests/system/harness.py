"""Start a whole runtime as a user would, in any of its three server modes, and talk to it over real sockets."""

import itertools
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import duckdb
import httpx
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
PYTHON = sys.executable
K1 = "k1-Zq8vT3mN6bX9cL2pR5sW7yD0fG4hJ1aE"
K2 = "k2-Hn5tB8xQ1zV4kM7wC0rL3uP6jS9dF2gY"
WRONG = K1[:-1] + "F"

_T = TypeVar("_T")
Mode = Literal["serve", "gunicorn", "runserver"]
MODES: tuple[Mode, ...] = ("serve", "gunicorn", "runserver")

#: Seconds that a condition may take on two slow shared cores.
PATIENCE_S = 60.0

#: Trusts nobody. Without it, httpx reads every root certificate of the machine anew for each request: 27 ms of CPU.
NO_ROOTS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def wait_for(condition: Callable[[], _T | None], what: str, patience_s: float = PATIENCE_S) -> _T:
    """Return the first true value of *condition*."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {patience_s:g} s for {what}")


#: Below what the system gives to clients: none of their connections can take a port before its server has bound it.
_PORTS = range(10_000, 32_000)
#: Each process of tests begins elsewhere and goes round, so that no port is given out twice.
_next_ports = itertools.cycle(_PORTS)
next(itertools.islice(_next_ports, os.getpid() * 613 % len(_PORTS), None))


def free_port() -> int:
    """Return a port that is free, and was not given out by this process before."""
    for port in itertools.islice(_next_ports, len(_PORTS)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


@contextmanager
def taken_port() -> Iterator[int]:
    """A port that this process listens on."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield int(holder.getsockname()[1])


def clean_environ(**more: str) -> dict[str, str]:
    """Return the environment without what configures a runtime, and with *more*."""
    ours = ("RUNTIME_", "DJANGO_", "PYTHONWARNINGS")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | more


def run_program(
    *arguments: str, cwd: Path = REPOSITORY, stdin: str | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with *arguments* to its end, and return its exit code and what it printed."""
    return subprocess.run(
        [PYTHON, *arguments], cwd=cwd, env=clean_environ(**environ), input=stdin, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


def write_orders(path: Path, rows: int = 1000, offset: int = 0) -> None:
    """Write a Parquet file with columns id, name, amount, placed_at; `sum(id)` tells the version."""
    with duckdb.connect() as connection:
        connection.execute(
            f"""COPY (SELECT i + {offset} AS id, 'name ' || i AS name, (i / 8)::DECIMAL(12,3) AS amount,
            TIMESTAMP '2024-01-01' + to_seconds(i) AS placed_at FROM range({rows}) t(i))
            TO '{path}.new' (FORMAT parquet)"""
        )
    Path(f"{path}.new").replace(path)


def example_config(port: int, **changes: Any) -> dict[str, Any]:
    """Return a configuration with two keys, one dataset `orders` and one view; *changes* replace sections."""
    config: dict[str, Any] = {
        "version": "v1",
        "kind": "Spicepod",
        "name": "test",
        "runtime": {
            "auth": {"api-key": {"enabled": True, "keys": [K1, K2]}},
            "http": {"bind": f"127.0.0.1:{port}"},
            "flight": {"bind": f"127.0.0.1:{free_port()}"},
        },
        "datasets": [
            {"from": "file:orders.parquet", "name": "orders", "acceleration": {"enabled": True, "refresh_mode": "full"}}
        ],
        "views": [{"name": "big_orders", "sql": "SELECT * FROM orders WHERE amount > 100"}],
    }
    runtime = changes.pop("runtime", {})
    config["runtime"].update(runtime)
    config.update(changes)
    return config


def command(mode: Mode) -> list[str]:
    """Return the command line of a server mode."""
    if mode == "gunicorn":
        return [PYTHON, "-m", "gunicorn", "runtime_site.wsgi"]
    if mode == "runserver":
        return [PYTHON, "manage.py", "runserver", "--noreload"]
    return [PYTHON, "manage.py", "serve"]


@dataclass
class Server:
    """One runtime in a folder of its own. Use it as a context manager."""

    directory: Path
    mode: Mode = "serve"
    config: Mapping[str, Any] | None = None
    text: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)  # of the example configuration
    environ: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    wait_ready: bool = True
    trust: Path | None = None  # a certificate: the runtime speaks TLS
    arguments: tuple[str, ...] = ()
    host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        self.file = self.directory / "runtime.yaml"
        self.log = self.directory / "server.log"
        self.url = f"https://localhost:{self.port}" if self.trust else f"http://{self.host}:{self.port}"
        self._verify = ssl.create_default_context(cafile=self.trust) if self.trust else NO_ROOTS
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def write(self) -> None:
        """Write the YAML and, unless it is there, the data."""
        if not (self.directory / "orders.parquet").exists():
            write_orders(self.directory / "orders.parquet")
        if self.text is None:
            config = example_config(self.port, **self.changes) if self.config is None else self.config
            self.file.write_text(yaml.safe_dump(dict(config), sort_keys=False))
            self.file.chmod(0o600)
        else:
            self.file.write_text(self.text)

    def launch(self) -> None:
        """Start the process and return at once."""
        environ = clean_environ(**{"RUNTIME_CONFIG": str(self.file), **self.environ})
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command(self.mode), *self.arguments], cwd=REPOSITORY, env=environ, stdout=log, stderr=log
            )

    def start(self) -> None:
        """Start and wait until the port answers, and the data is loaded if `wait_ready`."""
        self.write()
        self.launch()
        wait_for(self._answers, f"{self.mode} to answer: {self.output()}")
        if self.wait_ready:
            wait_for(lambda: self.get("/v1/ready").status_code == 200, f"{self.mode} to be ready")

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.output()
        try:
            return self.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    def output(self) -> str:
        """Return everything that the process printed."""
        return self.log.read_text() if self.log.exists() else ""

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Stop the process and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self.stop()

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send one request over a connection of its own."""
        settings = {"timeout": PATIENCE_S, "trust_env": False, "verify": self._verify, **options}
        return httpx.request(method, self.url + path, **settings)

    def get(self, path: str, **options: Any) -> httpx.Response:
        """GET *path*."""
        return self.request("GET", path, **options)

    def sql(self, statement: str | bytes, key: str | None = K1, **headers: str) -> httpx.Response:
        """POST a statement."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            sent["X-API-Key"] = key
        content = statement.encode() if isinstance(statement, str) else statement
        return self.request("POST", "/v1/sql", content=content, headers=sent)

    def rows(self, statement: str, key: str | None = K1) -> Any:
        """Return the rows of a statement that works."""
        answer = self.sql(statement, key)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def raw(self, data: bytes, patience_s: float = PATIENCE_S) -> bytes:
        """Send bytes and return everything that comes back until the server closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=patience_s) as connection:
            connection.sendall(data)
            received = b""
            while True:
                try:
                    part = connection.recv(65536)
                except ConnectionResetError:
                    return received
                if not part:
                    return received
                received += part

    def refuses_to_start(self) -> tuple[int, str]:
        """Start, expect the end of the process, and return its exit code and what it printed."""
        self.write()
        self.launch()
        code = self.process.wait(PATIENCE_S)
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", self.port)) != 0, "a port is bound"
        return code, self.output()


def raw_request(
    method: str, path: str, headers: list[tuple[str, str | bytes]], body: bytes = b"", *, length: bool = True
) -> bytes:
    """Return the bytes of one request that asks for the connection to be closed after the answer."""
    lines = [f"{method} {path} HTTP/1.1".encode("latin-1"), b"Connection: close"]
    if not any(name.lower() == "host" for name, _ in headers):
        lines.append(b"Host: localhost")
    for name, value in headers:
        lines.append(name.encode("latin-1") + b": " + (value if isinstance(value, bytes) else value.encode("latin-1")))
    if length and body:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def status_of(answer: bytes) -> int:
    """Return the status of a raw answer; 0 when the server closed without one."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.") else 0

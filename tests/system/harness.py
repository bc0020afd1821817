"""Start a whole runtime as a user would, in any of its three server modes, and talk to it over real sockets."""

import itertools
import os
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
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
KEYED = {"X-API-Key": K1}

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


def write_program(environment: Path) -> Path:
    """Write the program `querykeep` of a clone, as `make install` does, into an *environment* that is not there yet."""
    python = environment / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(PYTHON)} "$@"\n')
    python.chmod(0o755)
    relative = os.path.relpath(environment, REPOSITORY)
    command = ["make", "--silent", "-C", str(REPOSITORY), f"VENV={relative}", f"{relative}/bin/querykeep"]
    subprocess.run(command, env=clean_environ(), check=True)
    return python.with_name("querykeep")


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


class Program:
    """A server in a process of its own, which prints to the file `log`. The end of the context stops it."""

    log: Path
    process: subprocess.Popen[bytes]

    def run(self, command: Sequence[str], environ: Mapping[str, str], descriptors: Sequence[int] = ()) -> None:
        """Start the process, which inherits *descriptors*, and return at once."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=REPOSITORY, env=environ, stdout=log, stderr=log, pass_fds=descriptors
            )

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

    def __exit__(self, *error: object) -> None:
        self.stop()


@dataclass
class Server(Program):
    """One runtime in a folder of its own. Use it as a context manager."""

    directory: Path
    mode: Mode = "serve"
    text: str | None = None  # of the YAML; without it, the example configuration
    changes: Mapping[str, Any] = field(default_factory=dict)  # of the example configuration
    environ: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    wait_ready: bool = True
    trust: Path | None = None  # a certificate: the runtime speaks TLS
    arguments: tuple[str, ...] = ()
    redirection: str = ""  # of its streams, as bash has it
    host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        self.file = self.directory / "runtime.yaml"
        self.log = self.directory / "server.log"
        self.url = f"https://localhost:{self.port}" if self.trust else f"http://{self.host}:{self.port}"
        self._verify = ssl.create_default_context(cafile=self.trust) if self.trust else NO_ROOTS

    def write(self) -> None:
        """Write the YAML and, unless it is there, the data."""
        if not (self.directory / "orders.parquet").exists():
            write_orders(self.directory / "orders.parquet")
        self.file.write_text(self.text or yaml.safe_dump(example_config(self.port, **self.changes), sort_keys=False))
        self.file.chmod(0o600)

    def launch(self) -> None:
        """Start the process and return at once."""
        environ = clean_environ(**{"RUNTIME_CONFIG": str(self.file), **self.environ})
        shell = ["bash", "-c", f'exec "$@" {self.redirection}', "bash"] if self.redirection else []
        self.run([*shell, *command(self.mode), *self.arguments], environ)

    def __enter__(self) -> Self:
        """Start and wait until the port answers, and until the data is loaded or, without `wait_ready`, listed."""
        self.write()
        self.launch()
        try:
            self.wait_until_up("/health")
            if self.wait_ready:
                self.wait_until_up()
            else:  # The process that lists the datasets may start after the one that answers, whatever it answers.
                wait_for(lambda: self.get("/v1/datasets", headers=KEYED).status_code != 503, "the datasets")
        except BaseException:  # There is no exit from a context that was not entered.
            self.stop(signal.SIGKILL)
            raise
        return self

    def wait_until_up(self, path: str = "/v1/ready") -> None:
        """Wait until the process that was launched answers *path* with 200."""

        def is_up() -> bool:
            assert self.process.poll() is None, self.output()
            return self.answers(path)

        wait_for(is_up, f"{self.mode} to answer {path}")

    def answers(self, path: str = "/v1/ready") -> bool:
        """Say whether *path* is answered with 200."""
        try:
            return self.get(path).status_code == 200
        except httpx.TransportError:
            return False

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send one request over a connection of its own."""
        settings = {"timeout": PATIENCE_S, "trust_env": False, "verify": self._verify, **options}
        return httpx.request(method, self.url + path, **settings)

    def get(self, path: str, **options: Any) -> httpx.Response:
        """GET *path*."""
        return self.request("GET", path, **options)

    def listed(self, path: str, key: str = K1) -> Any:
        """Return the JSON of a path that the key opens."""
        answer = self.get(path, headers={"X-API-Key": key})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def active(self, key: str = K1) -> list[dict[str, str]]:
        """Return the statements that the key has under way."""
        return list(self.listed("/v1/sql/active", key))

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

    def outcome(self, request_id: str) -> str:
        """Return how the statement of a request ended, by the log; nothing if it has not."""
        lines = [line for line in self.output().splitlines() if request_id in line and "sqlapi.queries" in line]
        return lines[0].partition("outcome=")[2].partition(" ")[0] if lines else ""

    def stream(self, statement: str) -> AbstractContextManager[httpx.Response]:
        """POST a statement, and return its answer before it is read."""
        return httpx.stream(
            "POST", f"{self.url}/v1/sql", content=statement, headers=KEYED,
            timeout=PATIENCE_S, trust_env=False, verify=self._verify,
        )  # fmt: skip

    def ask_refresh(self, name: str = "orders", **body: Any) -> httpx.Response:
        """Ask for a refresh of a dataset."""
        return self.request("POST", f"/v1/datasets/{name}/acceleration/refresh", headers=KEYED, json=body)

    def refreshes(self, name: str = "orders") -> list[dict[str, Any]]:
        """Return the refreshes of a dataset, newest first."""
        return list(self.listed(f"/v1/datasets/{name}/acceleration/refresh"))

    def refresh(self, name: str = "orders") -> dict[str, Any]:
        """Refresh a dataset and return the run as soon as its end is listed."""
        answer = self.ask_refresh(name)
        assert answer.status_code == 201, answer.text
        asked = answer.json()["refresh"]["id"]

        def ended() -> dict[str, Any] | None:
            return next((run for run in self.refreshes(name) if run["id"] == asked and run["finished_at"]), None)

        return wait_for(ended, f"the end of refresh {asked}")

    def raw(self, data: bytes) -> bytes:
        """Send bytes and return everything that comes back until the server closes the connection."""
        received = b""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as connection:
            connection.sendall(data)
            with suppress(ConnectionResetError):
                while part := connection.recv(65536):
                    received += part
        return received

    def refuses_to_start(self) -> tuple[int, str]:
        """Start, expect the end of the process, and return its exit code and what it printed."""
        self.write()
        self.launch()
        code = self.process.wait(PATIENCE_S)
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", self.port)) != 0, "a port is bound"
        return code, self.output()


@contextmanager
def probing(server: Server) -> Iterator[list[float]]:
    """Be another caller meanwhile, with the second key; the list holds the seconds until each of its answers."""
    seconds: list[float] = []
    over = threading.Event()

    def ask() -> None:
        headers = {"X-API-Key": K2}
        with httpx.Client(trust_env=False, verify=NO_ROOTS, timeout=PATIENCE_S, headers=headers) as client:
            while not over.wait(0.05):
                began = time.monotonic()
                answer = client.post(f"{server.url}/v1/sql", content="SELECT 42 AS a")
                seconds.append(time.monotonic() - began)
                assert answer.text == '[{"a":42}]'

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            yield seconds
        finally:
            over.set()
        asking.result()


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

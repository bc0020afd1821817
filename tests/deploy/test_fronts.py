"""nginx and Caddy in front of a runtime, with the files of `deploy/` as they are, but for names, ports and paths."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import httpx
import pytest

from tests.clients.runtime import FlightServer, adbc_connection, plain_flight
from tests.system.harness import KEYED, REPOSITORY, Program, clean_environ, free_port, wait_for
from tests.system.processes import MIB, family, memory_bytes

pytestmark = pytest.mark.exhaustive

#: 300 MB as CSV.
LARGE = f"SELECT repeat('x', 999) AS text FROM range({300 * 1000})"
#: More than any buffer on the way holds.
STARTED = 1024 * 1024

NGINX = """daemon off;
master_process off;
pid {directory}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {directory}/temporary;
    proxy_temp_path {directory}/temporary;
    fastcgi_temp_path {directory}/temporary;
    uwsgi_temp_path {directory}/temporary;
    scgi_temp_path {directory}/temporary;
    {server}
}}
"""


class Front(Program):
    """A proxy; `entry` is the runtime as callers of the proxy see it, and `/health` has the status `health` there."""

    health = 200

    def __init__(self, name: str, directory: Path, runtime: FlightServer, tls_files: tuple[Path, Path]) -> None:
        self.log = directory / "front.log"
        self.directory = directory
        certificate, key = tls_files
        port = free_port()
        self.entry = FlightServer(directory, port=port, flight_port=port, trust=certificate, key_file=key)
        changes = {"127.0.0.1:8090": f"127.0.0.1:{runtime.port}", "127.0.0.1:50051": f"127.0.0.1:{runtime.flight_port}"}
        if name == "nginx":
            changes |= {"listen 443": f"listen {port}", "    listen [::]:443 ssl http2;\n": ""}
            changes |= {"data.example.com": "localhost"}
            changes |= {"/etc/ssl/querykeep/fullchain.pem": str(certificate)}
            changes |= {"/etc/ssl/querykeep/privkey.pem": str(key)}
            text = NGINX.format(directory=directory, server=changed(REPOSITORY / "deploy/nginx.conf", changes))
            self.command = ["nginx", "-e", "stderr", "-c", str(directory / "conf")]
        else:
            changes |= {"data.example.com {\n": f"https://localhost:{port} {{\n\ttls {certificate} {key}\n"}
            changes |= {"{\n\tlog {": "{\n\tadmin off\n\tauto_https disable_redirects\n\tlog {"}
            text = changed(REPOSITORY / "deploy/Caddyfile", changes)
            self.command = ["caddy", "run", "--adapter", "caddyfile", "--config", str(directory / "conf")]
        (directory / "conf").write_text(text)

    def __enter__(self) -> Self:
        self.run(self.command, clean_environ(HOME=str(self.directory), XDG_DATA_HOME=str(self.directory)))

        def answers() -> bool:
            assert self.process.poll() is None, self.output()
            try:
                return self.entry.get("/health", headers=KEYED).status_code == self.health
            except httpx.TransportError:
                return False

        wait_for(answers, "the proxy to answer")
        return self

    def written_bytes(self) -> int:
        """Return how many bytes the proxy has caused to be written to disk."""
        text = Path(f"/proc/{self.process.pid}/io").read_text()
        return int(text.partition("\nwrite_bytes: ")[2].split()[0])


def changed(file: Path, changes: dict[str, str]) -> str:
    text = file.read_text()
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def need(program: str) -> None:
    """Skip the test on a machine without *program*; CI installs it."""
    if shutil.which(program) is None:
        assert "CI" not in os.environ, f"{program} is missing: .ci/run installs it"
        pytest.skip(f"needs {program}")


@contextmanager
def start_runtime(directory: Path, **http: object) -> Iterator[FlightServer]:
    runtime = FlightServer(directory)
    runtime.changes["runtime"]["http"] = {"bind": f"127.0.0.1:{runtime.port}", **http}
    with runtime:
        yield runtime


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlightServer]:
    with start_runtime(tmp_path_factory.mktemp("runtime"), trusted_proxies=["127.0.0.1"]) as running:
        yield running


@pytest.fixture(params=["nginx", "caddy"])
def begin(
    request: pytest.FixtureRequest, tmp_path: Path, tls_files: tuple[Path, Path]
) -> Callable[[FlightServer], Front]:
    """Make a front of each kind for a runtime."""
    need(request.param)
    return lambda runtime: Front(request.param, tmp_path, runtime, tls_files)


@pytest.fixture
def front(begin: Callable[[FlightServer], Front], runtime: FlightServer) -> Iterator[Front]:
    with begin(runtime) as running:
        yield running


def test_rows_and_refusals_pass_unchanged(front: Front, runtime: FlightServer) -> None:
    body = b" " * 3 * MIB

    def answers(server: FlightServer) -> list[tuple[int, object, list[str | None]]]:
        found = [
            server.sql("SELECT 42 AS a"),
            server.sql("SELEC"),
            server.sql(body, key=None),
            server.sql(body),
            server.request("POST", "/v1/sql", content=iter([body]), headers=KEYED),
            server.get("/v1/nothing", headers=KEYED),
            server.get("/v1/sql", headers=KEYED),
        ]
        kept = ("WWW-Authenticate", "Allow", "Content-Type")
        return [
            (answer.status_code, without_id(answer), [answer.headers.get(name) for name in kept]) for answer in found
        ]

    expected = answers(runtime)
    assert [status for status, *_ in expected] == [200, 400, 401, 413, 413, 404, 405]
    for _ in range(5):
        assert answers(front.entry) == expected


def test_a_body_that_is_far_too_large_gets_413(front: Front) -> None:
    for content in (b" " * 9 * MIB, iter([b" " * 9 * MIB])):
        answer = front.entry.request("POST", "/v1/sql", content=content, headers=KEYED)

        assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.json()["request_id"]


def test_no_log_of_a_proxy_has_a_key(begin: Callable[[FlightServer], Front], tmp_path: Path) -> None:
    """A runtime that cannot be reached makes the proxy log the request."""
    front = begin(FlightServer(tmp_path))
    front.health = 502

    with front:
        wait_for(lambda: "/health" in front.output(), "the proxy to log it")

        assert KEYED["X-API-Key"] not in front.output()


def without_id(answer: httpx.Response) -> object:
    body = answer.json()
    if isinstance(body, dict):
        body.pop("request_id")
    return body


def test_the_log_names_the_client_of_a_trusted_proxy(front: Front, runtime: FlightServer) -> None:
    claimed = {"X-Forwarded-For": "192.0.2.1", "X-Request-Id": "mine"}
    transport = httpx.HTTPTransport(local_address="127.0.0.2", verify=front.entry._verify)

    with httpx.Client(transport=transport) as client:
        answer = client.get(f"{front.entry.url}/v1/catalogs", headers=claimed)

    sent = answer.headers["X-Request-Id"]
    assert sent != "mine"
    lines = wait_for(
        lambda: [line for line in runtime.output().splitlines() if f"request_id={sent}" in line], "the two lines"
    )
    assert ["peer=127.0.0.2 " in line for line in lines] == [True] * len(lines)


def test_the_log_names_a_proxy_that_is_not_trusted(begin: Callable[[FlightServer], Front], tmp_path: Path) -> None:
    (tmp_path / "runtime").mkdir()
    with start_runtime(tmp_path / "runtime") as runtime, begin(runtime) as front:
        transport = httpx.HTTPTransport(local_address="127.0.0.2", verify=front.entry._verify)
        with httpx.Client(transport=transport) as client:
            client.get(f"{front.entry.url}/v1/catalogs")

        line = wait_for(lambda: [line for line in runtime.output().splitlines() if "route=/v1/catalogs" in line], "it")
        assert "peer=127.0.0.1 " in line[0]


def test_flight_sql_passes(front: Front, runtime: FlightServer) -> None:
    with adbc_connection(front.entry) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*) AS n FROM orders WHERE id >= ?", (0,))
        assert cursor.fetchall() == [(1000,)]
        cursor.execute("SELECT range AS i FROM range(3000000)")
        assert cursor.fetch_arrow_table().num_rows == 3_000_000

    before = runtime.refused_calls()
    with plain_flight(front.entry) as client, pytest.raises(Exception, match="An API key is needed"):
        list(client.list_actions())
    assert runtime.refused_calls() == before + 1


def test_a_large_answer_is_streamed(front: Front, runtime: FlightServer) -> None:
    """A client that stops reading makes the engine wait: nothing on the way buffers, in memory or on disk."""
    web = [pid for pid, command in family(runtime.process.pid).items() if "runweb" in command]
    front.entry.sql("SELECT 1")
    before = {pid: memory_bytes(pid, "VmRSS") for pid in (front.process.pid, *web)}
    written = front.written_bytes()
    received = 0

    seen: list[str] = []

    def is_idle() -> bool:
        """Say whether the proxy has used no processor time in the last 50 looks."""
        seen.append("".join(Path(f"/proc/{front.process.pid}/stat").read_text().split()[13:15]))
        return len(seen) > 50 and seen[-1] == seen[-50]

    with httpx.stream(
        "POST", f"{front.entry.url}/v1/sql", content=LARGE, headers=KEYED | {"Accept": "text/csv"}, timeout=60,
        verify=front.entry._verify,
    ) as answer:  # fmt: skip
        for part in answer.iter_raw():
            received += len(part)
            if STARTED <= received < STARTED + len(part):
                wait_for(is_idle, "the proxy to have filled what it fills")

    assert received == 300_000 * 1000 + len("text\n")
    assert front.written_bytes() - written < MIB
    growth = {pid: memory_bytes(pid, "VmHWM") - rss for pid, rss in before.items()}
    assert max(growth.values()) < 32 * MIB, growth


def test_the_files_are_valid(begin: Callable[[FlightServer], Front], runtime: FlightServer) -> None:
    front = begin(runtime)
    program, *options = front.command
    command = [program, "-t", *options] if program == "nginx" else [program, "validate", *options[1:]]

    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=clean_environ(HOME=str(front.directory))
    )

    assert done.returncode == 0, done.stderr
    assert "[warn]" not in done.stderr

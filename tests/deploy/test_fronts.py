"""nginx and Caddy in front of a runtime, with the files of `deploy/` as they are, but for names, ports and paths."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.clients.runtime import FlightServer, adbc_connection, plain_flight
from tests.deploy.fronts import LARGE, OLDEST_CADDY, STARTED, Front, caddy_version, changed, need, start_runtime
from tests.system.harness import KEYED, REPOSITORY, clean_environ, wait_for
from tests.system.processes import MIB, family, memory_bytes

pytestmark = pytest.mark.exhaustive


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


def test_a_caddy_that_hides_that_a_result_breaks_off_refuses_the_file() -> None:
    found = {shutil.which("caddy", path=directory) for directory in os.get_exec_path()}
    programs = [program for program in found if program is not None]
    assert programs or "CI" not in os.environ

    for program in programs:
        command = [program, "adapt", "--adapter", "caddyfile", "--config", str(REPOSITORY / "deploy/Caddyfile")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == (caddy_version(program) >= OLDEST_CADDY), done.stderr


def test_nginx_limits_the_requests_under_way_of_an_address(
    tmp_path: Path, tls_files: tuple[Path, Path], runtime: FlightServer
) -> None:
    need("nginx")
    front = Front("nginx", tmp_path, runtime, tls_files)
    configuration = changed(tmp_path / "conf", {"limit_conn querykeep 100;": "limit_conn querykeep 1;"})
    (tmp_path / "conf").write_text(configuration)
    elsewhere = httpx.HTTPTransport(local_address="127.0.0.2", verify=front.entry._verify)

    with front, front.entry.stream(LARGE) as held, httpx.Client(transport=elsewhere) as other:
        assert held.status_code == 200
        refused = front.entry.sql("SELECT 1")
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_connections")
        assert refused.headers["Retry-After"] == "1"
        assert refused.headers["Content-Type"] == "application/problem+json"
        assert other.post(f"{front.entry.url}/v1/sql", content="SELECT 1", headers=KEYED).status_code == 200


def open_connections(port: int) -> int:
    """Return how many connections to *port* neither side has closed."""
    lines = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return sum((remote, state) == (f"0100007F:{port:04X}", "01") for _, _, remote, state, *_ in lines)


@pytest.mark.parametrize(
    ("ours", "proxys", "fails"),
    [pytest.param("1s", "5s", True, id="shorter"), pytest.param("1h", "1s", False, id="longer")],
)
def test_no_request_is_lost_if_the_runtime_keeps_idle_connections_longer_than_the_proxy(
    tmp_path: Path, tls_files: tuple[Path, Path], ours: str, proxys: str, *, fails: bool
) -> None:
    """
    A proxy passes requests on over connections that have been idle for some time.

    It is stopped meanwhile, as if the network between the two were slow: when it passes the requests on, it does not
    know yet which connections the runtime has closed.
    """
    need("nginx")
    (tmp_path / "runtime").mkdir()
    with ExitStack() as stack:
        runtime = stack.enter_context(start_runtime(tmp_path / "runtime", keep_alive=ours))
        front = Front("nginx", tmp_path, runtime, tls_files)
        address = f"127.0.0.1:{runtime.port}"
        upstream = f"upstream kept {{ server {address}; keepalive 50; keepalive_timeout {proxys}; }}\nserver {{\n"
        changes = {"server {\n": upstream, f"proxy_pass http://{address}": "proxy_pass http://kept"}
        (tmp_path / "conf").write_text(changed(tmp_path / "conf", changes))
        stack.enter_context(front)
        clients = [stack.enter_context(httpx.Client(verify=front.entry._verify, timeout=60)) for _ in range(50)]
        threads = stack.enter_context(ThreadPoolExecutor(len(clients)))

        def ask(client: httpx.Client) -> int:
            return client.post(f"{front.entry.url}/v1/sql", content="SELECT 1", headers=KEYED).status_code

        lost = 0
        for turn in range(6):
            if not fails and turn % 2:
                wait_for(lambda: not open_connections(runtime.port), "the proxy to close idle connections")
            lost += [*threads.map(ask, clients)].count(502)
            assert open_connections(runtime.port) > 0
            front.process.send_signal(signal.SIGSTOP)
            asked = threads.map(ask, clients)
            if fails:
                wait_for(lambda: not open_connections(runtime.port), "the runtime to close idle connections")
            front.process.send_signal(signal.SIGCONT)
            lost += [*asked].count(502)
            if fails and lost:
                break

        assert (lost > 0) == fails, f"{lost} of 600 requests were lost"

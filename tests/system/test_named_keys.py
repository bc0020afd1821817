"""Keys with a name in a whole runtime: nothing that it keeps opens it, their end, and their rate over all processes."""

import base64
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from flightapi.protocol import messages
from tests.clients.runtime import FlightServer, endpoint_of
from tests.flightapi.endpoint import Refused, bearer, descriptor, table_of, ticket_of
from tests.system.harness import K1, K2, NO_ROOTS, PATIENCE_S, clean_environ, run_program, wait_for
from tests.system.processes import contents, family, shown

ROWS = 2_000_000
LIMIT = 600  # requests a minute


def server(directory: Path, *entries: Any, **runtime: Any) -> FlightServer:
    auth = {"api-key": {"enabled": True, "keys": [K1], "named_keys": list(entries)}}
    return FlightServer(directory, changes={"runtime": {"auth": auth, **runtime}})


def named(name: str, key: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "sha256": sha256(key.encode()).hexdigest(), **fields}


def connected(stack: ExitStack, running: FlightServer) -> httpx.Client:
    return stack.enter_context(httpx.Client(base_url=running.url, verify=NO_ROOTS, timeout=PATIENCE_S))


def kept(running: FlightServer) -> Iterator[bytes]:
    """Yield what is in the files, log, command lines and environments of a runtime."""
    yield from (file.read_bytes() for file in (running.file, running.log))
    yield from (held for file, _, held in contents(running.directory / ".runtime") if "snapshots" not in file.parts)
    for process in family(running.process.pid):
        for name in ("cmdline", "environ"):
            yield shown(process, name)


def test_nothing_that_a_runtime_keeps_opens_it(tmp_path: Path) -> None:
    command = [sys.executable, "manage.py", "apikey", "create", "dashboard", "--expires", "90d"]
    made = subprocess.run(command, env=clean_environ(), capture_output=True, text=True, check=True)
    key = made.stdout.strip()
    (entry,) = yaml.safe_load(made.stderr.partition("\n")[2])

    with server(tmp_path, entry) as running, endpoint_of(running) as flight, ExitStack() as stack:
        client = connected(stack, running)
        assert running.rows("SELECT 1 AS a", key) == [{"a": 1}]
        assert flight.sql("SELECT 1 AS a", bearer(key)).to_pylist() == [{"a": 1}]
        texts = b"\n".join(kept(running))
        assert b"key=dashboard" in texts
        assert key.encode() not in texts.replace(K1.encode(), b"")
        words = {word.decode() for word in re.findall(rb"[\w+/=-]{8,}", texts)} - {K1}
        assert entry["sha256"] in words
        digest = bytes.fromhex(entry["sha256"])
        words |= {base64.b64encode(digest).decode(), digest.hex().upper(), f"sha256:{digest.hex()}"}
        assert len(words) > 100
        for word in words:
            assert client.get("/v1/status", headers={"X-API-Key": word}).status_code == 401, word


def test_changed_rules_are_in_force_once_a_reload_is_done(tmp_path: Path) -> None:
    acme = named("acme", K2, datasets=[{"name": "numbers", "row_filter": "n < 10", "columns": ["n"]}])
    auth = {"api-key": {"enabled": True, "keys": [K1], "named_keys": [acme]}}
    changes = {
        "runtime": {"auth": auth, "results_cache": {"enabled": True}},
        "datasets": [{"from": "file:numbers.csv", "name": "numbers"}],
        "views": [],
    }
    (tmp_path / "numbers.csv").write_text("n,note\n" + "".join(f"{n},x\n" for n in range(100)))
    sql = "SELECT count(*) AS seen, max(n) AS last FROM numbers"
    first, then = [{"seen": 10, "last": 9}], [{"seen": 20, "last": 19}]

    with FlightServer(tmp_path, changes=changes) as running, endpoint_of(running) as flight:
        assert [running.rows(sql, K2) for _ in range(2)] == [first] * 2
        assert flight.sql(sql, bearer(K2)).to_pylist() == first
        info = flight.info(messages.CommandStatementQuery(query=sql), bearer(K2))  # Its result waits.
        running.file.write_text(running.file.read_text().replace("n < 10", "n < 20"))

        done = run_program("manage.py", "reload", "--config", str(running.file))

        assert done.returncode == 0, done.stderr
        assert running.rows(sql, K2) == then
        assert flight.table(info, bearer(K2)).to_pylist() == then
        assert flight.sql(sql, bearer(K2)).to_pylist() == then
        assert "n < 20" not in running.output()


def test_statements_of_a_key_run_one_after_the_other(tmp_path: Path) -> None:
    one = named("one", K2, limits={"concurrent": 1})
    with server(tmp_path, one, query={"workers": 3, "queue_timeout": "60s"}) as running, ExitStack() as stack:
        flight = stack.enter_context(endpoint_of(running))
        clients = [connected(stack, running) for _ in range(6)]
        began = time.monotonic()

        def ask(number: int) -> None:
            key = K1 if number % 3 == 0 else K2
            for turn in range(8):
                sql = f"SELECT count(*) AS n FROM range({1_000_000 + turn}) a, range(20) b WHERE a.range % 7 = {number}"
                if number % 2:
                    flight.sql(sql, bearer(key))
                else:
                    assert clients[number].post("/v1/sql", content=sql, headers={"X-API-Key": key}).status_code == 200

        with ThreadPoolExecutor(6) as threads:
            list(threads.map(ask, range(6)))
        elapsed_ms = (time.monotonic() - began) * 1000
        lines = wait_for(lambda: [line for line in running.output().splitlines() if "rows=1 " in line], "the log")

    run_ms = {
        whose: sum(float(line.partition("run_ms=")[2].split()[0]) for line in lines if ("key=one" in line) is whose)
        for whose in (True, False)
    }
    assert 0 < run_ms[True] < elapsed_ms
    assert run_ms[False] > 0


@pytest.mark.exhaustive
def test_a_key_ends_on_open_connections_and_its_statements_are_finished(tmp_path: Path) -> None:
    ends = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=60)
    brief = named("brief", K2, expires=ends.isoformat())
    sql = f"SELECT range AS n FROM range({ROWS})"
    query = descriptor(messages.CommandStatementQuery(query=sql))

    with (
        server(tmp_path, brief, query={"timeout": "5m"}) as running,
        endpoint_of(running) as flight,
        ExitStack() as stack,
    ):
        client, other = connected(stack, running), connected(stack, running)
        rows = stack.enter_context(client.stream("POST", "/v1/sql", content=sql, headers={"X-API-Key": K2}))
        parts = rows.iter_bytes()
        read = [next(parts)]
        info = messages.parse(
            messages.FlightInfo, flight.works("GetFlightInfo", query, metadata=bearer(K2)).messages[0]
        )
        stream = flight.begin(messages.PATHS["DoGet"], [ticket_of(info)], bearer(K2))
        data = [next(stream)]
        assert other.get("/v1/key", headers={"X-API-Key": K2}).json()["name"] == "brief"
        assert time.time() < ends.timestamp()

        wait_for(lambda: time.time() >= ends.timestamp(), "the end of the key")

        assert other.get("/v1/key", headers={"X-API-Key": K2}).status_code == 401
        refused = flight.call("GetFlightInfo", query, metadata=bearer(K2))
        assert isinstance(refused, Refused)
        assert refused.status == "UNAUTHENTICATED"
        assert time.time() < ends.timestamp() + PATIENCE_S
        assert b"".join([*read, *parts]).count(b'"n"') == ROWS
        assert table_of([*data, *stream]).num_rows == ROWS


@pytest.mark.soak
def test_the_rate_of_a_key_counts_all_processes(tmp_path: Path) -> None:
    """Four HTTP connections, which spread over two web processes, and Flight, for two minutes."""
    limited = named("limited", K2, limits={"requests_per_minute": LIMIT})
    with server(tmp_path, limited) as running, endpoint_of(running) as flight, ExitStack() as stack:
        ends = time.monotonic() + 120

        def over_http(client: httpx.Client) -> tuple[int, int]:
            answers = [0, 0]
            while time.monotonic() < ends:
                answer = client.post("/v1/sql", content="SELECT 1 AS a", headers={"X-API-Key": K2})
                assert answer.status_code in {200, 429}
                assert (answer.status_code == 429) is ("Retry-After" in answer.headers)
                answers[answer.status_code == 429] += 1
                time.sleep(0.02)
            return answers[0], answers[1]

        def over_flight() -> tuple[int, int]:
            answers = [0, 0]
            while time.monotonic() < ends:
                query = descriptor(messages.CommandStatementQuery(query="SELECT 1 AS a"))
                answer = flight.call("GetFlightInfo", query, metadata=bearer(K2))
                assert not isinstance(answer, Refused) or answer.status == "RESOURCE_EXHAUSTED"
                answers[isinstance(answer, Refused)] += 1
                time.sleep(0.05)
            return answers[0], answers[1]

        def others() -> int:
            done = 0
            while time.monotonic() < ends:
                assert running.rows("SELECT 1 AS a") == [{"a": 1}]
                done += 1
                time.sleep(0.1)
            return done

        with ThreadPoolExecutor(6) as threads:
            counts = [threads.submit(over_http, connected(stack, running)) for _ in range(4)]
            counts.append(threads.submit(over_flight))
            undisturbed = threads.submit(others)
            found = [count.result() for count in counts]
            assert undisturbed.result() > 100

    accepted, refused = (sum(column) for column in zip(*found, strict=True))
    assert abs(accepted - 2 * LIMIT) <= 0.05 * 2 * LIMIT
    assert refused > LIMIT
    assert all(count[0] for count in found[:4])

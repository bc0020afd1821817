"""Whole runtimes that share snapshots: `runtime.snapshots`."""

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.nodes.storage_server import BUCKET, KEYS, SharedStorage, storage_in_thread, storage_process
from tests.system.harness import KEYED, PATIENCE_S, Server, free_port, wait_for, write_orders
from tests.system.processes import family, kill_family, shown

ROWS = 1000
#: Seconds for which the storage does not answer.
_OUTAGE_S = 30.0
_ANSWERS = 5_000
SUM = "SELECT count(*) AS n, sum(id)::BIGINT AS s FROM orders"


def answer(offset: int) -> list[dict[str, int]]:
    """Return the rows of `SUM` over the version of the source with this offset."""
    return [{"n": ROWS, "s": ROWS * (ROWS - 1) // 2 + ROWS * offset}]


def node(
    directory: Path, name: str, shared: SharedStorage, role: str, *, interval: str = "1h", **runtime: Any
) -> Server:
    """Make a node that reads `orders.parquet` in *directory*; a follower's own YAML names a source that it lacks."""
    (directory / name).mkdir(exist_ok=True)
    params = {"s3_endpoint": shared.url, "s3_key": KEYS["s3_key"], "s3_secret": "${ env:STORE_SECRET }"}
    source: dict[str, Any] = {"from": f"file:{directory}/orders.parquet"}
    if role == "follower":
        source = {"from": "s3://absent/orders.parquet", "params": {"s3_key": "k", "s3_secret": "${ env:ABSENT }"}}
    changes = {
        "runtime": {
            "snapshots": {"location": f"s3://{BUCKET}/nodes", "role": role, "params": params, "poll": "200ms"},
            "query": {"workers": 2, **runtime.pop("query", {})},
            **runtime,
        },
        "datasets": [
            {**source, "name": "orders", "acceleration": {"enabled": True, "refresh_check_interval": interval}}
        ],
    }
    return Server(directory / name, changes=changes, environ={"STORE_SECRET": KEYS["s3_secret"]})


@contextmanager
def running(*servers: Server) -> Iterator[None]:
    """Run servers, which start at the same time."""
    with ExitStack() as stack:
        for server in servers:
            server.write()
            server.launch()
            stack.callback(server.stop)
        for server in servers:
            server.wait_until_up()
        yield


def _page_with(address: str, line: str) -> str:
    """Return the metrics at *address* once they have *line*: gauges are looked up every few seconds."""

    def found() -> str | None:
        page = httpx.get(f"http://{address}/metrics", trust_env=False, timeout=60).text
        return page if line in page else None

    return wait_for(found, line)


def component(server: Server) -> dict[str, Any]:
    """Return what `/v1/status` says of the shared snapshots."""
    return next(one for one in server.listed("/v1/status") if one["name"] == "snapshots")


def test_a_node_tells_of_the_storage_and_its_secret_stays_with_the_part_that_needs_it(tmp_path: Path) -> None:
    write_orders(tmp_path / "orders.parquet")
    metrics = f"127.0.0.1:{free_port()}"
    with storage_in_thread() as shared:
        server = node(tmp_path, "a", shared, "publisher", metrics={"enabled": True, "bind": metrics})
        with running(server):
            assert server.rows(SUM) == answer(0)
            told = component(server)
            assert (told["status"], told["endpoint"]) == ("Ready", f"s3://{BUCKET}/nodes")
            assert told["node"] == told["publisher"]
            page = _page_with(metrics, "querykeep_node_publishes 1")
            assert "querykeep_shared_storage_age_seconds" in page
            _has_no_secret(server)


@pytest.mark.exhaustive
def test_a_follower_without_sources_serves_and_refreshes_what_the_publisher_loads(tmp_path: Path) -> None:
    write_orders(tmp_path / "orders.parquet")
    with storage_process() as (shared, _):
        metrics = f"127.0.0.1:{free_port()}"
        publisher = node(tmp_path, "a", shared, "publisher")
        follower = node(tmp_path, "b", shared, "follower", metrics={"enabled": True, "bind": metrics})
        with running(publisher, follower):
            assert publisher.rows(SUM) == follower.rows(SUM) == answer(0)
            write_orders(tmp_path / "orders.parquet", offset=7)

            run = follower.refresh()

            assert (run["status"], run["rows"]) == ("succeeded", ROWS)
            assert follower.rows(SUM) == answer(7)
            assert publisher.rows(SUM) == answer(7)
            assert run["id"] in [listed["id"] for listed in publisher.refreshes()]
            states = [component(publisher), component(follower)]
            assert {(one["status"], one["endpoint"]) for one in states} == {("Ready", f"s3://{BUCKET}/nodes")}
            assert states[0]["node"] == states[0]["publisher"] == states[1]["publisher"] != states[1]["node"]
            (kept,) = publisher.listed("/v1/datasets")
            (copied,) = follower.listed("/v1/datasets")
            assert copied["snapshot"] == kept["snapshot"]
            page = _page_with(metrics, "querykeep_node_publishes 0")
            assert "querykeep_shared_storage_age_seconds" in page
            for server in (publisher, follower):
                _has_no_secret(server)


class Callers:
    """One caller of each node, who asks all the time and knows which answers there may be, and in which order."""

    def __init__(self, directory: Path, servers: Sequence[Server]) -> None:
        self.offset = 0
        self.answers = 0
        self.wrong: list[str] = []
        self.seen = dict.fromkeys((server.port for server in servers), 0)
        self._directory = directory
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._write)]
        self._threads += [threading.Thread(target=self._ask, args=(server,)) for server in servers]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Replace the source and ask until the block ends."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in self._threads:
                thread.join()

    def have_moved_on(self, *servers: Server) -> None:
        """Wait until all of *servers* have served a version that is not older than the source is now."""
        offset = self.offset
        wait_for(lambda: all(self.seen[server.port] >= offset for server in servers), f"version {offset}")

    def _write(self) -> None:
        while not self._ended.wait(1.0):
            write_orders(self._directory / "orders.parquet", offset=self.offset + 1)
            self.offset += 1

    def _ask(self, server: Server) -> None:
        with httpx.Client(base_url=server.url, trust_env=False, timeout=PATIENCE_S, headers=KEYED) as client:
            while not self._ended.is_set():
                try:
                    found = client.post("/v1/sql", content=SUM)
                except httpx.TransportError:  # The node was killed.
                    self._ended.wait(0.2)
                    continue
                if found.status_code == 200:
                    self._check(server.port, found.json())
                elif found.status_code != 503:  # The node is being started.
                    self.wrong.append(found.text)

    def _check(self, port: int, rows: list[dict[str, int]]) -> None:
        self.answers += 1
        offset = (rows[0]["s"] - answer(0)[0]["s"]) // ROWS
        if rows != answer(offset) or not self.seen[port] <= offset <= self.offset + 1:
            self.wrong.append(f"{rows} after {self.seen[port]} of {self.offset}")
        self.seen[port] = offset


def age_s(server: Server) -> int:
    return int(server.listed("/v1/datasets")[0]["age_s"])


def publisher_of(servers: Sequence[Server]) -> Server | None:
    """Return the node that publishes and runs."""
    for server in servers:
        with suppress(httpx.TransportError, AssertionError):
            of_node = component(server)
            if of_node["node"] == of_node["publisher"] and of_node["status"] == "Ready":
                return server
    return None


@pytest.mark.exhaustive
def test_through_kills_and_an_outage_of_the_storage_no_answer_is_wrong(tmp_path: Path) -> None:
    write_orders(tmp_path / "orders.parquet")
    with storage_process() as (shared, process):
        servers = [
            node(tmp_path, name, shared, "auto", interval="500ms", query={"max_staleness": "20s"}) for name in "abc"
        ]
        callers = Callers(tmp_path, servers)
        with running(*servers), callers.at_work():
            callers.have_moved_on(*servers)
            first = wait_for(lambda: publisher_of(servers), "a publisher")
            others = [server for server in servers if server is not first]
            kill_family(first.process.pid)
            killed = time.monotonic()
            wait_for(lambda: publisher_of(others), "another publisher")
            moved_s = time.monotonic() - killed
            callers.have_moved_on(*others)
            first.process.wait()
            first.launch()
            first.wait_until_up()
            callers.have_moved_on(*servers)

            shared.fault(delay_s=1.0)
            callers.have_moved_on(*servers)
            shared.fault("denied")
            wait_for(lambda: all(component(server)["status"] == "Error" for server in servers), "the refusals")
            assert all(server.rows(SUM) for server in servers)
            shared.fault()
            callers.have_moved_on(*servers)

            process.send_signal(signal.SIGSTOP)
            stopped, answers = time.monotonic(), callers.answers
            wait_for(lambda: not any(server.answers() for server in servers), "data that is too old")
            wait_for(lambda: time.monotonic() - stopped >= _OUTAGE_S, "the end of the outage", 2 * _OUTAGE_S)
            assert callers.answers > answers
            ages = [age_s(server) for server in servers]
            process.send_signal(signal.SIGCONT)
            callers.have_moved_on(*servers)
            wait_for(lambda: all(server.answers() for server in servers), "all nodes to be ready")
            wait_for(lambda: callers.answers >= _ANSWERS, "the answers", 300)

        assert callers.wrong == []
        assert moved_s < 30
        assert min(ages) >= _OUTAGE_S - 10
        print(f"{callers.answers} answers, the lease moved in {moved_s:.1f} s, ages of {ages} s after the outage")


def _has_no_secret(server: Server) -> None:
    """Look for the secret of the storage in the log, in command lines, and in the environment of all but `serve`."""
    secret = KEYS["s3_secret"]
    assert secret not in server.output()
    for process in family(server.process.pid):
        assert secret.encode() not in shown(process, "cmdline")
        if process != server.process.pid:
            assert secret.encode() not in shown(process, "environ")

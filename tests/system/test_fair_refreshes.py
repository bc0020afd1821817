"""Keys that have loads run without end, and those who wait for a load beside them."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.system.harness import Server, wait_for

#: The most that a key and the schedule wait for a load of other keys, and a while for their own load and the machine.
PROMISED_S = 10.0 + 20.0

#: Takes hours, little memory and no space.
ENDLESS = "SELECT max(hash(a.i, b.i, o.id)) AS id FROM {name} o, range(1000000) a(i), range(1000000) b(i)"

MODEST = "modest-key-0123456789"


class _Source(BaseHTTPRequestHandler):
    """A source of one row that, once it `hangs`, takes requests and does not answer until it has `ended`."""

    protocol_version = "HTTP/1.1"
    hangs, ended = threading.Event(), threading.Event()

    def do_GET(self) -> None:
        if self.hangs.is_set():
            self.ended.wait(300)
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(b"n\n1\n")

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Say nothing of each request."""


@contextmanager
def source() -> Iterator[str]:
    """The URL of a source that hangs as soon as `_Source.hangs` is set."""
    _Source.hangs, _Source.ended = threading.Event(), threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Source)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        _Source.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()


def greedy_key(number: int) -> str:
    return f"greedy-key-{number}-0123456789"


def server_of(directory: Path, keys: int, per_key: int, origin: str) -> Server:
    """Make a server with *keys* greedy keys, each for *per_key* datasets of its own, a modest key, and a schedule."""
    mine = {number: [f"d{number}_{index}" for index in range(per_key)] for number in range(keys)}
    named = [
        {"name": f"greedy{number}", "key": greedy_key(number), "datasets": names, "rights": ["refresh"]}
        for number, names in mine.items()
    ]
    named.append({"name": "modest", "key": MODEST, "datasets": ["modest"], "rights": ["query", "refresh"]})
    own = {"required_for_ready": False, "acceleration": {"refresh_timeout": "5m"}}
    server = Server(directory)
    changes: dict[str, Any] = {
        "runtime": {
            "auth": {"api-key": {"enabled": True, "keys": [SEER], "named_keys": named}},
            "flight": {"enabled": False},
        },
        "datasets": [
            *({"from": origin, "name": name, **own} for names in mine.values() for name in names),
            {"from": "file:orders.parquet", "name": "modest", "acceleration": {"refresh_timeout": "5m"}},
            {
                "from": "file:orders.parquet",
                "name": "scheduled",
                "acceleration": {"refresh_check_interval": "2s", "refresh_timeout": "5m"},
            },
        ],
        "views": [],
    }
    server.changes = changes
    return server


#: Sees every dataset.
SEER = "seer-key-0123456789"


@contextmanager
def attack(server: Server, keys: int, per_key: int, sql: str | None) -> Iterator[None]:
    """Have each greedy key request the next load of each of its datasets as soon as it may."""
    ended = threading.Event()

    def request(number: int) -> None:
        while not ended.is_set():
            for index in range(per_key):
                name = f"d{number}_{index}"
                body = {} if sql is None else {"refresh_sql": sql.format(name=name)}
                answer = server.request(
                    "POST",
                    f"/v1/datasets/{name}/acceleration/refresh",
                    json=body,
                    headers={"X-API-Key": greedy_key(number)},
                )
                assert answer.status_code == 201, answer.text
            ended.wait(0.5)

    threads = [threading.Thread(target=request, args=(number,), daemon=True) for number in range(keys)]
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: running(server) >= 2, "two loads of greedy keys")
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def running(server: Server) -> int:
    names = [one["name"] for one in server.listed("/v1/datasets", SEER) if one["name"].startswith("d")]
    listed = [server.listed(f"/v1/datasets/{name}/acceleration/refresh", SEER) for name in names]
    return sum(run["status"] == "running" for runs in listed for run in runs[:2])


def modest_wait_s(server: Server) -> float:
    """Return the seconds that a refresh of the modest key takes."""
    path = "/v1/datasets/modest/acceleration/refresh"
    began = time.monotonic()
    run_id = server.request("POST", path, headers={"X-API-Key": MODEST}).json()["refresh"]["id"]

    def is_done() -> bool:
        (run,) = (one for one in server.listed(path, MODEST) if one["id"] == run_id)
        return bool(run["status"] == "succeeded")

    wait_for(is_done, "the refresh of the modest key", patience_s=200)
    return time.monotonic() - began


def schedule_wait_s(server: Server) -> float:
    """Return the seconds until the next refresh of the schedule has succeeded."""
    checked = _checked(server)
    began = time.monotonic()
    wait_for(lambda: _checked(server) != checked, "the schedule", patience_s=200)
    return time.monotonic() - began


def _checked(server: Server) -> str:
    return str(next(one["checked_at"] for one in server.listed("/v1/datasets", SEER) if one["name"] == "scheduled"))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("keys", "per_key", "sql"),
    [
        pytest.param(4, 3, ENDLESS, id="many keys"),
        pytest.param(1, 12, None, id="many datasets of a source that hangs"),
    ],
)
def test_endless_loads_of_keys_keep_neither_another_key_nor_the_schedule_waiting(
    tmp_path: Path, keys: int, per_key: int, sql: str | None
) -> None:
    # Keys take turns: with many of them, a place is free again only at the end of a load.
    waits = [schedule_wait_s] if keys > 1 else [modest_wait_s, schedule_wait_s]
    with source() as url:
        origin = "file:orders.parquet" if sql is not None else f"{url}/a.csv"
        with server_of(tmp_path, keys, per_key, origin) as server:
            wait_for(lambda: all(one["rows"] for one in server.listed("/v1/datasets", SEER)), "all datasets")
            _Source.hangs.set()
            with attack(server, keys, per_key, sql):
                waited_s = {wait.__name__: round(wait(server), 1) for wait in waits}
                assert running(server) >= 1

    assert max(waited_s.values()) <= PROMISED_S, waited_s

"""Checks R01, R06, R08, S27, P01 and P10 over a whole runtime."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.flight
import pytest

from benchmarks.processes import cpu_s
from tests.clients.runtime import FlightServer, flight_table, plain_flight
from tests.open_files import open_files
from tests.system.harness import Server, wait_for, write_orders
from tests.system.processes import family, is_alive

CHECKSUM = "SELECT count(*) AS n, sum(id)::BIGINT AS s FROM orders"
OLD = [{"n": 1000, "s": 499500}]
NEW = [{"n": 1000, "s": 1000499500}]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("changing")) as server:
        yield server


@pytest.fixture
def changing(running: Server) -> Server:
    """A runtime whose data may be changed, and broken: each test begins with the old data."""
    source = running.directory / "orders.parquet"
    source.unlink(missing_ok=True)  # a pipe would keep whoever writes waiting
    write_orders(source)
    assert running.refresh()["status"] == "succeeded"
    assert running.rows(CHECKSUM) == OLD
    return running


def test_r01_readers_see_old_then_new_and_the_superseded_snapshot_goes(changing: Server) -> None:
    seen: list[Any] = []
    stop = threading.Event()
    snapshots = changing.directory / ".runtime" / "snapshots"
    before = set(snapshots.glob("orders-*"))

    def read() -> None:
        while not stop.is_set():
            seen.append(changing.rows(CHECKSUM))

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    write_orders(changing.directory / "orders.parquet", offset=1_000_000)
    run = changing.refresh()
    after = changing.rows(CHECKSUM)
    stop.set()
    for reader in readers:
        reader.join()

    assert (run["status"], run["rows"]) == ("succeeded", 1000)
    assert after == NEW
    assert all(rows in (OLD, NEW) for rows in seen)
    began = time.monotonic()
    wait_for(lambda: not any(snapshot.exists() for snapshot in before), "the old snapshot to go")
    wait_for(lambda: "(deleted)" not in str(open_files(snapshots, with_children=True)), "it to be closed")
    assert time.monotonic() - began < 30


def test_r06_r08_a_source_that_is_broken_or_vanishes_or_hangs_keeps_the_last_good_data(changing: Server) -> None:
    source = changing.directory / "orders.parquet"

    contents = (b"", b"PAR1garbage", os.urandom(5000), b"PAR1" + bytes(100) + b"PAR1")
    broken: list[Callable[[], object]] = [partial(source.write_bytes, content) for content in contents]
    broken += [lambda: "absent", partial(os.mkfifo, source)]

    for make in broken:
        source.unlink(missing_ok=True)
        make()
        run = changing.refresh()
        (row,) = changing.listed("/v1/datasets")

        assert run["status"] == "failed"
        assert run["error"]
        assert str(changing.directory) not in run["error"]
        assert row["status"] == "Error"
        assert row["error"]
        assert changing.rows(CHECKSUM) == OLD
        assert changing.get("/v1/ready").status_code == 200
    source.unlink()
    write_orders(source, offset=1_000_000)

    assert changing.refresh()["status"] == "succeeded"
    assert changing.rows(CHECKSUM) == NEW


def is_served(server: Server, name: str) -> bool:
    return server.sql(f"SELECT count(*) FROM {name}").status_code == 200


@pytest.mark.exhaustive
def test_p01_p10_s27_one_dataset_of_five_that_cannot_load_does_not_stop_the_others(tmp_path: Path) -> None:
    names = ("orders", "second", "third", "absent", "fifth")
    acceleration = {"enabled": True, "refresh_check_interval": "1s"}
    datasets = [{"from": "file:orders.parquet", "name": name, "acceleration": acceleration} for name in names]
    datasets[3]["from"] = "file:absent.parquet"
    views = [{"name": "seen", "sql": "SELECT id FROM orders"}, {"name": "unseen", "sql": "FROM absent"}]

    with FlightServer(tmp_path, changes={"datasets": datasets, "views": views}, wait_ready=False) as server:

        def rows() -> list[dict[str, Any]]:
            return list(server.listed("/v1/datasets"))

        assert server.get("/health").text == "ok\n"
        wait_for(lambda: all(row["rows"] or row["error"] for row in rows()), "the loads")
        assert [row["name"] for row in rows() if row["error"]] == ["absent"]
        for name in ("orders", "second", "third", "fifth", "seen"):
            wait_for(partial(is_served, server, name), name)
        assert server.rows("SELECT 1 AS a") == [{"a": 1}]

        answer = server.get("/v1/ready")
        assert (answer.status_code, answer.text) == (503, "not ready")
        assert "Dataset absent cannot be refreshed: " in server.output()
        for sql, said in (
            ("SELECT * FROM absent", "Dataset 'absent' is not loaded yet."),
            ("FROM unseen", "View 'unseen' has no data yet: Dataset 'absent' is not loaded yet."),
        ):
            answer = server.sql(sql)
            assert (answer.status_code, answer.json()["code"]) == (503, "dataset_not_loaded")
            assert answer.json()["detail"] == said
            assert int(answer.headers["Retry-After"]) >= 1
            with plain_flight(server) as client, pytest.raises(pyarrow.flight.FlightUnavailableError, match=said):
                flight_table(client, sql)
        # Where data comes from is the operator's; where that lies on the machine, nobody's.
        shown = [str(listed) for listed in (rows(), server.refreshes("orders"), server.refreshes("absent"))]
        assert all(str(tmp_path) not in text for text in shown)
        assert "absent.parquet" in shown[2]

        write_orders(tmp_path / "absent.parquet")
        server.wait_until_up()
        assert is_served(server, "unseen")


#: A `refresh_sql` that looks at no interrupt.
DEAF = "SELECT levenshtein(repeat('a', 200000) || id, repeat('b', 200000)) AS x FROM orders"


def loaders(server: Server) -> list[int]:
    return [pid for pid, command in family(server.process.pid).items() if "loader_process" in command]


@pytest.mark.exhaustive
def test_a_stop_does_not_wait_for_a_load_that_cannot_be_stopped(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        used = {loader: cpu_s(loader) for loader in loaders(server)}
        assert server.ask_refresh(refresh_sql=DEAF).status_code == 201

        def busy() -> int | None:
            # More than one that starts takes.
            return next((pid for pid in loaders(server) if cpu_s(pid) > used.get(pid, 0) + 1.5), None)

        loader = wait_for(busy, "the load")
        began = time.monotonic()

        assert server.stop() == 0

        # The least that would be waited for otherwise is refresh_timeout, ten minutes, or shutdown_timeout.
        assert time.monotonic() - began < 25
        assert not is_alive(loader)
        assert "did not end in time" not in server.output()
        assert len(list((tmp_path / ".runtime/snapshots").iterdir())) == 1

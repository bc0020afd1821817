"""Checks R01, R06, R08, R12, R15, R18, S27, P01 and P10, and the catalog, over a whole runtime."""

import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow.flight
import pytest

from benchmarks.processes import cpu_s
from tests.clients.runtime import FlightServer, flight_table, plain_flight
from tests.system.harness import K1, MODES, Mode, Server, wait_for, write_orders
from tests.system.processes import family, is_alive

REFRESH = "/v1/datasets/orders/acceleration/refresh"
ABSENT = "/v1/datasets/absent/acceleration/refresh"
CHECKSUM = "SELECT count(*) AS n, sum(id)::BIGINT AS s FROM orders"
OLD = [{"n": 1000, "s": 499500}]
NEW = [{"n": 1000, "s": 1000499500}]

#: A `refresh_sql` that looks at no interrupt.
DEAF = "SELECT levenshtein(repeat('a', 200000) || id, repeat('b', 200000)) AS x FROM orders"


ORDERS = {"from": "file:orders.parquet", "name": "orders", "acceleration": {"enabled": True}}
STATIC = {"from": "file:orders.parquet", "name": "static"}


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Mode], Server]]:
    """A function that returns the runtime of a mode whose data may be changed, and broken."""
    with ExitStack() as stack:

        @cache
        def running(mode: Mode) -> Server:
            directory = tmp_path_factory.mktemp(f"changing-{mode}")
            return stack.enter_context(Server(directory, mode=mode, changes={"datasets": [ORDERS, STATIC]}))

        yield running


@pytest.fixture(params=MODES)
def mutable(request: pytest.FixtureRequest, changing: Callable[[Mode], Server]) -> Server:
    """A runtime of each mode: each test begins with the old data."""
    return with_old_data(changing(request.param))


@pytest.fixture
def one(changing: Callable[[Mode], Server]) -> Server:
    """The runtime of `serve`: each test begins with the old data."""
    return with_old_data(changing("serve"))


def with_old_data(server: Server) -> Server:
    """Have *server* serve the data of its beginning, whatever the test before has left."""
    source = server.directory / "orders.parquet"
    source.unlink(missing_ok=True)  # a pipe would keep whoever writes waiting
    write_orders(source)
    run = wait_finished(server, refreshed(server))
    assert run["status"] == "succeeded"
    assert server.rows(CHECKSUM) == OLD
    return server


def post(server: Server, path: str, key: str | None = K1, **options: Any) -> Any:
    return server.request("POST", path, headers={"X-API-Key": key} if key else {}, **options)


def history(server: Server, name: str = "orders") -> list[dict[str, Any]]:
    answer = server.get(REFRESH.replace("orders", name), headers={"X-API-Key": K1})
    assert answer.status_code == 200
    return list(answer.json())


def wait_finished(server: Server, run: str, name: str = "orders") -> dict[str, Any]:
    def finished() -> dict[str, Any] | None:
        return next((row for row in history(server, name) if row["id"] == run and row["finished_at"]), None)

    return wait_for(finished, f"the end of refresh {run}")


def test_r01_readers_see_old_then_new(mutable: Server) -> None:
    seen: list[Any] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.append(mutable.rows(CHECKSUM))

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    write_orders(mutable.directory / "orders.parquet", offset=1_000_000)
    answer = post(mutable, REFRESH)
    assert answer.status_code == 201
    assert answer.json()["message"] == "Dataset refresh triggered for orders."
    run = wait_finished(mutable, answer.json()["refresh"]["id"])
    after = mutable.rows(CHECKSUM)
    stop.set()
    for reader in readers:
        reader.join()

    assert run["status"] == "succeeded"
    assert run["rows"] == 1000
    assert after == NEW
    assert all(rows in (OLD, NEW) for rows in seen)


def test_a_superseded_snapshot_is_gone_in_two_seconds(one: Server) -> None:
    snapshots = one.directory / ".runtime" / "snapshots"
    before = set(snapshots.glob("orders-*"))
    write_orders(one.directory / "orders.parquet", offset=1_000_000)

    wait_finished(one, refreshed(one))

    began = time.monotonic()
    wait_for(lambda: not any(snapshot.exists() for snapshot in before), "the old snapshot to go")
    wait_for(lambda: not deleted_files_held(one), "the old snapshot to be closed")
    assert time.monotonic() - began < 30


def deleted_files_held(server: Server) -> list[str]:
    pids = [str(server.process.pid)]
    pids += Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    held = []
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = str(link.readlink())
            except OSError:
                continue
            if target.endswith("(deleted)") and "snapshots" in target:
                held.append(target)
    return held


def test_r06_a_broken_source_keeps_the_last_good_data(one: Server) -> None:
    for content in (b"", b"PAR1garbage", os.urandom(5000), b"PAR1" + bytes(100) + b"PAR1"):
        (one.directory / "orders.parquet").write_bytes(content)

        run = wait_finished(one, refreshed(one))

        assert run["status"] == "failed"
        assert run["error"]
        assert str(one.directory) not in run["error"]
        assert one.rows(CHECKSUM) == OLD
        row = one.get("/v1/datasets", headers={"X-API-Key": K1}).json()[0]
        assert row["status"] == "Error"
        assert row["error"]
        assert one.get("/v1/ready").status_code == 200


def test_r08_a_source_that_vanishes_or_hangs_keeps_the_last_good_data(one: Server) -> None:
    source = one.directory / "orders.parquet"
    source.unlink()
    for hangs in (False, True):
        if hangs:
            os.mkfifo(source)
        run = wait_finished(one, refreshed(one))
        assert run["status"] == "failed"
        assert one.rows(CHECKSUM) == OLD
    source.unlink()
    write_orders(source, offset=1_000_000)

    run = wait_finished(one, refreshed(one))

    assert run["status"] == "succeeded"
    assert one.rows(CHECKSUM) == NEW


def test_r12_concurrent_requests_coalesce(one: Server) -> None:
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda: answers.append(post(one, REFRESH))) for _ in range(20)]
    before = len(history(one))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {answer.status_code for answer in answers} == {201}
    ids = {answer.json()["refresh"]["id"] for answer in answers}
    for run in ids:
        assert wait_finished(one, run)["status"] == "succeeded"
    assert len(history(one)) - before == len(ids) < 20


def test_r15_refresh_refusals(mutable: Server) -> None:
    assert post(mutable, "/v1/datasets/nope/acceleration/refresh").status_code == 404
    assert post(mutable, REFRESH, key=None).status_code == 401
    nulls = {"refresh_sql": None, "refresh_mode": None, "refresh_jitter_max": None}  # as upstream's clients send them
    for accepted in (nulls, {"refresh_mode": "full", "refresh_jitter_max": "1ms"}):
        asked = post(mutable, REFRESH, json=accepted)
        assert asked.status_code == 201
        assert wait_finished(mutable, asked.json()["refresh"]["id"])["status"] == "succeeded"
    for body, status in (
        (b'{"refresh_sql": 1}', 400),
        (b'{"refresh_mode": "append"}', 400),
        (b'{"refresh_jitter_max": 1}', 400),
        (b'{"refresh_sql": "SHOW ALL TABLES"}', 403),
        (b'{"unknown": 1}', 400),
        (b"{", 400),
        (b'{"refresh_sql": "SELEC"}', 400),
        (b'{"refresh_sql": "DELETE FROM orders"}', 403),
        (b'{"refresh_sql": "SELECT * FROM read_csv(\'/etc/passwd\')"}', 403),
    ):
        before = len(history(mutable))
        assert post(mutable, REFRESH, content=body).status_code == status, body
        assert len(history(mutable)) == before


def test_r15_without_acceleration_there_is_no_refresh(changing: Callable[[Mode], Server]) -> None:
    server = changing("serve")

    assert post(server, "/v1/datasets/static/acceleration/refresh").status_code == 400
    row = server.get("/v1/datasets", headers={"X-API-Key": K1}).json()[1]
    assert (row["acceleration_enabled"], row["status"], row["rows"]) == (False, "Ready", 1000)


@pytest.fixture(scope="module")
def _ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a runtime that has loaded its data and ended, and beside it a copy."""
    directory = tmp_path_factory.mktemp("ended") / "now"
    directory.mkdir()
    with Server(directory) as server:
        pass
    server.log.unlink()
    shutil.copytree(directory, directory.with_name("then"))
    return directory


@pytest.fixture
def ended_runtime(_ended: Path) -> Path:
    """The directory of a runtime that has ended, as it was then."""
    shutil.rmtree(_ended)
    shutil.copytree(_ended.with_name("then"), _ended)
    return _ended


@pytest.mark.exhaustive
@pytest.mark.parametrize("damage", ["flip", "truncate", "append", "foreign", "manifest", "format"])
def test_r18_damage_on_disk_is_found_and_rebuilt(ended_runtime: Path, damage: str) -> None:
    state = ended_runtime / ".runtime"
    snapshot = next((state / "snapshots").iterdir())
    manifest = state / "manifest.json"
    data = bytearray(snapshot.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 0xFF
    elif damage == "truncate":
        data = data[: len(data) // 2]
    elif damage == "append":
        data += b"x" * 100
    elif damage == "foreign":
        data = bytearray(b"not a database at all" * 1000)
    if damage == "manifest":
        manifest.write_text(manifest.read_text()[:-20])
    elif damage == "format":
        text, count = re.subn(r'"format_version": ?\d+', '"format_version": 99', manifest.read_text())
        assert count == 1
        manifest.write_text(text)
    else:
        snapshot.chmod(0o600)
        snapshot.write_bytes(data)

    with Server(ended_runtime) as server:
        assert server.rows(CHECKSUM) == OLD
        assert "WARNING" in server.output()


def is_served(server: Server, name: str) -> bool:
    return server.sql(f"SELECT count(*) FROM {name}").status_code == 200


@pytest.mark.exhaustive
def test_p10_s27_one_dataset_of_five_that_cannot_load_does_not_stop_the_others(tmp_path: Path) -> None:
    names = ("orders", "second", "third", "absent", "fifth")
    acceleration = {"enabled": True}
    datasets = [{"from": "file:orders.parquet", "name": name, "acceleration": acceleration} for name in names]
    datasets[3]["from"] = "file:absent.parquet"
    views = [{"name": "seen", "sql": "SELECT id FROM orders"}, {"name": "unseen", "sql": "FROM absent"}]

    with FlightServer(tmp_path, changes={"datasets": datasets, "views": views}, wait_ready=False) as server:

        def rows() -> list[dict[str, Any]]:
            return list(server.get("/v1/datasets", headers={"X-API-Key": K1}).json())

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
        shown = [server.get(path, headers={"X-API-Key": K1}).text for path in ("/v1/datasets", REFRESH, ABSENT)]
        assert all(str(tmp_path) not in text for text in shown)
        assert "absent.parquet" in shown[2]


def refreshed(server: Server, name: str = "orders", sql: str | None = None) -> str:
    """Ask for a refresh and return its id."""
    answer = post(server, REFRESH.replace("orders", name), json={} if sql is None else {"refresh_sql": sql})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["refresh"]["id"])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("sql", "error"),
    [
        pytest.param(
            DEAF,
            "The load was stopped after 2 s, the refresh_timeout of the dataset.",
            id="time",
        ),
        pytest.param(
            "SELECT id, repeat('a', 3000000000) AS x FROM orders", "The load needs more memory than", id="memory"
        ),
    ],
)
def test_a_refresh_sql_that_cannot_be_stopped_costs_its_refresh_only(tmp_path: Path, sql: str, error: str) -> None:
    acceleration = {"enabled": True, "refresh_timeout": "2s"}
    names = ("orders", "other")
    datasets = [{"from": "file:orders.parquet", "name": name, "acceleration": acceleration} for name in names]

    with Server(tmp_path, changes={"datasets": datasets}) as server:
        bad = refreshed(server, sql=sql)
        good = refreshed(server, "other")

        failed = wait_finished(server, bad)
        assert failed["status"] == "failed"
        assert failed["error"].startswith(error)
        assert wait_finished(server, good, "other")["status"] == "succeeded"
        assert server.rows(CHECKSUM) == OLD
        assert wait_finished(server, refreshed(server))["status"] == "succeeded"
        assert len(list((tmp_path / ".runtime/snapshots").iterdir())) == len(names)


def loaders(server: Server) -> list[int]:
    return [pid for pid, command in family(server.process.pid).items() if "loader_process" in command]


@pytest.mark.exhaustive
def test_a_stop_does_not_wait_for_a_load_that_cannot_be_stopped(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        used = {loader: cpu_s(loader) for loader in loaders(server)}
        refreshed(server, sql=DEAF)

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


@pytest.mark.exhaustive
def test_p01_health_answers_before_the_data_is_there(tmp_path: Path) -> None:
    late = ORDERS | {"from": "file:late.parquet", "acceleration": {"enabled": True, "refresh_check_interval": "1s"}}

    with Server(tmp_path, changes={"datasets": [late]}, wait_ready=False) as server:
        assert server.get("/health").text == "ok\n"
        assert server.get("/v1/ready").text == "not ready"
        # The engine may be on its way, too.
        refused = wait_for(
            lambda: next((one for one in [server.sql(CHECKSUM)] if "not_loaded" in one.text), None), "the engine"
        )
        assert refused.status_code == 503
        assert refused.headers["Retry-After"]
        write_orders(tmp_path / "late.parquet")

        wait_for(lambda: server.get("/v1/ready").status_code == 200, "the data")
        assert server.rows(CHECKSUM) == OLD


@pytest.mark.exhaustive
def test_the_last_good_snapshot_is_served_after_a_restart(ended_runtime: Path) -> None:
    (ended_runtime / "orders.parquet").write_bytes(b"")

    with Server(ended_runtime) as server:
        assert server.rows(CHECKSUM) == OLD


def test_catalog_routes(server: Server) -> None:
    headers = {"X-API-Key": K1}
    status = {row["name"]: row for row in server.get("/v1/status", headers=headers).json()}
    datasets = server.get("/v1/datasets", headers=headers).json()
    is_serve = server.mode == "serve"

    assert {name: row["status"] for name, row in status.items()} == {
        **dict.fromkeys(("http", "engine", "refresh"), "Ready"),
        "flight": "Ready" if is_serve else "Disabled",
    }
    assert status["http"]["endpoint"] == f"127.0.0.1:{server.port}"
    assert status["engine"]["endpoint"] == ("unix:engine.sock" if is_serve else "in-process")
    assert status["refresh"]["endpoint"] == ("unix:control.sock" if is_serve else "in-process")
    assert [(row["name"], row["from"], row["rows"]) for row in datasets] == [("orders", "file:orders.parquet", 1000)]
    for path, first in (("/v1/status", "name,endpoint,status"), ("/v1/datasets", "from,name,")):
        answer = server.get(f"{path}?format=csv", headers=headers)
        assert answer.headers["Content-Type"].startswith("text/csv")
        assert answer.text.startswith(first)
        assert str(server.directory) not in answer.text
        assert server.get(f"{path}?format=xml", headers=headers).status_code == 400
    assert server.get("/v1/catalogs", headers=headers).json() == [{"from": "runtime", "name": "runtime"}]
    names = server.rows("SELECT table_catalog AS c, table_schema AS s, table_name AS t FROM information_schema.tables")
    assert {(row["c"], row["s"], row["t"]) for row in names} == {
        ("runtime", "main", "orders"),
        ("runtime", "main", "big_orders"),
    }


def test_two_keys_do_not_see_each_others_sessions(server: Server) -> None:
    for sql in (
        "CREATE TEMP VIEW orders AS SELECT 666",
        "CREATE MACRO abs(x) AS 42",
        "SET VARIABLE x = 1",
        "USE memory",
    ):
        assert server.sql(sql).status_code in {400, 403}

    assert server.rows(CHECKSUM, K1) == OLD
    assert server.rows("SELECT abs(-1) AS a") == [{"a": 1}]

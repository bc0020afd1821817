import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from msgspec.structs import replace

from datasources.control import AdmittedSql, RefreshRun
from datasources.errors import AccelerationDisabledError, TimeColumnMissingError, UnknownDatasetError
from datasources.refresh.history import FORMER
from datasources.refresh.refresher import Refresher
from queryengine.manifest import SNAPSHOT_DIRECTORY, read_manifest, snapshot_path
from runtimeconf.model import DatasetConfig, MaterializedView
from tests.datasources.sources.test_files import put, put_parquet
from tests.datasources.support import (
    Start,
    accelerated,
    configure,
    declare,
    files_below,
    finished,
    meanwhile,
    served,
    settled,
    state,
)
from tests.datasources.test_refresh_runs import Slow, tick
from tests.system.harness import wait_for

# --- loading and refreshing -------------------------------------------------------------------------------------------


def test_every_dataset_is_loaded_at_start_in_the_order_of_the_yaml(tmp_path: Path, start: Start) -> None:
    put(tmp_path, "a.csv")
    put_parquet(tmp_path, "b.parquet", n=[1, 2, 3])

    once = accelerated(tmp_path, name="first", enabled=False, refresh_check_interval_s=0.05, refresh_sql="not SQL")
    refresher = start(accelerated(tmp_path, "b.parquet", name="Second"), once)
    wait_for(refresher.is_loaded, "the initial load")
    settled(refresher, "first")
    settled(refresher, "Second")

    second, first = refresher.datasets()
    assert (second.name, second.status, second.rows, second.error) == ("Second", "Ready", 3, None)
    assert (second.from_, second.acceleration_enabled) == ("file:b.parquet", True)
    snapshots = read_manifest(tmp_path / "state").snapshots
    of_second = next(snapshot for snapshot in snapshots if snapshot.dataset == "Second")
    assert second.snapshot == Path(of_second.file).stem
    assert second.refreshed_at == of_second.created_at
    assert second.bytes == of_second.size_bytes == snapshot_path(tmp_path / "state", of_second).stat().st_size
    assert (first.acceleration_enabled, first.status, first.rows) == (False, "Ready", 1)
    assert refresher._datasets["first"].due is None


def test_r01_a_refresh_replaces_old_data_by_new_and_nothing_between(tmp_path: Path, begin: Start) -> None:
    put_parquet(tmp_path, "a.parquet", version=[0] * 10_000)
    refresher = begin(accelerated(tmp_path, "a.parquet"))
    seen: set[tuple[int, int, int]] = set()
    sql = "SELECT min(version), max(version), count(*) FROM d"

    with meanwhile(lambda: seen.update(served(tmp_path, sql=sql)), pause_s=0):
        for version in range(1, 6):
            put_parquet(tmp_path, "new.parquet", version=[version] * 10_000).replace(tmp_path / "a.parquet")
            run = refresher.request_refresh("d")
            assert run.id in [other.id for other in refresher.history("d")]
            done = finished(refresher, run)
            assert (run.status, run.started_at, run.finished_at) == ("queued", None, None)
            assert (done.status, done.rows, done.error) == ("succeeded", 10_000, None)
            assert run.requested_at == done.requested_at <= str(done.started_at) <= str(done.finished_at) < "9"
            assert 0 < (done.duration_ms or 0) < 60_000
            assert served(tmp_path)[0] == (version,)
            assert len(list((tmp_path / "state" / SNAPSHOT_DIRECTORY).iterdir())) == 1

    assert seen <= {(version, version, 10_000) for version in range(6)}
    assert len(seen) >= 2


def test_a_running_refresh_reports_its_progress(tmp_path: Path, start: Start) -> None:
    def progress() -> RefreshRun:
        return refresher.history("d")[0]

    go_on = threading.Event()
    put(tmp_path, "a.csv")
    refresher = start(accelerated(tmp_path), builders=[Slow(tmp_path, [], go_on)])
    wait_for(lambda: progress().phase == "opening", "the run to open its source")
    first, second = progress(), progress()
    assert (first.status, first.bytes, first.rows) == ("running", None, None)
    assert 0 <= (-1 if first.duration_ms is None else first.duration_ms) <= (second.duration_ms or 0)
    go_on.set()
    assert settled(refresher).phase is None

    refresher.request_refresh("d", AdmittedSql("SELECT a, md5(i::VARCHAR) AS b FROM d, range(3000000) r(i)"))
    sizes = set()
    with refresher._datasets.snapshots._lock:

        def is_publishing() -> bool:
            if progress().phase == "loading":
                sizes.add(progress().bytes)
            return progress().phase == "publishing"

        wait_for(is_publishing, "all rows to be written")
    run = settled(refresher)

    assert len(sizes - {None}) > 1
    assert run.bytes == state(refresher).bytes
    assert (run.phase, run.status) == (None, "succeeded")


def test_one_runs_one_waits_and_a_third_joins_and_decides_the_one_that_waits(tmp_path: Path, start: Start) -> None:
    put(tmp_path, "a.csv", "a,b\n1,x\n2,y\n3,z\n")
    dataset = accelerated(tmp_path, refresh_sql="SELECT * FROM d WHERE a < 3")
    settled(start(dataset))
    go_on = threading.Event()
    refresher = start(dataset, builders=[Slow(tmp_path, [], go_on)])
    wait_for(lambda: refresher.history("d")[0].status == "running", "the slow run")
    running = refresher.history("d")[0]

    second = refresher.request_refresh("d", AdmittedSql("SELECT * FROM d WHERE a = 1"))
    third = refresher.request_refresh("d", AdmittedSql("SELECT * FROM d WHERE a > 1"))

    assert state(refresher).status == "Refreshing"
    assert second.id == third.id != running.id
    assert [run.status for run in refresher.history("d")[:2]] == ["queued", "running"]

    go_on.set()
    assert finished(refresher, second).rows == 2
    assert [run.status for run in refresher.history("d")] == ["succeeded"] * 3
    assert served(tmp_path) == [(2, "y"), (3, "z")]
    # The SQL of a request holds for its run only.
    finished(refresher, refresher.request_refresh("d"))
    assert served(tmp_path) == [(1, "x"), (2, "y")]


def test_a_refresh_sql_may_call_functions_of_datafusion(tmp_path: Path, start: Start) -> None:
    put(tmp_path, "a.csv", "a,b\n1,x y\n2,\n")
    refresher = start(accelerated(tmp_path, refresh_sql="SELECT a, initcap(nvl(b, 'none')) AS b FROM d"))

    assert settled(refresher).error is None
    assert served(tmp_path) == [(1, "X Y"), (2, "None")]


def test_r15_a_refresh_that_the_declaration_does_not_allow_is_refused(tmp_path: Path, begin: Start) -> None:
    put(tmp_path, "a.csv")
    refresher = begin(accelerated(tmp_path, enabled=False), accelerated(tmp_path, name="Orders"))

    with pytest.raises(UnknownDatasetError, match=r"^Dataset nope not found\.$"):
        refresher.request_refresh("nope")
    with pytest.raises(UnknownDatasetError):
        refresher.history("nope")
    with pytest.raises(AccelerationDisabledError, match=r"^Dataset d does not have acceleration enabled\.$"):
        refresher.request_refresh("d", AdmittedSql("not even SQL"))
    with pytest.raises(TimeColumnMissingError, match=r"^Dataset Orders has no time_column"):
        refresher.request_refresh("orders", mode="append")

    assert [len(refresher.history(name)) for name in ("d", "Orders")] == [1, 1]


# --- trouble ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:-10]), id="R06 truncated"),
        pytest.param(lambda path: path.write_bytes(b"\0" * 1000), id="R06 bad magic"),
        pytest.param(Path.unlink, id="R08 gone"),
    ],
)
def test_a_source_that_fails_keeps_the_last_good_data_and_recovers(
    tmp_path: Path, begin: Start, spoil: Callable[[Path], object]
) -> None:
    path = put_parquet(tmp_path, "a.parquet", n=[1])
    refresher = begin(accelerated(tmp_path, "a.parquet", refresh_check_interval_s=0.1))

    put_parquet(tmp_path, "good.parquet", n=[2])
    spoil(path)
    failed = wait_for(
        lambda: next((run for run in refresher.history("d") if run.status == "failed"), None), "the failure"
    )

    assert "'a.parquet'" in str(failed.error)
    assert failed.rows is None
    assert "'a.parquet'" in str(state(refresher).error)
    assert state(refresher).status in {"Error", "Refreshing"}
    assert refresher.is_loaded()
    assert served(tmp_path) == [(1,)]

    (tmp_path / "good.parquet").replace(path)
    wait_for(lambda: served(tmp_path) == [(2,)], "the recovery")
    wait_for(lambda: state(refresher).error is None, "the recovery to show")


@pytest.mark.parametrize("times", [4, pytest.param(30, marks=pytest.mark.exhaustive)])
def test_r09_a_source_that_is_replaced_or_overwritten_is_never_mixed(tmp_path: Path, begin: Start, times: int) -> None:
    def content(version: int) -> bytes:
        made = put_parquet(tmp_path, "made.parquet", version=[version] * 20_000, n=range(20_000))
        return made.read_bytes()

    path = tmp_path / "a.parquet"
    path.write_bytes(content(0))
    refresher = begin(accelerated(tmp_path, "a.parquet"))
    outcomes = set()
    for version in range(1, times + 1):
        new = content(version)
        run = refresher.request_refresh("d")
        wait_for(lambda: refresher.history("d")[0].started_at, "the scan")
        if version % 2:
            path.write_bytes(new)
        else:
            (tmp_path / "made.parquet").replace(path)
        outcomes.add(finished(refresher, run).status)

        ((least, most, count),) = served(tmp_path, sql="SELECT min(version), max(version), count(*) FROM d")
        assert least == most <= version
        assert count == 20_000
    assert outcomes <= {"succeeded", "failed"}
    assert finished(refresher, refresher.request_refresh("d")).status == "succeeded"
    assert served(tmp_path)[0][0] == times


def test_p10_one_failing_dataset_of_five_does_not_block_the_others(
    tmp_path: Path, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["a", "b", "c", "d", "e"]
    for name in names:
        put(tmp_path, f"{name}.csv")
    put(tmp_path, "b.csv", "")

    refresher = start(*(accelerated(tmp_path, f"{name}.csv", name=name) for name in names))
    for name in names:
        settled(refresher, name)

    assert [state(refresher, name).status for name in names] == ["Ready", "Error", "Ready", "Ready", "Ready"]
    manifest = read_manifest(tmp_path / "state")
    assert {snapshot.dataset for snapshot in manifest.snapshots} == {"a", "c", "d", "e"}
    assert manifest.generation == 4  # two threads publish, and lose nothing of each other
    assert not refresher.is_loaded()
    assert state(refresher, "b").error == "'b.csv' is empty (0 bytes)."
    assert "Dataset b cannot be refreshed: 'b.csv' is empty (0 bytes)." in caplog.text


def test_readiness_waits_for_required_datasets_until_they_are_loaded_or_tried(tmp_path: Path, start: Start) -> None:
    put(tmp_path, "a.csv")
    good = accelerated(tmp_path, "a.csv", name="good")
    missing = accelerated(tmp_path, "missing.csv", name="missing")
    optional = replace(missing, name="optional", required_for_ready=False)
    view = DatasetConfig(
        name="view", from_="view:view", connector="view", view=MaterializedView(sql="FROM missing", reads=("missing",))
    )

    def waiting_for(ready_state: str) -> tuple[str, ...]:
        refresher = start(good, missing, optional, view, ready_state=ready_state)
        for name in ("good", "missing", "optional"):
            settled(refresher, name)
        return refresher.waiting_for()

    assert waiting_for("on_load") == ("missing", "view")
    assert waiting_for("on_registered") == ()


def test_a_reload_that_waits_for_a_dataset_tries_it_again(tmp_path: Path, begin: Start) -> None:
    missing = accelerated(tmp_path, "missing.csv", name="missing")
    former = begin(missing, ready_state="on_registered")
    assert (former.waiting_for(), state(former, "missing").status) == ((), "Error")

    former._finish(60)
    new = Refresher(configure(tmp_path, missing, ready_state="on_load"), predecessor=former)

    assert (new.waiting_for(), state(new, "missing").status) == (("missing",), "Initializing")


def test_readiness_waits_for_the_first_try(tmp_path: Path) -> None:
    put(tmp_path, "a.csv")
    datasets = accelerated(tmp_path, "a.csv", name="a"), accelerated(tmp_path, "missing.csv", name="b")

    (tmp_path / "state").mkdir()
    unstarted = Refresher(configure(tmp_path, *datasets, ready_state="on_registered"))

    assert (unstarted.waiting_for(), unstarted.is_loaded()) == (("a", "b"), False)


@pytest.mark.parametrize("enabled", [True, False])
def test_a_dataset_that_was_never_loaded_is_tried_again_without_an_interval(
    tmp_path: Path, begin: Start, clock: list[float], enabled: bool
) -> None:
    refresher = begin(accelerated(tmp_path, enabled=enabled), now=lambda: clock[0])
    assert (state(refresher).status, refresher.is_loaded()) == ("Error", False)

    put(tmp_path, "a.csv")
    tick(refresher, clock, 2.0)

    wait_for(refresher.is_loaded, "the load")
    settled(refresher)
    assert (len(refresher.history("d")), refresher._datasets["d"].due) == (2, None)


@pytest.mark.parametrize("on_schema_change", ["fail", "accept"])
def test_changed_columns_are_refused_or_accepted_as_the_yaml_says(
    tmp_path: Path, begin: Start, on_schema_change: Any
) -> None:
    put(tmp_path, "a.csv")
    refresher = begin(declare(tmp_path, "a.csv", on_schema_change=on_schema_change))
    put(tmp_path, "a.csv", "a,c\n7,x\n")

    run = finished(refresher, refresher.request_refresh("d"))

    if on_schema_change == "fail":
        assert (run.status, served(tmp_path)) == ("failed", [(1, "x")])
        assert "b is gone, c is new" in str(run.error)
    else:
        assert (run.status, run.error, served(tmp_path)) == ("succeeded", None, [(7, "x")])
    assert len(list((tmp_path / "state" / SNAPSHOT_DIRECTORY).iterdir())) == 1


def test_an_unexpected_error_fails_one_run_and_is_logged(
    refresher: Refresher, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(duckdb, "connect", lambda *_args, **_more: 1 / 0)
        run = finished(refresher, refresher.request_refresh("d"))

    assert run.error == "The refresh failed; see the runtime log."
    assert "ZeroDivisionError" in caplog.text
    assert finished(refresher, refresher.request_refresh("d")).status == "succeeded"


# --- loading once -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skip_unchanged", [True, False])
def test_each_is_loaded_once_and_nothing_is_scheduled(tmp_path: Path, skip_unchanged: bool) -> None:
    put(tmp_path, "a.csv")
    (tmp_path / "state").mkdir()
    datasets = [
        accelerated(tmp_path, name="Good", refresh_check_interval_s=0.1),
        accelerated(tmp_path, "absent.csv", name="bad", refresh_check_interval_s=0.1),
        accelerated(tmp_path, name="other", enabled=False),
    ]

    for is_again in (False, True):
        refresher = Refresher(configure(tmp_path, *datasets))
        (good, first), (bad, second) = refresher.load_once(["good", "BAD", "Good"], skip_unchanged=skip_unchanged)
        assert refresher.stop(30)

        assert (good, first.status, first.rows) == ("Good", "succeeded", 1)
        assert first.unchanged is (is_again and skip_unchanged)
        assert (bad, second.status) == ("bad", "failed")
        assert [len(refresher.history(name)) for name in ("good", "bad", "other")] == [1 + is_again, 1 + is_again, 0]


def test_loading_once_what_is_unknown_loads_nothing_and_stops(tmp_path: Path) -> None:
    put(tmp_path, "a.csv")
    (tmp_path / "state").mkdir()
    refresher = Refresher(configure(tmp_path, accelerated(tmp_path)))

    with pytest.raises(UnknownDatasetError):
        refresher.load_once(["d", "nope"], skip_unchanged=True)

    assert refresher.history("d") == ()
    assert [(state.status, state.rows) for state in refresher.datasets()] == [("Initializing", None)]
    assert refresher.stop(1)


# --- stop and restart -------------------------------------------------------------------------------------------------


def test_a_stop_interrupts_the_load_and_lists_its_run_as_failed(tmp_path: Path, refresher: Refresher) -> None:
    began = time.monotonic()
    refresher.request_refresh("d", AdmittedSql("SELECT count(*) AS n FROM d, range(100000000000) r"))
    wait_for(lambda: refresher.history("d")[0].status == "running", "the slow run")
    refresher.request_refresh("d")
    assert refresher.stop(30)

    assert time.monotonic() - began < 30
    assert [(run.status, run.error) for run in refresher.history("d")] == [
        ("failed", "interrupted"),
        ("failed", "interrupted"),
        ("succeeded", None),
    ]
    assert all(run.finished_at for run in refresher.history("d"))
    assert len(list((tmp_path / "state" / SNAPSHOT_DIRECTORY).iterdir())) == 1


def test_a_restart_serves_the_last_good_data_at_once_and_refreshes_behind_it(
    tmp_path: Path, start: Start, refresher: Refresher
) -> None:
    (tmp_path / "a.csv").unlink()

    second = start(accelerated(tmp_path))
    assert second.is_loaded()
    assert served(tmp_path) == [(1, "x")]
    settled(second)

    assert state(second).status == "Error"
    assert state(second).rows == 1
    assert [run.status for run in second.history("d")] == ["failed", "succeeded"]
    put(tmp_path, "a.csv", "a,b\n2,y\n")
    settled(start(accelerated(tmp_path)))
    assert served(tmp_path) == [(2, "y")]


def test_r21_many_refreshes_leave_no_descriptor_thread_or_file(tmp_path: Path, refresher: Refresher) -> None:
    def names() -> list[str]:
        return [name.rsplit("-", 1)[0] for name in files_below(tmp_path)]

    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir())) + threading.active_count()

    before, files = count(), names()
    for _ in range(20):
        finished(refresher, refresher.request_refresh("d"))

    assert names() == files
    assert count() < before + 10, "one per refresh would be 20; other tests of this process may add or close some"


# --- another configuration --------------------------------------------------------------------------------------------


def test_a_successor_keeps_what_did_not_change_and_takes_over_what_was_requested(tmp_path: Path, begin: Start) -> None:
    for name in ("a", "b", "c"):
        put(tmp_path, f"{name}.csv", "a,b\n1,x\n2,y\n")
    same, gone, other = (accelerated(tmp_path, f"{name}.csv", name=name) for name in ("a", "b", "c"))
    former = begin(same, gone, other)
    go_on = threading.Event()
    slow = former.replace(configure(tmp_path, same, gone, other), [Slow(tmp_path, [], go_on)], 60)
    assert [len(slow.history(name)) for name in "abc"] == [1, 1, 1]

    running = slow.request_refresh("a")
    wait_for(lambda: slow.history("a")[0].status == "running", "the slow run")
    waiting = [slow.request_refresh(name, AdmittedSql(f"SELECT * FROM {name} WHERE a = 1")) for name in ("a", "b", "c")]
    threading.Timer(0.2, go_on.set).start()
    changed = accelerated(tmp_path, "c.csv", name="C", refresh_sql="SELECT b FROM C")
    new = slow.replace(configure(tmp_path, same, changed), (), 60)

    try:
        assert finished(new, running, "a").status == "succeeded"
        assert finished(new, waiting[0], "a").rows == 1
        assert finished(new, waiting[2], "C").rows == 2  # The SQL of the request was for another declaration.
        assert served(tmp_path, "a") == [(1, "x")]
        with pytest.raises(UnknownDatasetError):
            new.request_refresh("b")
        assert "b" in [one.dataset for one in read_manifest(tmp_path / "state").snapshots]
        new.commit()
        assert "b" not in [one.dataset for one in read_manifest(tmp_path / "state").snapshots]
        assert served(tmp_path, "C") == [("x",), ("y",)]
        passed_on = slow.request_refresh("a")
        assert finished(new, passed_on, "a").status == "succeeded"
    finally:
        assert new.stop(30)


def test_what_runs_tell_about_data_that_is_declared_otherwise_is_forgotten(tmp_path: Path, begin: Start) -> None:
    put(tmp_path, "d.csv", "a,b\n1,x\n2,secret\n")
    whole, narrow = (
        accelerated(tmp_path, "d.csv"),
        accelerated(tmp_path, "d.csv", refresh_sql="SELECT a FROM d LIMIT 1"),
    )
    former = begin(whole)
    failed = finished(former, former.request_refresh("d", AdmittedSql("SELECT b::INTEGER FROM d")))
    assert failed.error is not None
    ids = {run.id: run.rows for run in former.history("d")}

    refused = former.replace(configure(tmp_path, narrow), (), 60)
    settled(refused)
    again = refused.replace(configure(tmp_path, whole), (), 60)
    assert {run.id: run.rows for run in again.history("d")}.items() >= {**ids, refused.history("d")[0].id: None}.items()
    new = again.replace(configure(tmp_path, narrow), (), 60)
    settled(new)
    assert not [run for run in new.history("d") if run.id in ids and run.rows]
    new.commit()
    told = {run.id: (run.rows, run.bytes, run.error) for run in new.history("d")}
    assert told.pop(failed.id) == (None, None, FORMER)
    assert [told[id_] for id_ in ids if id_ in told] == [(None, None, None)]
    assert [rows for id_, (rows, *_) in told.items() if id_ not in ids and rows] == [1]
    assert new.stop(30)

    assert [run.rows for run in begin(whole).history("d") if run.rows] == [2]


def test_a_load_that_does_not_finish_in_time_is_interrupted_and_loaded_again(tmp_path: Path, begin: Start) -> None:
    put(tmp_path, "a.csv")
    dataset = accelerated(tmp_path)
    former = begin(dataset)
    go_on = threading.Event()
    slow = former.replace(configure(tmp_path, dataset), [Slow(tmp_path, [], go_on)], 60)
    running = slow.request_refresh("d")
    wait_for(lambda: slow.history("d")[0].status == "running", "the slow run")

    new = slow.replace(configure(tmp_path, dataset), (), 0.05)

    try:
        assert finished(new, running).status == "failed"
        wait_for(lambda: state(new).status == "Ready", "the load that makes up for it")
    finally:
        assert new.stop(30)

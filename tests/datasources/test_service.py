import os
import shutil
import signal
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from datasources.control import AdmittedSql
from datasources.errors import AccelerationDisabledError, DatasetsUnavailableError, UnknownDatasetError
from datasources.refresh import control_socket, refresher, schedule
from datasources.refresh import service as module
from datasources.refresh.control_socket import SOCKET_NAME, ControlClient
from datasources.refresh.loader import LoaderProcess
from datasources.refresh.service import DatasetService
from datasources.snapshots.snapshot import Builder
from datasources.state import get_datasets, set_datasets, start_on_demand
from queryengine.manifest import MANIFEST_NAME, SNAPSHOT_DIRECTORY, ManifestError, read_manifest
from runtimeconf.model import RuntimeConfig
from system.errors import StateDirectoryError
from system.lock import LOCK_NAME, StateLock
from system.process_usage import children
from tests.datasources.sources.test_files import put
from tests.datasources.support import accelerated, builder, configure, declare, finished, served
from tests.datasources.test_snapshot import flip
from tests.system.harness import wait_for

#: Starts services over the state directory of a test: see the fixture `start`.
Start = Callable[..., DatasetService]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start services over the state directory of the test; all are stopped at the end."""
    started: list[DatasetService] = []

    def start_one(
        config: RuntimeConfig | None = None, *, exclusive: bool = True, builders: Sequence[Builder] = ()
    ) -> DatasetService:
        declared = config or configure(tmp_path, declare(tmp_path, "a.csv"))
        service = DatasetService(declared, exclusive=exclusive, builders=builders)
        started.append(service)
        service.start()
        return service

    yield start_one
    for service in started:
        service.stop(30)


@contextmanager
def loaders_stopped() -> Iterator[None]:
    """Let no load end meanwhile."""
    pids = [pid for pid in children(os.getpid()) if b"loader_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.fixture
def service(tmp_path: Path, start: Start) -> DatasetService:
    """A service that has loaded the dataset `d` from `a.csv`."""
    put(tmp_path, "a.csv")
    started = start()
    wait_for(started.is_loaded, "the load")
    return started


def test_a_service_makes_its_directory_loads_and_answers(tmp_path: Path, service: DatasetService) -> None:
    assert [state.name for state in service.datasets()] == ["d"]
    assert served(tmp_path) == [(1, "x")]
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    for path in (tmp_path / "state").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_runtime_without_datasets_is_loaded_at_once(tmp_path: Path, start: Start) -> None:
    service = start(configure(tmp_path))

    assert service.is_loaded()
    assert service.datasets() == ()


def test_a_client_asks_the_service_and_after_a_stop_nobody_answers_and_the_directory_is_free(
    tmp_path: Path, start: Start
) -> None:
    put(tmp_path, "a.csv")
    client = ControlClient(tmp_path / "state")
    assert not client.is_loaded()
    with pytest.raises(DatasetsUnavailableError):
        client.datasets()

    others = set(threading.enumerate())
    service = start()
    wait_for(lambda: service.is_loaded() and client.is_loaded(), "the load")
    assert [state.name for state in client.datasets()] == ["d"]

    service.stop(30)
    for control in (service, client):
        with pytest.raises(DatasetsUnavailableError):
            control.datasets()
        assert control.is_loaded()
    assert not (tmp_path / "state" / SOCKET_NAME).exists()
    left = {thread.name for thread in set(threading.enumerate()) - others}
    assert left.isdisjoint({"refresher", "control-server"})
    assert start().is_loaded()
    assert client.datasets()[0].rows == 1


def test_r14_a_second_exclusive_runtime_is_refused_by_the_holder_s_name(
    service: DatasetService, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_START_WAIT_S", 0.2)

    with pytest.raises(StateDirectoryError, match=f"in use by process {os.getpid()}: stop that runtime first"):
        start()

    finished(service, service.request_refresh("d"))
    assert service.datasets()[0].status == "Ready"


def test_a_start_waits_for_an_ending_predecessor(tmp_path: Path, start: Start) -> None:
    put(tmp_path, "a.csv")
    first = start()
    threading.Timer(0.3, first.stop, [30]).start()

    second = start()

    wait_for(second.is_loaded, "the load")


def test_a_failed_start_releases_the_lock(tmp_path: Path, start: Start) -> None:
    state_dir = tmp_path / ("long" * 30)

    with pytest.raises(StateDirectoryError, match="The control socket cannot be created"):
        start(replace(configure(tmp_path), state_dir=state_dir))

    lock = StateLock(state_dir)
    assert lock.acquire()
    lock.release()


@pytest.fixture
def watchful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have losses noticed and loads tried again soon."""
    monkeypatch.setattr(refresher, "POLL_S", 0.02)
    monkeypatch.setattr(schedule, "WITHOUT_DATA", replace(schedule.WITHOUT_DATA, first_s=0.02))


@pytest.mark.usefixtures("watchful")
@pytest.mark.parametrize("enabled", [True, False], ids=["accelerated", "read once"])
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(Path.unlink, id="deleted"),
        pytest.param(lambda path: os.truncate(path, 4096), id="truncated"),
        pytest.param(lambda path: flip(path, path.stat().st_size // 2), id="overwritten"),
        # In one step: otherwise the next load may begin in between.
        pytest.param(lambda path: path.parent.rename(path.parents[2] / "gone"), id="its directory is gone"),
    ],
)
def test_r18_a_lost_snapshot_is_loaded_again(
    tmp_path: Path, start: Start, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], object], enabled: bool
) -> None:
    put(tmp_path, "a.csv")
    service = start(configure(tmp_path, accelerated(tmp_path, enabled=enabled)))
    wait_for(lambda: service.datasets()[0].status == "Ready", "the load")
    (before,) = read_manifest(tmp_path / "state").snapshots

    damage(tmp_path / "state" / SNAPSHOT_DIRECTORY / before.file)

    wait_for(lambda: service.datasets()[0].snapshot not in {Path(before.file).stem, None}, "another snapshot")
    wait_for(lambda: service.datasets()[0].status == "Ready", "the end of the load")
    assert served(tmp_path) == [(1, "x")]
    assert "It will be reloaded from the source." in caplog.text


@pytest.mark.usefixtures("watchful")
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: flip(path, 10)], ids=["deleted", "overwritten"])
def test_r18_a_manifest_that_is_lost_is_written_again(
    tmp_path: Path, start: Start, damage: Callable[[Path], object]
) -> None:
    put(tmp_path, "a.csv")
    service = start()
    wait_for(lambda: service.datasets()[0].status == "Ready", "the load")
    whole = read_manifest(tmp_path / "state")

    damage(tmp_path / "state" / MANIFEST_NAME)

    def is_back() -> bool:
        with suppress(ManifestError):
            return read_manifest(tmp_path / "state").snapshots == whole.snapshots
        return False

    wait_for(is_back, "the manifest")
    assert service.is_loaded()


@pytest.mark.usefixtures("watchful")
def test_r18_a_snapshot_that_is_lost_with_its_source_is_missed_until_that_returns(tmp_path: Path, start: Start) -> None:
    put(tmp_path, "a.csv")
    holder, follower = start(), start(exclusive=False)
    wait_for(lambda: follower.is_loaded() and follower.datasets()[0].status == "Ready", "the load")
    (before,) = read_manifest(tmp_path / "state").snapshots
    (tmp_path / "a.csv").unlink()

    (tmp_path / "state" / SNAPSHOT_DIRECTORY / before.file).unlink()

    wait_for(lambda: not (holder.is_loaded() or follower.is_loaded()), "the loss to be known")
    wait_for(lambda: follower.datasets()[0].status == "Error", "the loss to be told")
    assert read_manifest(tmp_path / "state").snapshots == ()

    put(tmp_path, "a.csv", "a,b\n2,back\n")
    wait_for(lambda: holder.is_loaded() and follower.is_loaded(), "the source to be back")
    assert served(tmp_path) == [(2, "back")]


# --- followers --------------------------------------------------------------------------------------------------------


def test_a_follower_asks_the_holder_and_takes_over_when_that_stops(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "a.csv")
    put(tmp_path, "b.csv")
    config = configure(tmp_path, accelerated(tmp_path), accelerated(tmp_path, "b.csv", name="once", enabled=False))
    monkeypatch.setattr(module, "_POLL_S", 0.1)
    holder, follower = start(config), start(config, exclusive=False)
    wait_for(follower.is_loaded, "the load")
    put(tmp_path, "a.csv", "a,b\n2,y\n")

    run = follower.request_refresh("D")
    assert run.id in [other.id for other in holder.history("d")]
    finished(follower, follower.request_refresh("d"))

    wait_for(lambda: follower.datasets() == holder.datasets(), "the same answer")
    assert follower.history("d") == holder.history("d")
    assert follower.history("d")[0].status == "succeeded"
    with pytest.raises(UnknownDatasetError):
        follower.history("nope")
    with pytest.raises(AccelerationDisabledError):
        follower.request_refresh("once")

    holder.stop(30)
    put(tmp_path, "a.csv", "a,b\n3,z\n")

    def answers() -> bool:
        with suppress(DatasetsUnavailableError):
            return follower.history("d")[0].finished_at is not None
        return False

    wait_for(answers, "the follower to take over")
    finished(follower, follower.request_refresh("d"))

    assert follower.is_loaded()
    assert served(tmp_path) == [(3, "z")]


def test_r12_twenty_requests_through_several_processes_need_two_reads_at_most(tmp_path: Path, start: Start) -> None:
    put(tmp_path, "a.csv")
    with closing(LoaderProcess(builder(tmp_path))) as process:
        services = [start(exclusive=False, builders=[process]) for _ in range(3)]
        for service in services:
            wait_for(service.is_loaded, "the load")
        assert [service._lock.held for service in services] == [True, False, False]
        wait_for(lambda: services[0].history("d")[0].finished_at, "the load's end")
        put(tmp_path, "a.csv", "a,b\n2,newest\n")
        process.start()

        with loaders_stopped(), ThreadPoolExecutor(20) as pool:
            runs = list(pool.map(lambda number: services[number % 3].request_refresh("d"), range(20)))
        wait_for(lambda: all(run.finished_at for run in services[0].history("d")), "the end of all runs")

    assert len({run.id for run in runs}) <= 2
    assert len(services[0].history("d")) <= 3
    assert served(tmp_path) == [(2, "newest")]


def test_a_follower_of_a_silent_holder_takes_over_as_soon_as_it_can(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_START_WAIT_S", 0.2)
    monkeypatch.setattr(module, "_POLL_S", 0.05)
    put(tmp_path, "a.csv")
    (tmp_path / "state").mkdir(mode=0o700)
    lock = StateLock(tmp_path / "state")
    lock.acquire()
    follower = start(exclusive=False)
    assert not follower.is_loaded()
    with pytest.raises(DatasetsUnavailableError):
        follower.datasets()

    obstacle = put(tmp_path, f"state/{SOCKET_NAME}/file", b"")
    lock.release()
    wait_for(lambda: "This process cannot refresh the data" in caplog.text, "a try that fails")
    shutil.rmtree(obstacle.parent)

    wait_for(follower.is_loaded, "the try that succeeds")


# --- hard ends --------------------------------------------------------------------------------------------------------


def test_a_load_that_does_not_end_keeps_the_lock(service: DatasetService, caplog: pytest.LogCaptureFixture) -> None:
    service.request_refresh("d", AdmittedSql("SELECT count(*) AS n FROM d, range(100000000000) r"))
    wait_for(lambda: service.datasets()[0].status == "Refreshing", "the slow load")

    service.stop(0)

    assert service._lock.held
    assert "A load did not end in time" in caplog.text


def test_loading_once_locks_the_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "a.csv")
    monkeypatch.setattr(module, "_START_WAIT_S", 0.1)
    config = configure(tmp_path, declare(tmp_path, "a.csv"))
    ((_, run),) = module.load_once(config, [], [])
    assert (run.status, run.rows) == ("succeeded", 1)
    lock = StateLock(config.state_dir)
    assert lock.acquire()

    with pytest.raises(StateDirectoryError, match=rf"in use by process {os.getpid()}: use .*command `refresh`"):
        module.load_once(config, ["d"], [])
    with pytest.raises(UnknownDatasetError):
        module.load_once(config, ["nope"], [])

    lock.release()
    ((name, run),) = module.load_once(config, ["D"], [])
    assert (name, run.status, run.unchanged) == ("d", "succeeded", False)


@pytest.mark.parametrize("exclusive", [True, False])
def test_deleted_files_of_the_state_directory_come_back(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch, exclusive: bool
) -> None:
    monkeypatch.setattr(module, "_POLL_S", 0.05)
    monkeypatch.setattr(control_socket, "_POLL_S", 0.05)
    put(tmp_path, "a.csv")
    state_dir = tmp_path / "state"
    client = ControlClient(state_dir)
    service = start(exclusive=exclusive)
    wait_for(service.is_loaded, "the load")

    def is_whole() -> bool:
        with suppress(DatasetsUnavailableError):
            return all(state.rows for state in client.datasets()) and StateLock(state_dir).is_taken()
        return False

    for swept in (SOCKET_NAME, LOCK_NAME):
        (state_dir / swept).unlink()
        wait_for(is_whole, f"another {swept}")
        assert not StateLock(state_dir).acquire()

    def takes_its_place() -> bool:
        (state_dir / SOCKET_NAME).unlink(missing_ok=True)
        with suppress(FileExistsError):  # The service was faster.
            (state_dir / SOCKET_NAME).mkdir()
            return True
        return False

    wait_for(takes_its_place, "a directory in the place of the socket")
    assert not is_whole()
    (state_dir / SOCKET_NAME).rmdir()
    wait_for(is_whole, "another socket")

    state_dir.rename(tmp_path / "gone")  # at once: `rmtree` would race with the files that come back

    wait_for(is_whole, "another state directory")
    assert served(tmp_path) == [(1, "x")]


def test_a_control_is_started_on_demand_and_not_again_after_it_was_removed(tmp_path: Path) -> None:
    control = DatasetService(configure(tmp_path), exclusive=False)
    start_on_demand(lambda: set_datasets(control))

    assert get_datasets() is get_datasets() is control
    set_datasets(None)
    with pytest.raises(DatasetsUnavailableError):
        get_datasets()

import threading
import time
from pathlib import Path

import pytest

from datasources.control import AdmittedSql
from datasources.errors import UnknownDatasetError
from datasources.refresh.refresher import Refresher
from queryengine.manifest import SNAPSHOT_DIRECTORY
from tests.datasources.sources.test_files import put
from tests.datasources.support import (
    Start,
    accelerated,
    configure,
    files_below,
    finished,
    served,
    settled,
    state,
    wait_for,
)

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


def test_loading_once_what_is_unknown_loads_nothing(tmp_path: Path) -> None:
    put(tmp_path, "a.csv")
    (tmp_path / "state").mkdir()
    refresher = Refresher(configure(tmp_path, accelerated(tmp_path)))

    with pytest.raises(UnknownDatasetError):
        refresher.load_once(["d", "nope"], skip_unchanged=True)

    assert refresher.history("d") == ()
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


def test_a_refresher_that_was_never_started_stops(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()

    refresher = Refresher(configure(tmp_path, accelerated(tmp_path)))

    assert [(state.status, state.rows) for state in refresher.datasets()] == [("Initializing", None)]
    assert refresher.stop(1)

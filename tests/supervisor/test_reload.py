"""The supervisor's side of a reload: reports of processes, and the one in the state directory."""

import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from authkeys.access import Access
from datasources.errors import DatasetError
from datasources.refresh.loader import LoaderProcess
from datasources.refresh.service import DatasetService
from datasources.snapshots.snapshot import SnapshotBuilder
from runtimeconf import handover
from runtimeconf.model import RuntimeConfig
from supervisor import preparation, refresh, reload
from supervisor.handovers import Checked, Handovers, Reports
from supervisor.hot_reload import report
from supervisor.process_tree import PartCommand, Supervisor
from supervisor.reload import Reloads, Report
from system.lock import SUPERVISOR_LOCK_NAME, StateLock


@pytest.fixture
def reloads(tmp_path: Path) -> Reloads:
    config = RuntimeConfig(file=tmp_path / "runtime.yaml", state_dir=tmp_path)
    checked = Checked(config, Access(key_set=None), {})
    supervisor = Supervisor([], stop_order=[], shutdown_timeout_s=1.0)
    return Reloads(supervisor, Handovers(checked, listener=0), checked, environment=0)


def test_a_supervisor_that_cannot_be_seen_is_not_called_absent(tmp_path: Path) -> None:
    (tmp_path / "runtime.yaml").write_text("{}\n")
    (tmp_path / ".runtime").mkdir()
    lock = StateLock(tmp_path / ".runtime", SUPERVISOR_LOCK_NAME)
    assert lock.acquire()
    (tmp_path / ".runtime" / SUPERVISOR_LOCK_NAME).write_text("1\n")  # as seen from another container

    with pytest.raises(CommandError, match="cannot be seen from here: send it SIGHUP"):
        call_command("reload", config=tmp_path / "runtime.yaml")
    lock.release()


def test_a_report_that_cannot_be_written_leaves_none(tmp_path: Path) -> None:
    Report(state="done", began=1.0).write(tmp_path)
    (tmp_path / "reload.json.tmp").symlink_to("elsewhere")

    Report(state="failed", began=2.0).write(tmp_path)

    assert Report.read(tmp_path) is None


def test_each_living_process_counts_once_and_for_its_configuration() -> None:
    reports = Reports()
    reports.expect(3)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    report(reports.writer, 2)
    report(reports.writer, 3)
    os.write(reports.writer, f"3 {gone.pid} done\n3 1 no\n3 1 no\n".encode())
    gone.wait()
    assert (reports.count(), reports.failures(), reports.count()) == (0, ["no"], 1)

    report(reports.writer, 3)
    assert (reports.failures(), reports.count()) == ([], 1)

    report(reports.writer, 4)
    reports.expect(4)
    assert (reports.failures(), reports.count()) == ([], 0)


def test_a_check_that_does_not_end_is_given_up(
    reloads: Reloads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeping = PartCommand(name="reload", arguments=[sys.executable, "-c", "import time; time.sleep(600)"], environ={})
    monkeypatch.setattr(preparation, "command", lambda *_: sleeping)
    monkeypatch.setattr(reload, "_PREPARE_S", 0.0)
    reloads.ask()
    assert reloads.advance() == math.inf

    assert reloads.supervisor.parts == []
    said = Report.read(tmp_path)
    assert said is not None
    assert (said.state, said.errors) == ("failed", ["the configuration and the secrets could not be read within 0 s"])


def test_refresh_that_fails_in_a_reload_does_not_end_as_a_part_that_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise DatasetError("A load has not ended.")

    config = RuntimeConfig(file=tmp_path / "runtime.yaml", state_dir=tmp_path)
    offering = handover.Handover.of(config, {})
    offering.offer(2, config, {"environ": {}})
    for name in ("start", "replace"):
        monkeypatch.setattr(DatasetService, name, fail if name == "replace" else lambda _: None)
    monkeypatch.setattr(LoaderProcess, "start", lambda _: None)
    monkeypatch.setattr(refresh, "_give_way", lambda: None)
    monkeypatch.setattr(refresh, "StopSignal", threading.Event)
    monkeypatch.setattr(handover, "_live", offering)

    with pytest.raises(SystemExit) as ended:
        refresh._refresh(config, {"reports": -1}, [LoaderProcess(SnapshotBuilder.of(config))])

    assert ended.value.code == 1


def test_refresh_that_is_restarted_after_a_reload_has_the_environment_of_the_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped:
        def wait(self) -> int:
            return signal.SIGTERM

    for name in ("start", "stop"):
        monkeypatch.setattr(DatasetService, name, lambda *_: None)
    monkeypatch.setattr(LoaderProcess, "start", lambda _: None)
    monkeypatch.setattr(refresh, "_give_way", lambda: None)
    monkeypatch.setattr(refresh, "StopSignal", Stopped)
    monkeypatch.setenv("HTTPS_PROXY", "http://former")
    config = RuntimeConfig(file=tmp_path / "runtime.yaml", state_dir=tmp_path)

    refresh.serve(config, {"environ": {"HTTPS_PROXY": "http://proxy"}})

    assert os.environ["HTTPS_PROXY"] == "http://proxy"

"""What `doctor` says of the runtime that runs on the state directory."""

import os
import signal
import socket
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from datasources.control import DatasetState
from datasources.errors import DatasetError, SnapshotError, SourceError, not_written
from datasources.loading.loading_engine import TOO_LARGE
from doctor import running
from doctor.findings import Finding
from runtimeconf.loader import load
from system.lock import SUPERVISOR_LOCK_NAME, StateLock
from tests.doctor.examining import KEYED, SMALL, examine, shown, write
from tests.system.harness import Server, run_program, wait_for
from tests.system.processes import is_stopped, part, send

STATE = DatasetState(
    from_="", name="d", acceleration_enabled=True, status="Error", rows=1, refreshed_at=None, snapshot=None,
    error="No.", checked_at=None, next_refresh_at=None, age_s=400, bytes=1,
)  # fmt: skip


def doctor(server: Server) -> list[Finding]:
    """Return what is found. The runtime itself changes its files meanwhile."""
    return list(running.check(running.find(server.directory / ".runtime"), load(server.file, {})))


@pytest.mark.exhaustive
def test_a_runtime_through_its_days(tmp_path: Path) -> None:
    text = {"acceleration": {"enabled": True, "refresh_check_interval": "1h"}}
    dataset = {"from": "file:orders.parquet", "name": "orders", **text}
    with Server(tmp_path, changes={"datasets": [dataset], "views": []}) as server:
        assert shown(doctor(server)) == [
            "ok runtime: It is ready.",
            "ok runtime: All of its datasets are loaded and current.",
        ]
        whole = run_program("manage.py", "doctor", "--config", str(server.file))
        assert f"the running runtime listens on 127.0.0.1:{server.port}." in whole.stdout
        assert whole.returncode == 0, whole.stdout

        os.utime(server.file)
        changed = "note runtime: The configuration file has changed since the runtime read it. Run `querykeep reload`."
        assert changed in shown(doctor(server))
        assert run_program("manage.py", "reload", "--config", str(server.file)).returncode == 0
        assert changed not in shown(doctor(server))

        good = server.file.read_text()
        server.file.write_text(yaml.safe_dump({**yaml.safe_load(good), "nonsense": 1}))
        assert run_program("manage.py", "reload", "--config", str(server.file)).returncode == 1
        server.file.write_text(good)
        assert any(line.startswith("warning runtime: Its last reload failed: ") for line in shown(doctor(server)))

        (tmp_path / "orders.parquet").write_bytes(b"PAR1")
        server.refresh()
        said = shown(doctor(server), "dataset orders")
        assert said[0].startswith("warning dataset orders: Its last refresh failed: ")

        refresh = part(server.process.pid, "refresh")[0]
        os.kill(refresh, signal.SIGSTOP)
        try:
            wait_for(lambda: is_stopped(refresh), "the stop")
            errors = shown(doctor(server), level="error")
        finally:
            send(signal.SIGCONT, refresh)
        assert errors[0].startswith(f"error runtime: Its process {refresh} (refresh) is stopped or dead.")
        assert any("The process that loads data does not respond" in line for line in errors)


def test_a_runtime_that_does_not_answer(tmp_path: Path) -> None:
    """It holds the lock and the port, and says nothing."""
    (tmp_path / ".runtime").mkdir(mode=0o700)
    lock = StateLock(tmp_path / ".runtime", SUPERVISOR_LOCK_NAME)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_UNIX) as control:
        control.bind(str(tmp_path / ".runtime" / "control.sock"))
        control.listen()
        assert lock.acquire()
        port = listener.getsockname()[1]
        bind = f"  http: {{bind: '127.0.0.1:{port}'}}\n  flight: {{enabled: false}}\n"

        code, found = examine(write(tmp_path, runtime=SMALL + KEYED + bind))
    lock.release()

    assert code == 1
    silent, control_silent = shown(found, "runtime", "error")
    assert silent.startswith(f"error runtime: It does not respond to http://127.0.0.1:{port}/v1/ready (ReadTimeout).")
    assert control_silent.startswith(
        "error runtime: The process that loads data does not respond: the data is served, but"
    )
    assert f"ok addresses: runtime.http.bind: the running runtime listens on 127.0.0.1:{port}." in shown(found)


def test_a_runtime_that_cannot_be_seen(tmp_path: Path) -> None:
    (tmp_path / ".runtime").mkdir(mode=0o700)
    lock = StateLock(tmp_path / ".runtime", SUPERVISOR_LOCK_NAME)
    assert lock.acquire()
    (tmp_path / ".runtime" / SUPERVISOR_LOCK_NAME).write_text("1\n")  # as seen from another container

    found = running.find(tmp_path / ".runtime")

    lock.release()
    assert found == running.Runtime(is_running=True)


@pytest.mark.exhaustive
def test_a_runtime_that_waits_for_a_dataset(tmp_path: Path) -> None:
    dataset = {"from": "file:absent.parquet", "name": "orders"}
    with Server(tmp_path, changes={"datasets": [dataset], "views": []}, wait_ready=False) as server:
        wait_for(lambda: server.listed("/v1/datasets")[0]["status"] == "Error", "the failed load")

        errors = shown(doctor(server), level="error")

    assert errors[0].endswith("returns 503. It is waiting for orders: see these datasets.")


@pytest.mark.parametrize(
    ("failure", "remedy"),
    [
        (SourceError("'a.csv' does not exist."), "Correct its source, then run `querykeep refresh d`."),
        (not_written("The snapshot", "No space left on device"), "Free space on the disk of the state directory"),
        (SnapshotError(TOO_LARGE), "Raise the limit"),
    ],
)
def test_what_to_do_about_a_refresh_that_failed_depends_on_the_cause(failure: DatasetError, remedy: str) -> None:
    failed, old = shown(running.judged(replace(STATE, error=str(failure)), 100.0))

    assert failed.startswith(f"warning dataset d: Its last refresh failed: {failure} {remedy}")
    assert old.startswith("warning dataset d: It was last checked 7 min ago; its interval is 100 s. Check the")

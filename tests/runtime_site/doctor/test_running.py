"""What `doctor` says of the runtime that runs on the state directory."""

import os
import signal
import socket
from pathlib import Path

import pytest
import trustme
import yaml

from runtime_site.doctor import running
from runtime_site.doctor.findings import Finding
from runtimeconf.loader import load
from system.lock import SUPERVISOR_LOCK_NAME, StateLock
from tests.runtime_site.doctor.examining import KEYED, SMALL, examine, shown, write
from tests.system.harness import Server, run_program, wait_for

pytestmark = pytest.mark.exhaustive


def doctor(server: Server) -> list[Finding]:
    """Return what is found. The runtime itself changes its files meanwhile."""
    return list(running.Running(running.find(server.directory / ".runtime"), load(server.file, {})).check())


def test_a_runtime_through_its_days(tmp_path: Path) -> None:
    text = {"acceleration": {"enabled": True, "refresh_check_interval": "1h"}}
    dataset = {"from": "file:orders.parquet", "name": "orders", **text}
    with Server(tmp_path, changes={"datasets": [dataset], "views": []}) as server:
        found = doctor(server)
        assert shown(found, level="error") == []
        assert any(line.startswith("ok runtime: It is ready (") for line in shown(found))
        assert "ok runtime: All of its datasets are loaded and current." in shown(found)
        assert not any("has changed" in line or "newer" in line for line in shown(found, "runtime"))
        whole = run_program("manage.py", "doctor", "--config", str(server.file))
        assert f"the running runtime listens on 127.0.0.1:{server.port}." in whole.stdout
        assert " error " not in f" {whole.stdout}".replace("0 error", "")
        assert whole.returncode == 0, whole.stdout

        os.utime(server.file)
        assert "note runtime: The YAML has changed since the runtime read it. Run `querykeep reload`." in shown(
            doctor(server)
        )
        assert run_program("manage.py", "reload", "--config", str(server.file)).returncode == 0
        assert any(line.startswith("ok runtime: Its last reload, ") for line in shown(doctor(server)))

        good = server.file.read_text()
        server.file.write_text(yaml.safe_dump({**yaml.safe_load(good), "nonsense": 1}))
        assert run_program("manage.py", "reload", "--config", str(server.file)).returncode == 1
        server.file.write_text(good)
        assert any(line.startswith("warning runtime: Its last reload failed: ") for line in shown(doctor(server)))

        (tmp_path / "orders.parquet").write_bytes(b"PAR1")
        server.refresh()
        said = shown(doctor(server), "dataset orders")
        assert said[0].startswith("warning dataset orders: Its last refresh failed: ")

        (engine,) = (
            process.number for process in running.find(tmp_path / ".runtime").processes if process.part == "refresh"
        )
        os.kill(engine, signal.SIGSTOP)
        try:
            wait_for(lambda: "T" in Path(f"/proc/{engine}/stat").read_text().rpartition(")")[2], "the stop")
            errors = shown(doctor(server), level="error")
        finally:
            os.kill(engine, signal.SIGCONT)
        assert errors[0].startswith(f"error runtime: Its process {engine} (refresh) is stopped or dead (state T).")
        assert any("The part that loads data does not answer" in line for line in errors)


def test_a_certificate_that_was_renewed(tmp_path: Path) -> None:
    certificate, key, root = tmp_path / "c.pem", tmp_path / "k.pem", tmp_path / "root.pem"
    authority = trustme.CA()
    authority.cert_pem.write_to_path(root)

    def renew() -> None:
        issued = authority.issue_cert("localhost")
        certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        key.write_bytes(issued.private_key_pem.bytes())
        key.chmod(0o600)

    renew()
    tls = {"enabled": True, "certificate_file": str(certificate), "key_file": str(key)}
    with Server(tmp_path, trust=root, changes={"runtime": {"tls": tls}}) as server:
        assert not [line for line in shown(doctor(server), "runtime") if "certificate" in line]
        renew()
        other = "warning runtime: It serves another certificate than that in certificate_file. Run `querykeep reload`."
        # A web worker that had not begun to serve has read the new one; the connection may come to another.
        wait_for(lambda: other in shown(doctor(server), "runtime"), "the warning")


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
    assert silent.startswith(f"error runtime: It does not answer http://127.0.0.1:{port}/v1/ready (ReadTimeout).")
    assert control_silent.startswith("error runtime: The part that loads data does not answer: the data is served, but")
    assert f"ok addresses: runtime.http.bind: the running runtime listens on 127.0.0.1:{port}." in shown(found)


def test_a_runtime_that_cannot_be_seen(tmp_path: Path) -> None:
    (tmp_path / ".runtime").mkdir(mode=0o700)
    lock = StateLock(tmp_path / ".runtime", SUPERVISOR_LOCK_NAME)
    assert lock.acquire()
    (tmp_path / ".runtime" / SUPERVISOR_LOCK_NAME).write_text("1\n")  # as seen from another container

    runtime = running.find(tmp_path / ".runtime")

    lock.release()
    assert (runtime.is_running, runtime.processes) == (True, ())


def test_a_runtime_that_waits_for_a_dataset(tmp_path: Path) -> None:
    dataset = {"from": "file:absent.parquet", "name": "orders"}
    with Server(tmp_path, changes={"datasets": [dataset], "views": []}, wait_ready=False) as server:
        wait_for(lambda: server.listed("/v1/datasets")[0]["status"] == "Error", "the failed load")

        errors = shown(doctor(server), level="error")

    assert errors[0].endswith("answers 503. It waits for orders: see the findings about these datasets.")

"""`manage.py doctor`: what it finds without a running runtime, its exit codes and its output."""

import io
import json
import os
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from django.core.management import call_command

from datasources.snapshots.snapshot import fingerprint
from doctor import checks, findings
from doctor.findings import Finding, duration, run, size
from queryengine.manifest import SNAPSHOT_DIRECTORY, Column, Manifest, write_manifest
from runtimeclient import SERVER_COMMANDS
from runtimeconf.loader import load
from runtimeconf.model import TlsConfig
from system.addresses import Address
from tests.datasources.support import snapshot_of
from tests.doctor.examining import KEYED, SMALL, examine, shown, write
from tests.system.harness import PYTHON, REPOSITORY, clean_environ, run_program, taken_port
from tests.web_server import File, serving


def test_all_is_well(tmp_path: Path) -> None:
    code, found = examine(write(tmp_path))

    assert code == 0, shown(found)
    assert shown(found, level="error") == []
    described = (REPOSITORY / "docs" / "doctor.md").read_text().partition("## What it checks")[2]
    assert {one.about for one in found} <= set(re.findall("`([a-z ]+)`", described))
    assert {
        f"ok configuration: {tmp_path}/runtime.yaml has no errors: datasets 0.",
        f"note state directory: {tmp_path}/.runtime does not exist: the runtime creates it when it first starts.",
        "note runtime: No runtime is running on this state directory.",
    } <= set(shown(found))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(None, "no such file: set RUNTIME_CONFIG", id="absent"),
        pytest.param(b"a: [", "is not valid YAML", id="no YAML"),
        pytest.param(b"a: 1\nruntime: {state_dir: s, x: 1, workers: 1}\n", "unknown field", id="faults"),
    ],
)
def test_a_yaml_that_cannot_be_used(tmp_path: Path, content: bytes | None, says: str) -> None:
    """The state directory is looked at all the same."""
    file = tmp_path / "runtime.yaml"
    if content is not None:
        file.write_bytes(content)

    code, found = examine(file)

    errors = shown(found, "configuration", "error")
    assert code == 1
    assert says in errors[0]
    assert (len(errors), bool(shown(found, "disk", "ok"))) == ((3, True) if says == "unknown field" else (1, False))


def test_secrets_resolve_or_are_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = "  auth: {api-key: {enabled: true, keys: ['${ secrets:DOCTOR_KEY }', '${ secrets:absent }']}}\n"
    monkeypatch.setenv("DOCTOR_KEY", "canary-of-the-environment-0123456789")

    code, found = examine(write(tmp_path, runtime=SMALL + keys))

    assert code == 1
    assert "secret 'absent' was not found; stores searched: env" in shown(found, "configuration", "error")[0]
    assert "canary" not in str(found)


def test_warnings_matter_with_strict(tmp_path: Path) -> None:
    named = f"named_keys: [{{name: old, key: {'k' * 32}, expires: 2020-01-01}}]"
    file = write(tmp_path, runtime=f"{SMALL}{KEYED.replace('keys:', f'{named}, keys:')}")

    assert examine(file)[0] == 0
    code, found = examine(file, strict=True)
    assert code == 1
    assert "named_keys[0].expires: expired at 2020-01-02T00:00:00Z" in shown(found, level="warning")[0]


def test_refused_sql_and_views_that_do_not_fit(tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text("id,name\n1,a\n")
    text = "datasets: [{from: 'file:orders.csv', name: orders}]\nviews: [{name: v, sql: %s}]\n"

    _, refused = examine(write(tmp_path, text % "FROM absent"))
    _, unfit = examine(write(tmp_path, text % "SELECT nmae FROM orders"))

    error, note = shown(refused, "sql")
    assert "views[0].sql" in error
    assert note == "note sql: Views are compared with the columns of the sources once all of them are allowed."
    assert 'Referenced column "nmae" not found' in shown(unfit, "sql", "error")[0]


def test_addresses(tmp_path: Path) -> None:
    with taken_port() as port:
        binds = f"  http: {{bind: '127.0.0.1:{port}'}}\n  flight: {{bind: '192.0.2.1:80'}}\n"
        _, found = examine(write(tmp_path, runtime=SMALL + KEYED + binds))

    taken, foreign = shown(found, "addresses")
    assert taken == (
        f"error addresses: runtime.http.bind: process {os.getpid()} has 127.0.0.1:{port}. "
        "Stop it, or change runtime.http.bind."
    )
    assert foreign.startswith("error addresses: Cannot listen on 192.0.2.1:80: ")


@pytest.mark.parametrize(
    ("found", "own", "says"),
    [
        ({7, 8}, {8}, "ok addresses: S: the running runtime listens on 127.0.0.1:80."),
        (set(), {8}, "note addresses: S: a process that this user cannot see has 127.0.0.1:80."),
        ({1}, set(), "note addresses: S: process 1 listens on 127.0.0.1:80, as for a systemd socket unit."),
        (set(), set(), "error addresses: S: a process that this user cannot see has 127.0.0.1:80."),
    ],
)
def test_who_holds_an_address(found: set[int], own: set[int], says: str) -> None:
    (line,) = shown([checks._held("S", Address("127.0.0.1", 80), frozenset(found), frozenset(own))])

    assert line.startswith(says)


@pytest.mark.parametrize(
    ("begin_days", "days", "says"),
    [
        (-1, 90, "ok certificate: It is valid until "),
        (-1, 7, "warning certificate: It expires at "),
        (-9, -1, "error certificate: It expired at "),
        (2, 90, "error certificate: It is not valid before "),
    ],
)
def test_certificates(tmp_path: Path, begin_days: int, days: int, says: str) -> None:
    begin, end = (datetime.now(UTC) + timedelta(days=number) for number in (begin_days, days))
    issued = trustme.CA().issue_cert("localhost", not_before=begin, not_after=end)
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    key.chmod(0o640)

    rights, dates = shown(checks.certificate(TlsConfig(enabled=True, certificate_file=certificate, key_file=key)))

    assert rights == f"warning certificate: Other users may read {key}. chmod 600 {key}"
    assert dates.startswith(says)


def state_directory(directory: Path, mode: int = 0o700) -> Path:
    (directory / ".runtime").mkdir(mode=0o700)
    (directory / ".runtime").chmod(mode)
    return directory / ".runtime"


def test_a_state_directory_with_faults_is_left_as_it_is(tmp_path: Path) -> None:
    state_dir = state_directory(tmp_path, 0o755)
    (state_dir / "key-salt").write_bytes(b"s" * 32)
    (state_dir / "key-salt").chmod(0o644)
    (state_dir / "manifest.json").write_text("{}")

    code, found = examine(write(tmp_path))

    assert code == 0
    rights, salt, manifest = (line for line in shown(found, level="warning") if " sandbox" not in line)
    assert rights.startswith(f"warning state directory: Other users have permissions on {state_dir}. chmod 700")
    assert salt == f"warning keys: Other users may read or change {state_dir}/key-salt. chmod 600 {state_dir}/key-salt"
    assert "manifest" in manifest


def test_a_state_directory_that_is_a_link_to_one_of_all_users(tmp_path: Path) -> None:
    """`chmod 700` would take it from them."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    (tmp_path / ".runtime").symlink_to("shared")

    _, found = examine(write(tmp_path))

    assert "is shared with other users" in shown(found, "state directory", "error")[0]
    assert not any("chmod" in line for line in shown(found))


def test_data_that_is_lost_too_large_or_of_the_future(tmp_path: Path) -> None:
    state_dir = state_directory(tmp_path)
    snapshot = snapshot_of("orders", size_bytes=1 << 60, created_at="2999-01-01T00:00:00.000Z")
    write_manifest(state_dir, Manifest(generation=1, snapshots=(snapshot,)))
    (state_dir / "key-salt").write_bytes(b"short")
    (state_dir / "key-salt").chmod(0o600)

    salt, disk, lost, clock = shown(checks.state_directory(state_dir))

    assert salt.startswith("error keys: The file key-salt in the state directory is damaged")
    assert "the largest snapshot, of 1,048,576.0 TiB, cannot be refreshed. Free at least " in disk
    assert lost.startswith("error dataset orders: Its data file is missing or has the wrong size")
    assert clock.startswith("warning clock: The newest data was loaded at 2999-01-01T00:00:00.000Z, which is in the")


def test_memory_limits_that_cannot_hold(tmp_path: Path) -> None:
    config = load(write(tmp_path, runtime="  query: {workers: 64, memory_limit: 1TiB}\n" + KEYED), {})

    assert shown(checks.machine(config), "limits")[0].startswith("warning limits: runtime.query: workers (64) times")


def dataset(name: str, source: str, more: str = "") -> str:
    return f"  - {{from: '{source}', name: {name}{more}}}\n"


def test_each_source_is_judged_on_its_own(tmp_path: Path) -> None:
    (tmp_path / "good.csv").write_text("id,name\n1,a\n")
    with serving() as web, socket.create_server(("127.0.0.1", 0)) as silent:
        web.files["/b.csv"] = File(b"id,price\n1,2.5\n")
        web.files["/closed.csv"] = File(b"no", status=401)
        text = "datasets:\n" + "".join(
            (
                dataset("good", "file:good.csv"),
                dataset("new", "file:good.csv", ", params: {csv_has_header: 'false'}"),
                dataset("absent", "file:absent.csv"),
                dataset("drifted", f"{web.url}/b.csv"),
                dataset("accepted", f"{web.url}/b.csv", ", on_schema_change: accept"),
                dataset("closed", f"{web.url}/closed.csv"),
                dataset("silent", f"http://127.0.0.1:{silent.getsockname()[1]}/a.csv"),
            )
        )
        config = load(write(tmp_path, text), {})
        (config.state_dir / SNAPSHOT_DIRECTORY).mkdir(parents=True)
        columns = Column(name="id", type="BIGINT"), Column(name="name", type="VARCHAR")
        served = [snapshot_of(one.name, source=fingerprint(one), columns=columns) for one in config.datasets]
        snapshots = tuple(one for one in served if one.dataset != "new")
        write_manifest(config.state_dir, Manifest(generation=1, snapshots=snapshots))
        environ = dict(os.environ)
        code, found = examine(config.file, timeout=3.0)

    assert (code, dict(os.environ)) == (1, environ)
    said = {one.about.removeprefix("dataset "): f"{one.level} {one.text}" for one in found if one.about != "clock"}
    assert said["good"] == "ok The source has the same 2 columns that are being served."
    assert said["new"] == "ok The source has 2 columns."
    assert said["absent"] == "error The source cannot be read: 'absent.csv' does not exist."
    assert said["drifted"].startswith("error The columns of drifted changed (name is gone, price is new)")
    assert said["accepted"].startswith("note The columns of the source have changed; the next refresh will")
    assert "the server rejected the credentials" in said["closed"]
    assert said["silent"].endswith("The load was stopped after 3 s, the --timeout of doctor.")


def test_offline_asks_only_files(tmp_path: Path, trap: str) -> None:
    (tmp_path / "good.csv").write_text("id\n1\n")
    text = "datasets:\n" + dataset("good", "file:good.csv") + dataset("web", f"http://{trap}/a.csv")

    _, found = examine(write(tmp_path, text), offline=True)

    assert shown(found, "dataset good", "ok")
    assert shown(found, "sources") == ["note sources: --offline: 1 sources were not contacted."]
    assert shown(found, "dataset web") == []


def test_a_check_that_hangs_or_fails_is_a_finding() -> None:
    never = threading.Event()

    def hangs() -> Iterator[Finding]:
        yield Finding("ok", "disk", "First.")
        never.wait()

    def fails() -> Iterator[Finding]:
        yield Finding("ok", "disk", "First.")
        raise ValueError("a secret")

    def is_refused() -> Iterator[Finding]:
        yield Finding("ok", "disk", Path("/absent").read_text())

    first, late = run("disk", hangs, 1.0)
    never.set()
    assert (first.text, late.level, late.text) == ("First.", "error", "This check did not end within 1 s.")
    first, failed = run("disk", fails)
    assert failed.text.startswith("This check failed: ValueError in test_doctor.py, line ")
    assert "a secret" not in str(failed)
    assert run("disk", is_refused)[0].text == "This check could not run: /absent no such file or directory."


def test_sizes_and_times_for_people() -> None:
    assert [size(count) for count in (1023, 1024, 3 * 1024**3, 5 * 1024**4)] == [
        "1,023 B", "1.0 KiB", "3.0 GiB", "5.0 TiB",
    ]  # fmt: skip
    assert [duration(seconds) for seconds in (119, 120, 7200, 172800)] == ["119 s", "2 min", "2 h", "2 d"]


@pytest.mark.parametrize("colours", [False, True])
def test_each_finding_is_one_line_of_printable_text(tmp_path: Path, colours: bool) -> None:
    directory = tmp_path / "a\x1b[31m\nb"
    directory.mkdir()
    said = io.StringIO()

    with pytest.raises(SystemExit):
        call_command("doctor", config=directory / "runtime.yaml", stdout=said, force_color=colours)

    assert ("\x1b[" in said.getvalue()) is colours
    *lines, last = re.sub("\x1b\\[[0-9;]*m", "", said.getvalue()).splitlines()
    assert all(line.split(":")[0].split()[0] in findings.LEVELS and line.isprintable() for line in lines)
    assert "\\x1b[31m\\nb/runtime.yaml: no such file" in lines[1]
    assert last.startswith("1 error, 0 warning")


def test_the_program_in_every_condition(tmp_path: Path) -> None:
    assert "doctor" in SERVER_COMMANDS
    assert run_program("manage.py", "doctor", "--timeout", "0").returncode == 2
    broken = run_program("manage.py", "doctor", "--json", RUNTIME_CONFIG=f"{tmp_path}/absent.yaml")
    assert (broken.returncode, broken.stderr) == (1, "")
    assert json.loads(broken.stdout)["counts"]["error"] == 1
    file = write(tmp_path)
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [PYTHON, "manage.py", "doctor", "--config", str(file)],
            cwd=REPOSITORY, env=clean_environ(), stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    said = "CommandError: The findings cannot be written: No space left on device."
    assert (done.returncode, done.stderr.strip()) == (2, said)
    assert list(tmp_path.iterdir()) == [file]

"""`manage.py doctor`: what it finds, its exit codes and its output."""

import io
import json
import os
import re
import signal
import socket
import stat
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from datasources.control import DatasetState
from datasources.deadline import Deadline
from datasources.errors import DatasetError, SharedStorageError, SnapshotError, SourceError, not_written
from datasources.loading.loading_engine import TOO_LARGE
from queryengine.manifest import SNAPSHOT_DIRECTORY, Manifest, write_manifest
from runtime_site.doctor import findings, machine, running, state_files
from runtime_site.doctor.findings import duration, ok, run, size
from runtime_site.doctor.sources import clock_findings
from runtimeconf.model import AccelerationConfig, DatasetConfig, QueryConfig, RuntimeConfig
from tests.datasources.support import snapshot_of
from tests.runtime_site.doctor.examining import KEYED, SMALL, examine, shown, write
from tests.system.harness import PYTHON, REPOSITORY, clean_environ, run_program, taken_port


def test_all_is_well(tmp_path: Path) -> None:
    code, found = examine(write(tmp_path))

    assert code == 0, shown(found)
    assert shown(found, level="error") == []
    described = (REPOSITORY / "docs" / "doctor.md").read_text().partition("## What it checks")[2]
    assert {one.about for one in found} <= set(re.findall("`([a-z ]+)`", described))
    assert {
        "ok configuration: " + f"{tmp_path}/runtime.yaml has no fault: 0 datasets.",
        "ok keys: 1 of 1 key can be used.",
        f"note state directory: {tmp_path}/.runtime does not exist: the first start creates it.",
        "note runtime: No runtime runs on this state directory.",
    } <= set(shown(found))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(None, "there is no such file: name the configuration with RUNTIME_CONFIG", id="absent"),
        pytest.param(b"", "is empty", id="empty"),
        pytest.param(b"\xff\xfe", "is UTF-16", id="UTF-16"),
        pytest.param(b"a: [", "is not valid YAML", id="no YAML"),
        pytest.param(b"a: 1\nruntime: {state_dir: s, x: 1, workers: 1}\n", "unknown field", id="faults"),
    ],
)
def test_a_yaml_that_cannot_be_used(tmp_path: Path, content: bytes | None, says: str) -> None:
    """The machine is looked at all the same."""
    file = tmp_path / "runtime.yaml"
    if content is not None:
        file.write_bytes(content)

    code, found = examine(file)

    errors = shown(found, "configuration", "error")
    assert code == 1
    assert says in errors[0]
    assert len(errors) == (3 if content is not None and content.startswith(b"a: 1") else 1)
    assert shown(found, "versions", "ok")
    if len(errors) == 3:
        assert shown(found, "disk", "ok")


def test_a_directory_in_place_of_the_yaml(tmp_path: Path) -> None:
    (tmp_path / "runtime.yaml").mkdir()

    code, found = examine(tmp_path / "runtime.yaml")

    assert code == 1
    assert "it is a directory, not a regular file" in shown(found, level="error")[0]


OPEN = "  auth: {api-key: {enabled: false}}\n  http: {bind: '0.0.0.0:0'}\n  flight: {enabled: false}\n"


@pytest.mark.exhaustive
def test_warnings_matter_with_strict(tmp_path: Path) -> None:
    file = write(tmp_path, runtime=SMALL + OPEN)

    assert examine(file)[0] == 0
    code, found = examine(file, strict=True)
    assert code == 1
    assert [one for one in shown(found, level="warning") if "0.0.0.0:0 without authentication" in one]


def test_secrets_resolve_or_are_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = "  auth: {api-key: {enabled: true, keys: ['${ secrets:DOCTOR_KEY }', '${ secrets:absent }']}}\n"
    monkeypatch.setenv("DOCTOR_KEY", "canary-of-the-environment-0123456789")
    _, found = examine(write(tmp_path, runtime=SMALL + keys))
    assert "secret 'absent' was not found; stores asked: env" in shown(found, "configuration", "error")[0]

    (tmp_path / ".env").write_text("absent=canary-of-the-dotenv-file-0123456789\n")
    (tmp_path / ".env").chmod(0o600)
    _, found = examine(write(tmp_path, runtime=SMALL + keys))

    assert shown(found, "secrets") == ["ok secrets: All 2 secret references resolve."]
    assert "canary" not in str(found)


@pytest.mark.exhaustive
def test_keys_that_expire(tmp_path: Path) -> None:
    named = "named_keys: [{name: old, key: %s, expires: %s}, {name: new, key: %s, expires: %s}]"
    first, second = "first-key-0123456789abcdefghijkl-mnop", "second-key-0123456789abcdefghijkl-mnop"

    def examined(*ends: str) -> list[str]:
        keys = f"  auth: {{api-key: {{enabled: true, {named % (first, ends[0], second, ends[1])}}}}}\n"
        _, found = examine(write(tmp_path, runtime=SMALL + keys))
        return [*shown(found, level="error"), *shown(found, level="warning"), *shown(found, "keys")]

    gone, works = examined("2020-01-01", "2999-01-01")
    assert "named_keys[0].expires: expired at 2020-01-02T00:00:00Z" in gone
    assert "docs/how-to/rotate-a-key.md" in gone
    assert works == "ok keys: 1 of 2 keys can be used; the next expires at 2999-01-02T00:00:00.000Z."
    assert "has no key left: all have expired" in examined("2020-01-01", "2020-01-01")[0]


@pytest.mark.exhaustive
def test_refused_sql_and_views_that_do_not_fit(tmp_path: Path) -> None:
    _, found = examine(write(tmp_path, "views:\n  - {name: v, sql: DROP TABLE x}\n"))
    assert "views[0].sql" in shown(found, "sql", "error")[0]

    (tmp_path / "orders.csv").write_text("id,name\n1,a\n")
    text = "datasets: [{from: 'file:orders.csv', name: orders}]\nviews: [{name: v, sql: SELECT nmae FROM orders}]\n"
    _, found = examine(write(tmp_path, text))
    assert 'Referenced column "nmae" not found' in shown(found, "sql", "error")[0]
    assert "ok dataset orders: The source answers with 2 columns; the dataset was never loaded." in shown(found)


def test_addresses(tmp_path: Path) -> None:
    with taken_port() as port:
        binds = f"  http: {{bind: '127.0.0.1:{port}'}}\n  flight: {{bind: '192.0.2.1:80'}}\n"
        metrics = f"  metrics: {{enabled: true, bind: '127.0.0.2:{port}'}}\n"
        _, found = examine(write(tmp_path, runtime=SMALL + KEYED + binds + metrics))

    taken, foreign, page = shown(found, "addresses")
    assert page.startswith("error addresses: runtime.metrics.bind: ")
    assert taken == (
        f"error addresses: runtime.http.bind: process {os.getpid()} has 127.0.0.1:{port}. "
        "Stop that server, or change runtime.http.bind."
    )
    assert foreign.startswith("error addresses: Cannot listen on 192.0.2.1:80: ")


def test_the_file_of_the_history(tmp_path: Path) -> None:
    (tmp_path / "link.jsonl").symlink_to("elsewhere")
    said = {}
    (tmp_path / "orders.csv").write_text("id\n1\n")
    for name in ("new.jsonl", "absent/a.jsonl", "link.jsonl", "orders.csv"):
        _, found = examine(write(tmp_path, runtime=f"{SMALL}{KEYED}  history: {{file: {name}}}\n"))
        (said[name],) = shown(found, "history")

    assert said["new.jsonl"] == f"ok history: Statements can be written to {tmp_path}/new.jsonl."
    assert "absent/a.jsonl: no such file or directory. Create its directory" in said["absent/a.jsonl"]
    assert "link.jsonl: it is not a regular file of the runtime's user." in said["link.jsonl"]
    assert "orders.csv: it holds something else than a history." in said["orders.csv"]


def state_directory(directory: Path, mode: int = 0o700) -> Path:
    (directory / ".runtime").mkdir(mode=0o700)
    (directory / ".runtime").chmod(mode)
    return directory / ".runtime"


def test_a_state_directory_with_faults_is_left_as_it_is(tmp_path: Path) -> None:
    state_dir = state_directory(tmp_path, 0o755)
    (state_dir / "key-salt").write_bytes(b"s" * 32)
    (state_dir / "key-salt").chmod(0o644)
    (state_dir / "manifest.json").write_text("{}")
    (state_dir / SNAPSHOT_DIRECTORY).mkdir()
    (state_dir / SNAPSHOT_DIRECTORY / "orders-0123456789abcdef.duckdb").write_bytes(bytes(2048))

    code, found = examine(write(tmp_path))

    assert code == 0
    rights, manifest, salt = shown(found, level="warning")
    assert rights.startswith(f"warning state directory: Other users have rights on {state_dir}. chmod 700")
    assert "manifest" in manifest
    assert salt == f"warning keys: Other users may read or change {state_dir}/key-salt. chmod 600 {state_dir}/key-salt"
    leftover = "note disk: 1 files of interrupted loads take 2.0 KiB: the next start deletes them."
    assert leftover in shown(found)


def test_a_state_directory_that_is_a_link_to_one_of_all_users(tmp_path: Path) -> None:
    """`chmod 700` would take it from them."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    (tmp_path / ".runtime").symlink_to("shared")

    _, found = examine(write(tmp_path))

    assert "is shared with other users" in shown(found, "state directory", "error")[0]
    assert not any("chmod" in line for line in shown(found))


@pytest.mark.exhaustive
def test_a_state_directory_of_another_user(tmp_path: Path) -> None:
    os.chown(state_directory(tmp_path), 12345, 12345)

    code, found = examine(write(tmp_path))

    assert code == 1
    assert "belongs to another user. Set runtime.state_dir" in shown(found, "state directory", "error")[0]


def test_a_directory_with_very_many_entries_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_files, "MAX_ENTRIES", 10)
    snapshots = state_directory(tmp_path) / SNAPSHOT_DIRECTORY
    snapshots.mkdir()
    for number in range(12):
        (snapshots / f"orders-{number:016x}.duckdb").touch()
    write_manifest(tmp_path / ".runtime", Manifest(generation=1))

    found = list(state_files.check(tmp_path / ".runtime"))

    assert shown(found, "disk")[-1].startswith("note disk: 10 or more files of interrupted loads")


def test_a_check_that_hangs_or_fails_is_a_finding() -> None:
    never = threading.Event()

    def hangs() -> Iterator[findings.Finding]:
        yield ok("disk", "First.")
        never.wait()

    def fails() -> Iterator[findings.Finding]:
        yield ok("disk", "First.")
        raise ValueError("a secret")

    def is_refused() -> Iterator[findings.Finding]:
        yield ok("disk", Path("/absent").read_text())

    first, late = run("disk", hangs, 1.0)
    never.set()
    assert (first.text, late.level, late.text) == ("First.", "error", "This check did not end within 1 s.")
    first, failed = run("disk", fails, 5.0)
    assert failed.text.startswith("This check failed: ValueError in test_doctor.py, line ")
    assert "a secret" not in str(failed)
    assert run("disk", is_refused, 5.0)[0].text == "This check was not possible: /absent no such file or directory."


def published(directory: Path, **changes: Any) -> Path:
    """Return a state directory with one dataset, whose file is missing."""
    state_dir = state_directory(directory)
    write_manifest(state_dir, Manifest(generation=1, snapshots=(snapshot_of("orders", **changes),)))
    return state_dir


def test_data_that_is_lost_too_large_or_of_the_future(tmp_path: Path) -> None:
    state_dir = published(tmp_path, size_bytes=1 << 60, created_at="2999-01-01T00:00:00.000Z")
    (state_dir / "key-salt").write_bytes(b"short")
    (state_dir / "key-salt").chmod(0o600)

    disk, salt, lost, clock = shown(list(state_files.check(state_dir)))

    assert "the largest, of 1,048,576.0 TiB, cannot be refreshed. Free at least " in disk
    assert salt.startswith("error keys: The file key-salt in the state directory is damaged")
    assert lost.startswith("error dataset orders: The file of its data is missing or has another size")
    assert clock.startswith("warning clock: The newest data was loaded at 2999-01-01T00:00:00.000Z, which is still to")


def test_versions_and_processors() -> None:
    requirements = [
        "pyyaml~=2.0.0",
        "b>=2026.10",
        "c[x]~=1.2; extra == 'server'",
        "d~=1.0; extra == 'sources'",
        "e~=1.0; extra == 'z'",
    ]

    missing, old, fits = (
        shown(list(machine.unfit(versions, requirements)))
        for versions in (
            {"b": "2026.10.18", "c": "1.9"},
            {"pyyaml": "2.1.0", "b": "2026.9", "c": "1.1"},
            {"pyyaml": "2.0.7", "b": "2027.1", "c": "1.2"},
        )
    )

    assert missing == ["error versions: pyyaml is not installed. python -m pip install 'pyyaml~=2.0.0'"]
    assert [line.partition(" is installed")[0] for line in old] == [
        f"warning versions: {name}" for name in ("pyyaml 2.1.0", "b 2026.9", "c 1.1")
    ]
    assert fits == []
    assert [one.level for one in machine.processors_for(4, 2, None)] == ["ok"]
    assert [one.level for one in machine.processors_for(5, 2, 1.0)] == ["warning", "note"]


def test_limits(tmp_path: Path) -> None:
    query = QueryConfig(workers=64, memory_limit_bytes=1 << 40)
    config = RuntimeConfig(file=tmp_path / "runtime.yaml", state_dir=tmp_path, query=query)

    assert shown(list(machine.limits(config)), "limits")[0].startswith(
        "warning limits: runtime.query: workers (64) times"
    )


STATE = DatasetState(
    from_="", name="d", acceleration_enabled=True, status="Error", rows=1, refreshed_at=None, snapshot=None,
    error="No.", checked_at=None, next_refresh_at=None, age_s=400, bytes=1,
)  # fmt: skip


@pytest.mark.parametrize(
    ("failure", "remedy"),
    [
        (SourceError("'a.csv' does not exist."), "Correct its source"),
        (not_written("The snapshot", "No space left on device"), "Make room on the disk of the state directory"),
        (SnapshotError(TOO_LARGE), "Raise the limit"),
        (SharedStorageError("The storage of shared snapshots does not answer, or fails."), "See params of"),
    ],
)
def test_what_to_do_about_a_refresh_that_failed_depends_on_the_cause(failure: DatasetError, remedy: str) -> None:
    (found,) = shown(list(running._judged(replace(STATE, error=str(failure)), None)))

    assert found.startswith(f"warning dataset d: Its last refresh failed: {failure} {remedy}")


def test_a_load_beyond_its_time_is_not_blamed_on_the_source() -> None:
    with pytest.raises(SnapshotError) as late:
        Deadline(0.0, threading.Event()).check()

    (found,) = shown(list(running._judged(replace(STATE, error=str(late.value)), None)))
    assert "Raise refresh_timeout" in found


def test_old_data() -> None:
    state = STATE
    dataset = DatasetConfig(
        name="d", from_="", acceleration=AccelerationConfig(enabled=True, refresh_check_interval_s=100.0)
    )

    failed, old = shown(list(running._judged(state, dataset)))
    assert (
        failed == "warning dataset d: Its last refresh failed: No. Correct its source, then run `querykeep refresh d`."
    )
    assert old.startswith("warning dataset d: It was last checked 7 min ago; its interval is 100 s. Look at")


def test_sizes_and_times_for_people() -> None:
    assert [size(count) for count in (0, 1023, 1024, 3 * 1024**3, 5 * 1024**4)] == [
        "0 B", "1,023 B", "1.0 KiB", "3.0 GiB", "5.0 TiB",
    ]  # fmt: skip
    assert [duration(seconds) for seconds in (1, 119, 120, 7200, 172800)] == ["1 s", "119 s", "2 min", "2 h", "2 d"]


def test_clocks() -> None:
    assert shown(list(clock_findings({"http://a": 2.0, "http://b": -3.0})))[0].startswith(
        "ok clock: It agrees within 5 s"
    )
    ahead, behind = shown(list(clock_findings({"http://a": 60.0, "http://b": -1000.0})))
    assert ahead.startswith("warning clock: The clock of http://a is 60 s ahead of ours. Synchronise")
    assert behind.startswith("error clock: The clock of http://b is 1,000 s behind ours.")


def test_each_finding_is_one_line_of_printable_text(tmp_path: Path) -> None:
    directory = tmp_path / "a\x1b[31m\nb"
    directory.mkdir()
    said = io.StringIO()

    with pytest.raises(SystemExit):
        call_command("doctor", config=directory / "runtime.yaml", stdout=said)

    *lines, last = said.getvalue().splitlines()
    assert all(line.split(":")[0].split()[0] in findings.LEVELS for line in lines)
    assert all(line.isprintable() for line in lines)
    assert "\\x1b[31m\\nb/runtime.yaml: there is no such file" in lines[0]
    assert last.startswith("1 error, 0 warning")


@pytest.mark.parametrize("colours", [False, True])
def test_levels_are_coloured_only_if_asked_for_or_on_a_terminal(tmp_path: Path, colours: bool) -> None:
    said = io.StringIO()

    with pytest.raises(SystemExit):
        call_command("doctor", config=tmp_path / "absent.yaml", stdout=said, force_color=colours)

    assert ("\x1b[" in said.getvalue()) is colours


def test_a_bundle_never_replaces_a_file_or_follows_a_link(tmp_path: Path) -> None:
    file = write(tmp_path)
    (tmp_path / "taken.tar.gz").write_text("mine")
    (tmp_path / "link.tar.gz").symlink_to(tmp_path / "elsewhere")

    for name in ("taken.tar.gz", "link.tar.gz", "absent/b.tar.gz"):
        with pytest.raises(CommandError, match="cannot be created") as failure:
            call_command("doctor", config=file, bundle=tmp_path / name)
        assert failure.value.returncode == 2
    assert (tmp_path / "taken.tar.gz").read_text() == "mine"
    assert not (tmp_path / "elsewhere").exists()

    examine(file, bundle=tmp_path / "b.tar.gz")

    assert stat.S_IMODE((tmp_path / "b.tar.gz").stat().st_mode) == 0o600


@pytest.mark.exhaustive
def test_exit_codes_of_the_program(tmp_path: Path) -> None:
    assert run_program("manage.py", "doctor", "--timeout", "0").returncode == 2
    with pytest.raises(CommandError, match="/absent/x cannot be created") as failure:
        call_command("doctor", config=write(tmp_path), bundle=Path("/absent/x"))
    assert failure.value.returncode == 2
    broken = run_program("manage.py", "doctor", "--json", RUNTIME_CONFIG=f"{tmp_path}/absent.yaml")
    assert (broken.returncode, broken.stderr) == (1, "")
    assert json.loads(broken.stdout)["counts"]["error"] == 1


def doctor_to(stdout: int, file: Path, *options: str) -> subprocess.Popen[str]:
    command = [PYTHON, "manage.py", "doctor", "--config", str(file), "--bundle", str(file.parent / "b.gz"), *options]
    environ = clean_environ(TMPDIR=str(file.parent))
    return subprocess.Popen(command, cwd=REPOSITORY, env=environ, stdout=stdout, stderr=subprocess.PIPE, text=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_an_output_that_cannot_be_written(tmp_path: Path, options: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        doctor = doctor_to(full.fileno(), write(tmp_path), *options)
        _, errors = doctor.communicate()

    assert (doctor.returncode, errors.strip()) == (
        2,
        "CommandError: The findings cannot be written: No space left on device.",
    )
    assert not (tmp_path / "b.gz").exists()


@contextmanager
def doctor_at_work(file: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A doctor that asks a source which never answers."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        silent.settimeout(60)
        with file.open("a") as text:
            text.write(f"datasets: [{{from: 'http://127.0.0.1:{silent.getsockname()[1]}/a.csv', name: a}}]\n")
        doctor = doctor_to(subprocess.DEVNULL, file, *options)
        connection, _ = silent.accept()
        with connection:
            yield doctor


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    file = write(tmp_path)
    before = sorted(tmp_path.iterdir())

    former = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # inherited; these tests may run under nohup
    try:
        with doctor_at_work(file, "--timeout", "60") as doctor:
            doctor.send_signal(number)
            _, errors = doctor.communicate(timeout=30)
    finally:
        signal.signal(signal.SIGHUP, former)

    assert (doctor.returncode, errors) == (128 + number, "")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.exhaustive
def test_nohup_is_respected(tmp_path: Path) -> None:
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # inherited
    try:
        with doctor_at_work(write(tmp_path), "--timeout", "1") as doctor:
            doctor.send_signal(signal.SIGHUP)
            doctor.communicate(timeout=30)
    finally:
        signal.signal(signal.SIGHUP, former)

    assert doctor.returncode == 1
    assert (tmp_path / "b.gz").stat().st_size > 0

import json
import os
import stat
from pathlib import Path

import pytest
from msgspec.structs import asdict, replace

from datasources.control import RefreshRun
from datasources.refresh.history import HISTORY_NAME, MAX_RUNS, History


def run(number: int, **more: str) -> RefreshRun:
    return RefreshRun(id=f"{number:016x}", status="queued", requested_at="2026-01-01T00:00:00.000Z", **more)  # type: ignore[arg-type]


def done(number: int) -> RefreshRun:
    ended = "2026-01-01T00:00:01.000Z"
    return replace(run(number), status="succeeded", started_at="s", finished_at=ended, rows=1, duration_ms=2)


def test_runs_are_kept_newest_first_and_over_a_restart(tmp_path: Path) -> None:
    history = History(tmp_path, ["a", "b"])
    history.put(("a", done(1)))
    history.put(("a", run(2)))
    history.put(("a", done(2)))

    assert history.runs("a") == (done(2), done(1))
    assert history.runs("b") == ()
    assert History(tmp_path, ["a"]).runs("a") == (done(2), done(1))
    assert stat.S_IMODE((tmp_path / HISTORY_NAME).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [HISTORY_NAME]
    # A dataset that is no longer declared is forgotten.
    History(tmp_path, ["b"])
    assert json.loads((tmp_path / HISTORY_NAME).read_text())["datasets"] == {"b": []}


def test_changes_are_appended_until_they_outgrow_the_document(tmp_path: Path) -> None:
    path = tmp_path / HISTORY_NAME
    history = History(tmp_path, ["a", "b"])
    whole = path.read_bytes()
    history.put(("a", run(1)), ("b", run(2)))
    history.put(("a", done(1)))

    assert path.read_bytes().startswith(whole)
    assert path.read_bytes().count(b"\n") == 4
    lines = 0
    for number in range(3, 5000):
        history.put(("b", done(number)))
        if (now := path.read_bytes().count(b"\n")) < lines:
            break
        lines = now
    assert path.read_bytes().count(b"\n") == 1
    again = History(tmp_path, ["a", "b"])
    assert (again.runs("a"), again.runs("b")) == (history.runs("a"), history.runs("b"))
    assert again.runs("b") == tuple(done(newest) for newest in range(number, number - MAX_RUNS, -1))


@pytest.mark.parametrize("cut", range(1, 30, 7))
def test_a_truncated_line_is_ignored(tmp_path: Path, cut: int) -> None:
    history = History(tmp_path, ["a"])
    history.put(("a", done(1)))
    history.put(("a", done(2)))
    with (tmp_path / HISTORY_NAME).open("rb+") as file:
        file.truncate(file.seek(0, os.SEEK_END) - cut)

    assert History(tmp_path, ["a"]).runs("a") == (done(1),)
    assert History(tmp_path, ["a"]).runs("a") == (done(1),)


@pytest.mark.parametrize("damage", [b"\0", b"x", b"[" * 10, b"\xff", b'"'])
def test_a_damaged_line_loses_no_other_line(tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Of what is appended at once, the disk may have the end and not the beginning when power is lost."""
    History(tmp_path, ["a", "b"]).put(("a", done(1)))
    History(tmp_path, ["a", "b"]).put(("a", done(2)), ("b", done(3)), ("a", done(4)))
    path = tmp_path / HISTORY_NAME
    lines = path.read_bytes().split(b"\n")
    lines[2] = damage * len(lines[2])
    path.write_bytes(b"\n".join(lines))

    history = History(tmp_path, ["a", "b"])

    assert history.runs("a") == (done(4), done(2), done(1))
    assert history.runs("b") == ()
    assert caplog.messages == ["Unreadable lines in the refresh history were skipped: 1"]
    assert History(tmp_path, ["a", "b"]).runs("a") == history.runs("a")
    assert len(caplog.messages) == 1


def test_a_line_without_a_run_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    History(tmp_path, ["a"]).put(("a", done(1)))
    for line in (b'{"dataset": "a"}', b"null", b'{"dataset": [], "run": {}}', b'{"dataset": "a", "run": {"id": "x"}}'):
        with (tmp_path / HISTORY_NAME).open("ab") as file:
            file.write(line + b"\n")

    assert History(tmp_path, ["a"]).runs("a") == (done(1),)
    assert caplog.messages == ["Unreadable lines in the refresh history were skipped: 4"]


def test_a_run_interrupted_by_a_restart_is_listed_as_failed(tmp_path: Path) -> None:
    history = History(tmp_path, ["a"])
    history.put(("a", done(1)))
    history.put(("a", replace(run(2), status="running", started_at="s")))
    history.put(("a", run(3)))

    queued, running, finished = History(tmp_path, ["a"]).runs("a")

    assert finished == done(1)
    assert (queued.status, queued.error) == (running.status, running.error) == ("failed", "interrupted")
    assert queued.finished_at == running.finished_at
    assert queued.finished_at is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "{}",
        "[" * 100_000,
        '{"format_version": 2, "datasets": {}}',
        '{"format_version": 1}',
        '{"format_version": 1, "datasets": []}',
        '{"format_version": 1, "datasets": {"a": 1}}',
        '{"format_version": 1, "datasets": {"a": [{"id": "x"}]}}',
        '{"format_version": 1, "datasets": {"a": [{"id": "x", "status": "odd", "requested_at": ""}]}}',
        '{"format_version": 1, "datasets": {"a": [{"id": 1, "status": "queued", "requested_at": ""}]}}',
        *(
            json.dumps({"format_version": 1, "datasets": {"a": [asdict(replace(done(1), finished_at=time))]}})
            for time in ("2026-01-0?T00:00Z", "2026-01-01T00:00")
        ),
    ],
)
def test_an_unreadable_history_is_dropped_with_a_warning(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / HISTORY_NAME).write_text(text)

    history = History(tmp_path, ["a"])

    assert history.runs("a") == ()
    assert "was reset" in caplog.text


def test_a_history_that_cannot_be_saved_is_not_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    history = History(tmp_path, ["a"])
    (tmp_path / HISTORY_NAME).unlink()
    (tmp_path / HISTORY_NAME).mkdir()

    history.put(("a", run(1)))
    history.put(("a", done(1)))

    assert history.runs("a") == (done(1),)
    assert caplog.messages == ["The refresh history cannot be saved: Is a directory"]
    assert [path.name for path in tmp_path.iterdir()] == [HISTORY_NAME]

    (tmp_path / HISTORY_NAME).rmdir()
    history.put(("a", done(2)))
    (tmp_path / HISTORY_NAME).unlink()
    (tmp_path / HISTORY_NAME).mkdir()
    history.put(("a", done(3)))
    assert len(caplog.messages) == 2

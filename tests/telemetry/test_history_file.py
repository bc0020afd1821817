import json
import logging
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from telemetry.history_file import HistoryFile
from tests.file_limit import file_limit
from tests.telemetry.events_of import statement

LARGE = 1 << 30


def numbers(path: Path) -> list[int]:
    return [int(json.loads(line)["id"], 16) for line in path.read_text().splitlines()]


def messages(caplog: pytest.LogCaptureFixture) -> list[tuple[str, Any]]:
    return [(record.getMessage(), getattr(record, "fields", {}).get("lost")) for record in caplog.records]


LOST = ("statements cannot be written to the history file", None)


def again(lost: int) -> tuple[str, str]:
    return ("statements are written to the history file again", str(lost))


def test_each_statement_is_a_line_that_only_the_owner_reads(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with closing(HistoryFile(path, LARGE, 5)) as file:
        file.take([statement(1), statement(2, fingerprint="", key="", sql="SELECT 'é'")])
        file.take([])

    first, second = map(json.loads, path.read_text().splitlines())
    assert path.stat().st_mode & 0o777 == 0o600
    assert (first["key"], first["fingerprint"], first["outcome"], first["sql"]) == ("analyst", "aa", "ok", None)
    assert (second["key"], second["fingerprint"], second["sql"]) == (None, None, "SELECT 'é'")


@pytest.mark.parametrize("files", [1, 2, 4])
def test_the_files_are_of_bounded_size_and_number(tmp_path: Path, files: int) -> None:
    path = tmp_path / "history.jsonl"
    with closing(HistoryFile(path, 2000, files)) as file:
        for number in range(0, 60, 3):
            file.take([statement(number + more) for more in range(3)])

    found = sorted(tmp_path.iterdir(), key=lambda found: (len(found.name), found.name), reverse=True)
    assert len(found) == files
    assert all(found.stat().st_size <= 2000 for found in found)
    kept = [number for one in found for number in numbers(one)]
    assert kept == list(range(60))[-len(kept) :]
    assert len(kept) >= 3 * files


def test_a_line_that_is_larger_than_a_file_has_one_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with closing(HistoryFile(path, 100, 3)) as file:
        file.take([statement(number) for number in range(4)])

    assert [numbers(path.with_name(name)) for name in ("history.jsonl.2", "history.jsonl.1", "history.jsonl")] == [
        [1],
        [2],
        [3],
    ]


def test_it_goes_on_where_it_or_its_predecessor_ended(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    for number in range(2):
        with closing(HistoryFile(path, LARGE, 5)) as file:
            file.take([statement(number)])
    path.write_text(path.read_text() + '{"id": "cut')
    with closing(HistoryFile(path, LARGE, 5)) as file:
        file.take([statement(2)])

    *_, cut, last = path.read_text().splitlines()
    assert cut == '{"id": "cut'
    assert json.loads(last)["id"] == f"{2:032x}"


def test_a_file_that_was_removed_or_moved_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "history.jsonl"
    with closing(HistoryFile(path, LARGE, 5)) as file:
        file.take([statement(1)])
        path.unlink()
        file.take([statement(2)])
        path.rename(tmp_path / "moved")
        file.take([statement(3)])

    assert (numbers(tmp_path / "moved"), numbers(path)) == ([2], [3])
    assert messages(caplog) == []


def test_what_is_not_a_regular_file_is_refused_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path, target = tmp_path / "history.jsonl", tmp_path / "target"
    with closing(HistoryFile(path, LARGE, 5)) as file:
        path.symlink_to(target)
        file.take([statement(1)])
        path.unlink()
        os.mkfifo(path)
        file.take([statement(2), statement(3)])
        path.unlink()
        path.mkdir()
        file.take([statement(4)])
        path.rmdir()
        file.take([statement(5)])
        file.take([statement(6)])

    assert not target.exists()
    assert numbers(path) == [5, 6]
    assert messages(caplog) == [LOST, again(4)]


@pytest.mark.parametrize("content", ["version: v1\n", "PAR1", '{"id":1}\n', "\n", '{"key'])
def test_a_file_of_something_else_stays_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    path = tmp_path / "runtime.yaml"
    path.write_text(content)
    with closing(HistoryFile(path, 10, 2)) as file:
        file.open()
        assert messages(caplog) == [LOST]
        file.take([statement(1), statement(2)])

    assert [(found.name, found.read_text()) for found in tmp_path.iterdir()] == [("runtime.yaml", content)]
    assert messages(caplog) == [LOST]


def test_a_full_disk_loses_whole_lines_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "history.jsonl"
    with closing(HistoryFile(path, LARGE, 5)) as file:
        file.take([statement(1)])
        with file_limit(path.stat().st_size + 10):
            file.take([statement(2)])
            file.take([statement(3)])
            assert numbers(path) == [1]
        file.take([statement(4)])

    assert numbers(path) == [1, 4]
    assert messages(caplog) == [LOST, again(2)]


def test_two_runtimes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with closing(HistoryFile(path, 2000, 100)) as one, closing(HistoryFile(path, 2000, 100)) as other:
        for number in range(0, 60, 2):
            one.take([statement(number)])
            other.take([statement(number + 1)])

    found = list(tmp_path.iterdir())
    assert sorted(number for one_file in found for number in numbers(one_file)) == list(range(60))
    assert all(one_file.stat().st_size <= 2000 for one_file in found)


def test_a_full_disk_takes_no_line_of_another_runtime(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with closing(HistoryFile(path, LARGE, 5)) as one, closing(HistoryFile(path, LARGE, 5)) as other:
        one.take([statement(1)])
        other.take([statement(2)])
        with file_limit(path.stat().st_size + 10):
            one.take([statement(3)])

    assert numbers(path) == [1, 2]


def test_a_file_that_was_cut_short_has_room_again(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with closing(HistoryFile(path, 1000, 5)) as file:
        file.take([statement(1), statement(2)])
        os.truncate(path, 0)
        file.take([statement(3), statement(4)])

    assert [found.name for found in tmp_path.iterdir()] == ["history.jsonl"]
    assert numbers(path) == [3, 4]

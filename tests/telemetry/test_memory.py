"""What a process remembers, as configurations follow each other."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from runtimeconf.model import HistoryConfig
from telemetry.events import Question
from telemetry.memory import Memory
from tests.telemetry.events_of import statement


def is_open(file: Path) -> bool:
    return any(link.is_symlink() and link.readlink() == file for link in Path("/proc/self/fd").iterdir())


def test_a_file_is_open_as_long_as_the_configuration_has_it(tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"

    memory = Memory(HistoryConfig(file=first))
    memory.put(statement(1))
    assert is_open(first)
    memory.adopt(HistoryConfig(file=second))
    memory.put(statement(2))
    assert (is_open(first), is_open(second)) == (False, True)
    memory.adopt(HistoryConfig(enabled=False, file=second))
    memory.put(statement(3))

    assert not is_open(second)
    assert [len(file.read_text().splitlines()) for file in (first, second)] == [1, 1]
    with pytest.raises(LookupError, match="disabled"):
        memory.answer(Question("history", "aa", 10))


def test_half_a_character_from_a_worker_is_remembered_in_a_single_process_too(tmp_path: Path) -> None:
    memory = Memory(HistoryConfig(file=tmp_path / "history.jsonl"))

    memory.put(replace(statement(1), statement="s\ud800"))

    (row,) = memory.answer(Question("history", "aa", 10))
    assert row["statement"] == "s?"
    memory.adopt(HistoryConfig(enabled=False))

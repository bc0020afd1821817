"""What a process remembers, as configurations follow each other."""

from dataclasses import replace
from pathlib import Path

from runtimeconf.model import HistoryConfig, RuntimeConfig
from telemetry.aggregates import Memory
from tests.telemetry.events_of import statement


def is_open(file: Path) -> bool:
    return any(link.is_symlink() and link.readlink() == file for link in Path("/proc/self/fd").iterdir())


def test_a_file_is_open_as_long_as_the_configuration_has_it(tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    config = RuntimeConfig(file=tmp_path / "runtime.yaml", state_dir=tmp_path)

    def with_history(history: HistoryConfig) -> RuntimeConfig:
        return replace(config, history=history)

    memory = Memory(with_history(HistoryConfig(file=first)))
    memory.take(statement(1))
    assert is_open(first)
    memory.adopt(with_history(HistoryConfig(file=second)))
    memory.take(statement(2))
    assert (is_open(first), is_open(second)) == (False, True)
    memory.adopt(with_history(HistoryConfig(enabled=False, file=second)))
    memory.take(statement(3))

    assert not is_open(second)
    assert [len(file.read_text().splitlines()) for file in (first, second)] == [1, 1]

"""What is counted and remembered of the runtime, in one process."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from runtimeconf.model import HistoryConfig, RuntimeConfig
from telemetry import collector
from telemetry.collector import Aggregate, Answer
from telemetry.counters import Counters
from telemetry.events import Event, StatementEvent
from telemetry.history import HISTORY, History
from telemetry.history_file import HistoryFile
from telemetry.statistics import STATISTICS, Statistics


class Memory:
    """The aggregates that get every event, and what answers questions about them."""

    def __init__(self, config: RuntimeConfig) -> None:
        self.counters = Counters()
        self._statements = _Statements()
        self.aggregates: Sequence[Aggregate] = [self.counters, self._statements]
        self.answers: Mapping[str, Answer] = {
            HISTORY: self._statements.history,
            STATISTICS: self._statements.statistics,
        }
        self.adopt(config)

    def adopt(self, config: RuntimeConfig) -> None:
        """Go on with another configuration."""
        self.counters.expect_datasets([dataset.name for dataset in config.datasets])
        self._statements.adopt(config.history)

    def take(self, event: Event) -> None:
        """Take an event of this process."""
        for aggregate in self.aggregates:
            aggregate.take([event])

    def answer(self, question: Mapping[str, Any]) -> Any:
        """Answer a question of this process. Raises LookupError if nobody can."""
        return collector.answer(self.answers, question)


class _Kept:
    """What is kept of statements as long as the history is enabled."""

    def __init__(self, config: HistoryConfig) -> None:
        self.history = History(config.max_entries)
        self.statistics = Statistics()
        self.file: HistoryFile | None = None

    def adopt(self, config: HistoryConfig) -> None:
        self.history.resize(config.max_entries)
        if not config.sql:
            self.history.forget_sql()
            self.statistics.forget_sql()
        self.close()
        if config.file is not None:
            self.file = HistoryFile(config.file, config.file_max_bytes, config.files)
            self.file.open()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None


class _Statements:
    """The `Aggregate` of statements: history, statistics and file, if they are enabled."""

    def __init__(self) -> None:
        self._config = HistoryConfig(enabled=False)
        self._kept: _Kept | None = None
        self._lock = threading.Lock()  # no statement comes while another configuration is adopted

    def adopt(self, config: HistoryConfig) -> None:
        """Go on with another configuration; what it does not keep is forgotten."""
        if config == self._config:
            return
        with self._lock:
            self._config = config
            kept = self._kept
            if config.enabled:
                self._kept = kept = kept or _Kept(config)
                kept.adopt(config)
            elif kept is not None:
                self._kept = None
                kept.close()

    def history(self, question: Mapping[str, Any]) -> Any:
        """Answer a question about the history."""
        return self._enabled().history.answer(question)

    def statistics(self, question: Mapping[str, Any]) -> Any:
        """Answer a question about the statistics."""
        return self._enabled().statistics.answer(question)

    def _enabled(self) -> _Kept:
        if self._kept is None:
            raise LookupError("The history is disabled.")
        return self._kept

    def take(self, events: Sequence[Event]) -> None:
        """Take *events*."""
        with self._lock:
            kept, keeps_sql = self._kept, self._config.sql
            if kept is None:
                return
            statements = [event for event in events if isinstance(event, StatementEvent)]
            if not keeps_sql:  # A process may still send it during a reload.
                statements = [event if event.sql is None else replace(event, sql=None) for event in statements]
            for aggregate in (kept.history, kept.statistics, kept.file):
                if aggregate is not None:
                    aggregate.take(statements)

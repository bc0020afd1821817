"""The statement history of the runtime, kept in one process: `watch`, or the only process."""

import threading
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from runtimeconf.model import HistoryConfig
from telemetry.events import Event, Line, Question, StatementEvent, decode, encode
from telemetry.history import History
from telemetry.history_file import HistoryFile
from telemetry.statistics import Statistics


class Memory:
    """The `Aggregate` of statements: history, statistics and file, while *config* enables them."""

    def __init__(self, config: HistoryConfig) -> None:
        self._config = HistoryConfig(enabled=False)
        self._statements: _Statements | None = None
        self._lock = threading.Lock()  # held so that no statement arrives while another configuration is being adopted
        self.adopt(config)

    def adopt(self, config: HistoryConfig) -> None:
        """Continue with another configuration, and discard the data that it does not keep."""
        if config == self._config:
            return
        with self._lock:
            self._config, former = config, self._statements
            if former is not None:
                former.close()
            self._statements = (former or _Statements(config)) if config.enabled else None
            if self._statements is not None:
                self._statements.adopt(config)

    def take(self, events: Sequence[Line]) -> None:
        """Remember the statements in *events*."""
        with self._lock:
            if self._statements is None:
                return
            found = [event for event in events if isinstance(event, StatementEvent)]
            if not self._config.sql:  # A process may still send the text during a reload.
                found = [event if event.sql is None else replace(event, sql=None) for event in found]
            self._statements.take(found)

    def put(self, event: Event) -> None:
        """Record an event of this process as if it had arrived from another process."""
        self.take([decode(encode(event))])

    def answer(self, question: Question) -> Any:
        """
        Answer *question* with JSON types.

        Raises:
            LookupError: The history is disabled.
        """
        if (statements := self._statements) is None:
            raise LookupError("The history is disabled.")
        source = statements.history if question.about == "history" else statements.statistics
        return source.answer(question.key, question.limit)


class _Statements:
    """The statement data kept while the history is enabled."""

    def __init__(self, config: HistoryConfig) -> None:
        self.history = History(config.max_entries)
        self.statistics = Statistics()
        self._file: HistoryFile | None = None

    def adopt(self, config: HistoryConfig) -> None:
        self.history.resize(config.max_entries)
        if not config.sql:
            self.history.forget_sql()
            self.statistics.forget_sql()
        if config.file is not None:
            self._file = HistoryFile(config.file, config.file_max_bytes, config.files)
            self._file.open()

    def take(self, events: Sequence[StatementEvent]) -> None:
        self.history.take(events)
        self.statistics.take(events)
        if self._file is not None:
            self._file.take(events)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

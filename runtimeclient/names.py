"""The names of a runtime's tables and columns, read in the background for the completion at the prompt."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from runtimeclient.client import RuntimeClient

#: Every table that can be asked, with its columns. `SHOW TABLES` would need one statement more for each.
COLUMNS_SQL = (
    "SELECT table_name, column_name, data_type FROM information_schema.columns"
    " WHERE table_schema NOT IN ('information_schema', 'pg_catalog') ORDER BY table_name, ordinal_position"
)
# A completion menu is no place for more.
_MOST_COLUMNS = 20_000
# How old the names may be when a new statement is begun.
_AGE_S = 60.0
# The same for names that could not be had: a busy runtime refuses now and then.
_RETRY_S = 1.0


class Names:
    """
    Knows the tables and their columns as the runtime last told them; empty until it first did.

    `refresh` starts a thread that asks, if it is time to, and returns at once; every prompt and completion calls it. A
    runtime that does not answer, or not as it should, leaves what is known, and is soon asked again: a missing
    completion is no reason to disturb the user.
    """

    def __init__(self, client: RuntimeClient) -> None:
        self.columns: Mapping[str, Mapping[str, str]] = {}
        self._client = client
        self._asked_at = float("-inf")
        self._has_failed = False
        self._thread: threading.Thread | None = None

    def refresh(self, *, is_forced: bool = False) -> None:
        """Ask in the background, unless that is under way or was done a moment ago."""
        is_due = is_forced or time.monotonic() - self._asked_at > (_RETRY_S if self._has_failed else _AGE_S)
        if is_due and (self._thread is None or not self._thread.is_alive()):
            self._asked_at = time.monotonic()
            # A daemon: nobody waits for it when the prompt is left.
            self._thread = threading.Thread(target=self._ask, daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Wait until what was asked for is there, or will not come."""
        if self._thread is not None:
            self._thread.join()

    def _ask(self) -> None:
        columns: dict[str, dict[str, str]] = {}
        self._has_failed = True
        try:
            with self._client.sql(COLUMNS_SQL) as answer:
                for row in answer.rows():
                    table, column, type_ = (row.values.get(n) for n in ("table_name", "column_name", "data_type"))
                    # A name that could act on the terminal is not put into a line.
                    if isinstance(table, str) and isinstance(column, str) and (table + column).isprintable():
                        columns.setdefault(table, {})[column] = type_ if isinstance(type_, str) else ""
                    if answer.rows_read >= _MOST_COLUMNS:
                        break
        except Exception:  # noqa: BLE001 (the client may be closed in the meantime, and then breaks anywhere)
            return
        self.columns, self._has_failed = columns, False

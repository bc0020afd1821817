"""The tables and columns of a runtime, read in the background for completion at the prompt."""

import threading
import time
from collections.abc import Mapping

from runtimeclient.client import RuntimeClient

#: All tables with their columns in one statement; `SHOW TABLES` would need one more for each table.
COLUMNS_SQL = (
    "SELECT table_name, column_name, data_type FROM information_schema.columns"
    " WHERE table_schema NOT IN ('information_schema', 'pg_catalog') ORDER BY table_name, ordinal_position"
)
# A completion menu cannot use more.
_MAX_COLUMNS = 20_000
# Seconds between two refreshes.
_MAX_AGE_S = 60.0
# The same after a failure: a busy runtime may refuse a statement.
_RETRY_S = 1.0


class Catalog:
    """
    The tables and columns that the runtime last reported; empty at first.

    `refresh` starts a background query if one is due, and returns at once; every prompt and completion calls it. If the
    query fails, the old names stay and it is soon repeated, silently: a missing completion is not worth a message.
    """

    def __init__(self, client: RuntimeClient) -> None:
        self.columns: Mapping[str, Mapping[str, str]] = {}
        self._client = client
        self._due_at = float("-inf")
        self._thread: threading.Thread | None = None

    def refresh(self) -> None:
        """Query in the background, unless a query is running or was run recently."""
        if time.monotonic() > self._due_at and (self._thread is None or not self._thread.is_alive()):
            self._due_at = time.monotonic() + _RETRY_S
            # A daemon, so that it does not delay leaving the prompt.
            self._thread = threading.Thread(target=self._query, daemon=True)
            self._thread.start()

    def _query(self) -> None:
        columns: dict[str, dict[str, str]] = {}
        try:
            with self._client.sql(COLUMNS_SQL) as answer:
                for row in answer.rows():
                    table, column, type_ = (row.values.get(n) for n in ("table_name", "column_name", "data_type"))
                    # Skip names that could control the terminal.
                    if isinstance(table, str) and isinstance(column, str) and (table + column).isprintable():
                        columns.setdefault(table, {})[column] = type_ if isinstance(type_, str) else ""
                    if answer.rows_read >= _MAX_COLUMNS:
                        break
        except Exception:  # noqa: BLE001 (the client may be closed meanwhile, and then fails anywhere)
            return
        self.columns, self._due_at = columns, time.monotonic() + _MAX_AGE_S

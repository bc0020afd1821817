"""Completion at the prompt: SQL words, tables, columns, and dot commands with their arguments."""

import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from runtimeclient.client import RuntimeClient
from runtimeclient.prompt.dot_commands import DOT_COMMANDS, NAMES
from runtimeclient.sql.statements import LETTER, StatementSplitter

_TABLE_NAME = "CASE WHEN table_schema IN ('main', 'public') THEN table_name ELSE table_schema || '.' || table_name END"
_OURS = "WHERE table_schema NOT IN ('information_schema', 'pg_catalog')"
#: Returns all tables and views, of which `SHOW TABLES` lists those without a schema.
TABLES_SQL = f"SELECT {_TABLE_NAME} AS name FROM information_schema.tables {_OURS} ORDER BY 1"  # noqa: S608 - constants
#: Returns all tables with their columns.
COLUMNS_SQL = (
    f"SELECT {_TABLE_NAME} AS table_name, column_name, data_type FROM information_schema.columns {_OURS} "  # noqa: S608
    "ORDER BY 1, ordinal_position"
)
# The maximum number of columns. A completion menu cannot use more.
_MAX_COLUMNS = 20_000
# Seconds between two refreshes.
_MAX_AGE_S = 60.0
# Seconds after a failure, because a busy runtime may refuse a statement.
_RETRY_S = 1.0


class Catalog:
    """
    The tables and columns that the runtime last reported; empty at first.

    `refresh` starts a background query if one is due, and returns immediately. Every prompt and completion calls it. If
    the query fails, the old names stay and the query is soon repeated silently, because a missing completion is not
    worth a message.
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


# Words of DuckDB's SQL, separated by white space.
_KEYWORDS = """
    ALL AND ANTI ANY AS ASC ASOF BETWEEN BY CASE CAST COLLATE COLUMNS CROSS CUBE CURRENT DESC DESCRIBE
    DISTINCT ELSE END ESCAPE EXCEPT EXCLUDE EXISTS EXPLAIN FALSE FILTER FIRST FOLLOWING FROM FULL GROUP
    GROUPING HAVING ILIKE IN INNER INTERSECT INTERVAL IS JOIN LAST LATERAL LEFT LIKE LIMIT NATURAL NOT NULL
    NULLS OFFSET ON OR ORDER OUTER OVER PARTITION PIVOT POSITIONAL PRECEDING QUALIFY RANGE RECURSIVE REPLACE
    RIGHT ROLLUP ROW ROWS SAMPLE SELECT SEMI SETS SHOW SIMILAR SUMMARIZE TABLE TABLES TABLESAMPLE THEN TO TRUE
    TRY_CAST UNBOUNDED UNION UNNEST UNPIVOT USING VALUES WHEN WHERE WINDOW WITH
"""
_TYPES = """
    BIGINT BLOB BOOLEAN DATE DECIMAL DOUBLE FLOAT HUGEINT INTEGER JSON SMALLINT STRUCT TEXT TIME TIMESTAMP
    TIMESTAMPTZ TINYINT UBIGINT UINTEGER USMALLINT UTINYINT UUID VARCHAR
"""
_FUNCTIONS = """
    abs any_value approx_count_distinct arg_max arg_min array_agg avg bit_count bool_and bool_or ceil coalesce
    concat concat_ws contains corr count cume_dist current_date date_add date_diff date_part date_sub
    date_trunc dayname dense_rank ends_with epoch exp extract first_value floor format generate_series
    greatest hash hour ifnull lag last_value lead least left length list list_contains ln log10 lower lpad
    ltrim max md5 median min minute mode month monthname now ntile nullif percent_rank power printf
    quantile_cont quantile_disc quarter random range rank regexp_extract regexp_matches regexp_replace repeat
    replace reverse round row_number rpad rtrim second sign split sqrt starts_with stddev string_agg strftime
    strptime substring sum time_bucket today trim trunc unnest upper variance week weekday year
"""

_WORD = re.compile(rf"{LETTER}*\Z")


def _name(group: str) -> str:
    """Return the pattern of a name. The regex group is *group* without quotes, and *group*_quoted in quotes."""
    return rf"(?:\"(?P<{group}_quoted>[^\"]+)\"|(?P<{group}>{LETTER}+))"


_QUALIFIER = re.compile(rf"{_name('name')}\.\Z")
_TABLE_NEXT = re.compile(
    r"(?:\b(?:from|join|describe|summarize|show|pivot|unpivot)\s+|\bfrom\s[^()]*,\s*)\Z", re.IGNORECASE
)
_TABLE = re.compile(
    rf"\b(?:from|join|,)\s+{_name('table')}(?:\.{_name('part')})?(?:\s+(?:as\s+)?{_name('alias')})?", re.IGNORECASE
)
_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_]*")
# Words that may follow a table and are not an alias.
_RESERVED = frozenset(_KEYWORDS.lower().split())
# Further names that DuckDB requires to be quoted, as `duckdb_keywords()` lists them, or that mean something else.
_OTHERS = """
    analyse analyze array asymmetric at authorization binary both check collation column concurrently constraint
    create default deferrable do fetch for foreign freeze glob initially into isnull lambda leading notnull only
    overlaps pivot_longer pivot_wider placing primary references returning some symmetric trailing unique unpack
    user variadic verbose
"""
_QUOTED_NAMES = _RESERVED.union(_OTHERS.split())


class PromptCompleter(Completer):
    """Completes the text before the cursor from what is known, without waiting."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Return the completions, the likeliest first."""
        self._catalog.refresh()
        text = document.text_before_cursor
        if text.startswith((".", "\\")) and "\n" not in text:
            return self._complete_command(text, complete_event)
        return self._complete_statement(document)

    def _complete_command(self, text: str, event: CompleteEvent) -> Iterable[Completion]:
        typed, space, argument = text.partition(" ")
        if not space:
            return _matching(typed, dict.fromkeys(NAMES, ""))
        name = NAMES.get(typed.lower())
        if name is None:
            return ()
        command, argument = DOT_COMMANDS[name], argument.lstrip()
        if command.takes == "file":
            return self._paths.get_completions(Document(argument), event)
        if command.takes == "table":
            return _matching(argument, dict.fromkeys(self._catalog.columns, ""))
        return _matching(argument.rpartition(" ")[2], dict.fromkeys(command.words, ""))

    def _complete_statement(self, document: Document) -> Iterator[Completion]:
        splitter = StatementSplitter()
        for _ in splitter.feed(document.text_before_cursor):
            pass
        if splitter.is_inside:
            return
        typed = _WORD.findall(splitter.rest)[0]
        before = splitter.rest.removesuffix(typed)
        tables = self._catalog.columns
        used = self._tables_in(before + " " + document.text_after_cursor.partition(";")[0])
        if qualifier := _QUALIFIER.search(before):
            name = (qualifier["name_quoted"] or qualifier["name"]).lower()
            in_schema = [table.partition(".")[2] for table in tables if table.lower().startswith(f"{name}.")]
            columns = tables.get(used.get(name, ""), {})
            shown = {_quoted(c): t for c, t in columns.items()} | dict.fromkeys(map(_quoted_table, in_schema), "table")
            yield from _matching(typed, shown)
            return
        shown_tables = {_quoted_table(table): "table" for table in tables}
        if _TABLE_NEXT.search(before):
            yield from _matching(typed, shown_tables)
            return
        # If no table is named, offer the columns of all tables once something is typed.
        considered = dict.fromkeys(used.values()) if used or not typed else tables
        columns = {_quoted(c): t for table in considered for c, t in tables[table].items()}
        yield from _matching(typed, columns | shown_tables | _words(typed))

    def _tables_in(self, text: str) -> Mapping[str, str]:
        """Return the tables that a text names, by lower-case name and alias."""
        known = {table.lower(): table for table in self._catalog.columns}
        used = {}
        for found in _TABLE.finditer(text):
            names = (found["table_quoted"] or found["table"], found["part_quoted"] or found["part"])
            table = known.get(".".join(filter(None, names)).lower())
            if table is not None:
                used[table.lower().rpartition(".")[2]] = table
                alias = (found["alias_quoted"] or found["alias"] or "").lower()
                if alias and alias not in _RESERVED:
                    used[alias] = table
        return used


def _words(typed: str) -> dict[str, str]:
    """Return the SQL keywords in the case of the typed text, or in upper case if nothing was typed."""
    cased = str.lower if typed[:1].islower() else str.upper
    words = {cased(word): "" for word in f"{_KEYWORDS} {_TYPES}".split()}
    return words | {function + "(": "function" for function in _FUNCTIONS.split()} if typed else words


def _matching(typed: str, words: Mapping[str, str]) -> Iterator[Completion]:
    low = typed.lower()
    for word, meaning in words.items():
        if word.lower().removeprefix('"').startswith(low):
            yield Completion(word, -len(typed), display_meta=meaning)


def _quoted(name: str) -> str:
    """Quote a name if SQL needs it."""
    return name if _PLAIN_NAME.fullmatch(name) and name not in _QUOTED_NAMES else quoted(name)


def _quoted_table(name: str) -> str:
    return ".".join(map(_quoted, name.split(".")))


def quoted(name: str) -> str:
    """Quote a name, which may contain any characters."""
    return '"' + name.replace('"', '""') + '"'

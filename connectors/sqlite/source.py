"""
`sqlite:` sources: a table or view in an SQLite database file, read with its ADBC driver.

SQLite assigns a type to each value, regardless of the column's declaration, but the engine assigns a type to each
column. Therefore each column is read as its declared type, and the statement marks each row that contains a value of
another type. Such a row is an error, never a guess. The driver infers result types from the first rows, so the
statement begins with an extra row that has the correct types and is dropped.

Dates and times are text in SQLite, and the engine would change many of them. It drops the time of a date, the date and
the zone of a time, and digits that its type lacks, and it accepts words such as `epoch`. Therefore each text must have
a form that the engine reads exactly. A first scan of the table finds time columns that need nanoseconds.
"""

import os
import re
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import adbc_driver_manager
import adbc_driver_sqlite.dbapi
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from connectors.databases import Column, chosen, condition, engine_types, explained, mapped
from connectors.sqlite.params import SqliteParams
from datasources.errors import SourceError
from datasources.sources.pinned_file import Identity, version_of
from datasources.sources.source import Load, reason_for
from datasources.sources.streams import StreamScan
from datasources.sql import identifier, literal
from runtimeconf.model import DatasetConfig

#: The maximum wait for a writer in seconds. After that, the load fails until the next refresh.
_BUSY_S = 5.0

_BATCH_ROWS = 16_384

#: File header fields: page size, change counter, number of pages, and the change counter for that number.
_HEADER = struct.Struct(">16x H 6x I I 60x I")

#: The name of the column that marks an invalid row. No table has it twice.
_FAULT = "querykeep fault"
_OURS = -1

_HINT = "; sqlite_types: text reads every value"


class _Kind(Struct, frozen=True):
    """
    How a column with a certain declaration is read.

    Args:
        accepts: A description of the accepted values.
        stored: The types of the accepted values, as returned by SQLite's `typeof`.
        example: A value from which the driver infers the column's type.
        value: The expression to select. `{}` is the column.
        engine_type: See `Column.engine_type`.
        also: A further condition on the values.
        form: A regular expression for text that the engine reads as `engine_type` without changes.
    """

    accepts: str
    stored: tuple[str, ...]
    example: str
    value: str = "{}"
    engine_type: str | None = None
    also: str | None = None
    form: str | None = None


_DAY = r"\d{4,6}-\d{1,2}-\d{1,2}"
#: Excludes 24:00, which the engine reads as 00:00 of the next day, and 60 seconds.
_CLOCK = r"(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d{0,DIGITS}0*)?)?"
_MIDNIGHT = r"00:00(?::00(?:\.0*)?)?"
#: The engine would drop other time zones.
_UTC = r" ?(?:Z|[+-]00(?::?00)?)"


def _timestamps(engine_type: str, digits: int) -> _Kind:
    clock = _CLOCK.replace("DIGITS", str(digits))
    example = "strings such as 2024-01-31 12:34:56"
    return _Kind(example, ("text",), "''", engine_type=engine_type, form=f"{_DAY}(?:[ T]{clock}(?:{_UTC})?)?")


def _times(engine_type: str, digits: int) -> _Kind:
    clock = _CLOCK.replace("DIGITS", str(digits))
    example = "strings such as 12:34:56"
    return _Kind(example, ("text",), "''", engine_type=engine_type, form=rf"{clock}|24:00(?::00(?:\.0*)?)?")


_INTEGER = _Kind("integers", ("integer",), "0")
_BOOLEAN = _Kind("0 and 1", ("integer",), "0", engine_type="BOOLEAN", also="{} IN (0, 1)")
# Doubles represent integers up to 2**53 exactly.
_REAL = _Kind(
    f"numbers; integers up to {2**53}",
    ("real", "integer"),
    "0.5",
    "CAST({} AS REAL)",
    also=f"abs({{}}) <= {2**53} OR typeof({{}}) = 'real'",
)
#: Older SQLite versions write 15 digits of a double, which may need 17.
_AS_TEXT = (
    "CASE WHEN typeof({}) <> 'real' OR CAST(CAST({} AS TEXT) AS REAL) = {} THEN CAST({} AS TEXT) "
    "ELSE printf('%!.17g', {}) END"
)
_TEXT = _Kind("strings and numbers", ("text", "integer", "real"), "''", _AS_TEXT)
_BLOB = _Kind("blobs", ("blob",), "x''")
_DATE = _Kind("strings such as 2024-01-31", ("text",), "''", engine_type="DATE", form=f"{_DAY}(?:[ T]{_MIDNIGHT})?")
_TIMESTAMP, _TIMESTAMP_NS = _timestamps("TIMESTAMP", 6), _timestamps("TIMESTAMP_NS", 9)
_TIME, _TIME_NS = _times("TIME", 6), _times("TIME_NS", 9)
_ANYTHING = _Kind(
    "everything",
    ("text", "integer", "real", "blob"),
    "''",
    f"CASE typeof({{}}) WHEN 'blob' THEN hex({{}}) ELSE {_AS_TEXT} END",
)

#: The types with nanoseconds by the types without.
_FINER = {_TIMESTAMP: _TIMESTAMP_NS, _TIME: _TIME_NS}
#: Whether a text has sub-microsecond digits. Most texts are too short, and the length check is the fastest.
_IS_FINER = "length({0}) > 14 AND {0} GLOB '*.[0-9][0-9][0-9][0-9][0-9][0-9]*[1-9]*'"

#: Kinds by a substring of the declaration. The first match counts. INT, CHAR, CLOB, TEXT, BLOB, REAL, FLOA and DOUB
#: follow SQLite's affinity rules (section 3.1 of its page on datatypes). The other words mean nothing to SQLite.
_KINDS = (
    (re.compile("INT"), _INTEGER),
    (re.compile("CHAR|CLOB|TEXT"), _TEXT),
    (re.compile("BLOB"), _BLOB),
    (re.compile("REAL|FLOA|DOUB"), _REAL),
    (re.compile("BOOL"), _BOOLEAN),
    (re.compile("DATETIME|TIMESTAMP"), _TIMESTAMP),
    (re.compile("DATE"), _DATE),
    (re.compile("TIME"), _TIME),
    (re.compile("NUM|DEC"), _REAL),
)


class _SqliteScan(StreamScan):
    """A scan in which every value can also be read as text."""

    hint = _HINT


class SqliteSource:
    """One table or view in a database file. Other programs may write to the file at the same time."""

    def __init__(self, dataset: DatasetConfig, params: SqliteParams) -> None:
        self._path = Path(dataset.location)
        self._shown = re.sub(r"^sqlite:(//)?", "", dataset.from_)
        self._table = params.sqlite_table
        self._is_text = params.sqlite_types == "text"

    @contextmanager
    def open(self, load: Load) -> Iterator[StreamScan]:
        """See `Source.open`."""
        load.deadline.check()
        before = self._version()
        self._refuse_cut()
        with (
            explained(load, self._explanation, adbc_driver_manager.Error),
            # Open by name, not by descriptor, because SQLite looks for the write-ahead log next to the file.
            adbc_driver_sqlite.dbapi.connect(f"file:{quote(str(self._path))}?mode=ro") as connection,
            connection.cursor() as cursor,
        ):
            self._prepare(cursor, load)
            columns, kinds = self._columns(cursor)
            asked = self._refined(cursor, chosen(columns, load.wanted), kinds)
            cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(_BATCH_ROWS)})
            cursor.execute(self._statement(asked, kinds) + condition(columns, load.wanted))
            reader = mapped(cursor.fetch_record_batch(), _checked_rows(asked, kinds, self._table))
            # The snapshot of the transaction is older than the second version.
            version = before if before == self._version() else None
            yield _SqliteScan(reader, load, self._explanation, version=version, types=engine_types(asked))

    def has_changed(self, version: str, load: Load) -> bool:
        """Compare the identities of the file and of its write-ahead log."""
        load.deadline.check()
        return self._version() != version

    def _version(self) -> str | None:
        """Return the version of the file; None until it has settled."""
        identities = []
        for suffix in ("", "-wal"):
            try:
                info = Path(f"{self._path}{suffix}").stat()
            except FileNotFoundError as exc:
                if suffix:
                    continue
                raise SourceError(f"'{self._shown}' does not exist.") from exc
            except OSError as exc:
                raise SourceError(f"'{self._shown}' cannot be read: {exc.strerror}.") from exc
            if not stat.S_ISREG(info.st_mode):
                raise SourceError(f"'{self._shown}' is not a regular file.")
            if not suffix and not os.access(self._path, os.R_OK):
                raise SourceError(f"'{self._shown}' cannot be read: Permission denied.")
            if suffix and not info.st_size:
                continue  # Opening the database creates a write-ahead log.
            identities.append(Identity.of(info))
        return version_of(identities)

    def _refuse_cut(self) -> None:
        """Compare the file size with the header (section 1.3 of SQLite's page on its file format)."""
        # Do this before connecting, because closing a descriptor of the file drops all of this process's locks on it.
        with self._path.open("rb", buffering=0) as file:
            header, size = file.read(_HEADER.size), os.fstat(file.fileno()).st_size
        if len(header) < _HEADER.size:
            return
        page_bytes, changes, pages, counted_at = _HEADER.unpack(header)
        if changes == counted_at and size < pages * (65_536 if page_bytes == 1 else page_bytes):
            raise SourceError(f"'{self._shown}' was cut short, or is being written to.")

    def _prepare(self, cursor: Any, load: Load) -> None:
        busy_ms = int(1000 * max(0.0, min(_BUSY_S, load.deadline.left_s)))
        for pragma in (f"busy_timeout = {busy_ms}", "query_only = on", "trusted_schema = off", "cell_size_check = on"):
            cursor.execute(f"PRAGMA {pragma}")

    def _columns(self, cursor: Any) -> tuple[list[Column], dict[str, _Kind]]:
        cursor.execute(
            "SELECT name, type FROM pragma_table_xinfo(" + literal(self._table) + ") WHERE hidden <> 1"  # noqa: S608
        )
        found = cursor.fetchall()
        if not found:
            raise SourceError(f"'{self._shown}' has no table or view '{self._table}'.")
        kinds = {name: _ANYTHING if self._is_text else _kind(declared) for name, declared in found}
        return [_column(name, kind) for name, kind in kinds.items()], kinds

    def _refined(self, cursor: Any, asked: Sequence[Column], kinds: dict[str, _Kind]) -> Sequence[Column]:
        """Return the columns *asked*. Columns with sub-microsecond digits get a finer type in *kinds*."""
        times = [column.name for column in asked if kinds[column.name] in _FINER]
        if not times:
            return asked
        tests = ", ".join(f"max({_IS_FINER.format(identifier(name))})" for name in times)
        cursor.execute(f"SELECT {tests} FROM {identifier(self._table)}")  # noqa: S608 - quoted
        for name, is_finer in zip(times, cursor.fetchone(), strict=True):
            if is_finer:
                kinds[name] = _FINER[kinds[name]]
        return [_column(column.name, kinds[column.name]) for column in asked]

    def _statement(self, columns: Sequence[Column], kinds: dict[str, _Kind]) -> str:
        ours = ", ".join(f"{kinds[column.name].example} AS {identifier(column.name)}" for column in columns)
        values = ", ".join(column.expression for column in columns)
        faults = " ".join(
            f"WHEN NOT coalesce({_fits(column.name, kinds[column.name])}, 1) THEN {index}"
            for index, column in enumerate(columns)
        )
        return (
            f"SELECT {ours}, {_OURS} AS {identifier(_FAULT)} UNION ALL "  # noqa: S608 - quoted
            f"SELECT {values}, CASE {faults} ELSE {_OURS} END FROM {identifier(self._table)}"
        )

    def _explanation(self, error: Exception) -> SourceError:
        """Turn a library error, which contains paths and SQL, into a sentence."""
        reasons = (
            ("locked|busy", "another program is writing to it; the next refresh will read it again"),
            ("not a database|encrypted", "it is not an SQLite database, or it is encrypted"),
            ("malformed|corrupt", "it is damaged"),
            ("unable to open", "it cannot be opened; in WAL mode, write permission on its directory is required"),
            ("no such", f"the view '{self._table}' references a table, column or function that does not exist"),
            ("not authorized|unsafe use", f"the view '{self._table}' does something that is not allowed in a source"),
            ("overflow", f"a number in '{self._table}' is too large"),
        )
        reason = reason_for(str(error), reasons)
        return SourceError(f"'{self._shown}': {reason or f'SQLite cannot read {self._table!r}'}.")


def _checked_rows(
    columns: Sequence[Column], kinds: dict[str, _Kind], table: str
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return a function that drops the extra row from the batches, and refuses rows marked as invalid."""
    rows = -1  # before the extra row
    forms = [(place, form) for place, column in enumerate(columns) if (form := kinds[column.name].form) is not None]

    def checked(batch: pa.RecordBatch) -> pa.RecordBatch:
        nonlocal rows
        marks = batch.column(len(columns))
        found = []
        if pc.max(marks).as_py() not in {None, _OURS}:
            row = pc.index(pc.not_equal(marks, _OURS), value=True).as_py()
            column = columns[marks[row].as_py()]
            accepted = kinds[column.name].accepts
            found.append((row, column.name, f"does not match the declared type of the column ({accepted})"))
        data = batch.select(range(len(columns)))
        first = 1 if rows < 0 < batch.num_rows else 0
        for place, form in forms:
            texts = data.column(place).slice(first)
            fits = pc.match_substring_regex(texts, f"^(?:{form})$")
            if pc.min(fits).as_py() is False:
                row = first + pc.index(fits, value=False).as_py()
                name = columns[place].name
                found.append((row, name, f"cannot be kept exactly as {kinds[name].engine_type}"))
        if found:
            row, name, what = min(found)
            raise SourceError(f"'{table}', row {rows + row + 1}: the value of '{name}' {what}{_HINT}.")
        rows += batch.num_rows
        return data.slice(first)

    return checked


def _kind(declared: str) -> _Kind:
    upper = declared.upper()
    # As in SQLite, a declaration without a known word implies nothing about the values.
    return next((kind for words, kind in _KINDS if words.search(upper)), _TEXT)


def _fits(name: str, kind: _Kind) -> str:
    quoted = identifier(name)
    stored = ", ".join(map(literal, kind.stored))
    also = f" AND ({kind.also.format(quoted, quoted)})" if kind.also is not None else ""
    return f"typeof({quoted}) IN ({stored}, 'null'){also}"


def _column(name: str, kind: _Kind) -> Column:
    quoted = identifier(name)
    value = kind.value.replace("{}", quoted)
    return Column(
        name=name,
        # A value of another type would change the type that the driver infers for the column.
        expression=value if kind is _ANYTHING else f"CASE WHEN {_fits(name, kind)} THEN {value} END",
        engine_type=kind.engine_type,
        # SQLite compares these with integers and doubles without rounding.
        compared={"small integer"} if kind in {_INTEGER, _REAL} else frozenset(),
    )

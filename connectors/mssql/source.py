"""
`mssql:` sources: a table or view in Microsoft SQL Server or Azure SQL, read with pymssql, which contains FreeTDS.

The server first describes the columns. Then one statement reads the rows, in a snapshot if the database allows it. The
TLS settings for FreeTDS are in its own configuration file, `freetds.conf`, in the load's temporary directory.
"""

import os
import re
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from math import isfinite
from pathlib import Path
from typing import Any

import certifi
import pyarrow as pa
import pymssql
from msgspec.structs import replace
from pymssql import _mssql

from connectors.databases import chosen, condition, converted, engine_types, explained, standard_literal
from connectors.mssql.params import MssqlParams
from connectors.mssql.types import MssqlColumn, column_of, quoted
from connectors.origin import tls_context
from datasources.errors import SourceError
from datasources.sources.source import Bound, Load, Source, Value, reason_for
from datasources.sources.streams import StreamScan
from runtimeconf.model import DatasetConfig
from runtimeconf.tables import table_parts

_DEFAULT_PORT = 1433
#: The domains of Azure SQL: the public cloud, the government clouds of the USA and China, and Synapse.
_AZURE = (
    *(".database.windows.net", ".database.usgovcloudapi.net", ".database.chinacloudapi.cn"),
    ".sql.azuresynapse.net",
)
#: The hosts to which Azure SQL may redirect a client (connection policy `Redirect`).
_REDIRECT_PORTS = range(11000, 12000)

#: The approximate memory in bytes of the Python objects for one batch of rows, and of one such object.
_BATCH_BYTES = 8 * 1024 * 1024
_OBJECT_BYTES = 64

#: Seconds after the load's deadline when the server stops waiting for a lock. The load ends first.
_SPARE_S = 1

#: The maximum number of digits on the server.
_MAX_DIGITS = 38

#: The exceptions that the driver raises: its own errors, and errors for values that Python or Arrow does not accept.
_ERRORS = (pymssql.Error, pymssql.Warning, OSError, ValueError, ArithmeticError, LookupError, TypeError)

#: FreeTDS reports unconvertible text with this severity, but the driver hides errors up to 5 by default.
_mssql.min_error_severity = 4
_NOT_CONVERTED = re.compile(rb"DB-Lib error message 240\d,")

#: The section of `freetds.conf`. FreeTDS looks it up with the port.
_SECTION = "querykeep"
#: Environment variables that would override the file.
_VARIABLES = ("DSQUERY", "TDSQUERY", "TDSHOST", "TDSPORT", "TDSVER", "TDSDUMP", "TDSDUMPCONFIG")
#: FreeTDS finds its file through an environment variable.
_connecting = threading.Lock()

#: The types whose values have no fixed length.
_LONG = (pa.string(), pa.binary())

#: Our reasons for a refused connection, by error number.
_REFUSALS = {
    18456: "it rejected the user or password",
    18452: "it rejected the user: it accepts only Windows accounts, or does not allow this login method",
    18470: "the user account is disabled",
    18486: "the user account is locked",
    **dict.fromkeys((18487, 18488), "the user's password has expired"),
    **dict.fromkeys((4060, 911), "it has no database with that name, or the user has no access to it"),
    916: "the user has no access to that database",
    **dict.fromkeys((40615, 40914), "its firewall accepts no connection from this host"),
    **dict.fromkeys((40613, 40197, 40501, 49918, 49919, 49920), "the database is not available at the moment"),
    **dict.fromkeys((17809, 10928, 10929), "it has no free connections"),
    **dict.fromkeys((17142, 6005), "it is shutting down or paused"),
}
#: Messages after login: the session's database and language.
_NO_ERRORS = frozenset({5701, 5703})
#: Our reasons for a failed query.
_FAILURES = {
    208: "it has no table or view {table}, or the user has no access to it",
    **dict.fromkeys((229, 230, 262, 297, 300), "the user has no read permission on {table} or part of it"),
    **dict.fromkeys((207, 4413, 4502), "the view {table} references an object that does not exist"),
    1205: "the server ended the query on {table}, which blocked another (a deadlock)",
    1222: "{table} was still locked by others when the timeout passed",
    **dict.fromkeys((3952, 3956, 3957), "a database that {table} reads does not allow snapshot isolation"),
    3958: "the server has no space left for the row versions that the snapshot of {table} needs",
    3961: "the definition of {table} changed while it was being read",
    41332: "{table} reads a memory-optimized table, which a snapshot cannot contain",
    **dict.fromkeys((701, 802, 8645), "the server ran out of memory"),
    **dict.fromkeys((1101, 1105, 9002), "the server's disk is full"),
    **dict.fromkeys((596, 6005, 17142), "the server ended the connection"),
}
#: DB-Library errors for a lost connection.
_BROKEN = frozenset({0, 20003, 20004, 20006, 20017, 20019, 20020, 20047})
#: Our reasons for a failed connection, by FreeTDS message.
_BY_WORDS = (
    (
        "checking hostname failed",
        "TLS with it failed: the certificate does not match the host name; wildcard certificates are not accepted",
    ),
    (
        "handshake failed",
        (
            "TLS with it failed: the certificate is not signed by an authority in mssql_sslrootcert or the default "
            "roots, or the TLS versions or ciphers do not match"
        ),
    ),
    ("name resolution failed", "its host name cannot be resolved"),
    ("refused", "nothing is listening there"),
    ("unreachable|No route", "it is unreachable"),
    ("timed out|timeout", "it did not respond in time"),
)


class MssqlSource(Source):
    """One table or view, read by one statement. The server has no version number for a table."""

    def __init__(self, dataset: DatasetConfig, params: MssqlParams) -> None:
        parts = table_parts(dataset.location)
        self._shown = dataset.location
        self._params = params.expanded
        self._host = str(self._params.mssql_host)
        self._port = self._params.mssql_port or _DEFAULT_PORT
        self._is_encrypted = self._params.mssql_encrypt is not False
        self._database = parts[0] if parts[:-2] else self._params.mssql_database or ""
        self._table = ".".join(map(quoted, parts[-2:]))

    @contextmanager
    def open(self, load: Load) -> Iterator[StreamScan]:
        """Connect and send the query; see `Source.open`."""
        load.deadline.check()
        with load.deadline.cut_off(self._is_server), ExitStack() as stack:
            connection = stack.enter_context(closing(self._connection(load)))
            with explained(load, self._explanation, *_ERRORS), connection.cursor() as cursor:
                self._begin(cursor)
                columns = self._columns(cursor)
                asked = chosen(columns, load.wanted)
                for column in asked:
                    if column.refused:
                        raise SourceError(column.refused)
                asked = self._ranged(cursor, asked)
            expressions = ", ".join(f"{column.expression} AS {quoted(column.name)}" for column in asked)
            wanted = replace(load.wanted, bounds=tuple(_widened(load.wanted.bounds, columns)))
            where = condition(columns, wanted, quoted=quoted, literal_of=_literal)
            with explained(load, self._explanation, *_ERRORS):
                rows = stack.enter_context(connection.cursor())
                rows.execute(f"SELECT {expressions} FROM {self._table}{where}")  # noqa: S608 - quoted
            reader = converted(_batches(rows, asked), asked)
            yield StreamScan(reader, load, self._explanation, types=engine_types(asked))

    def _connection(self, load: Load) -> pymssql.Connection:
        """
        Write `freetds.conf` and connect with it.

        Raises:
            SourceError: The connection fails. The reason is taken from the FreeTDS log. The error number in the
                driver's exception may belong to an earlier connection, because the driver resets it only after a
                success.
        """
        lock_timeout_ms = 1000 * (int(max(0, load.deadline.left_s)) + 1 + _SPARE_S)
        try:
            with self._configured(load.scratch):
                return pymssql.connect(
                    server=_SECTION,
                    port=str(self._port),
                    user=self._params.mssql_username,
                    password=self._params.mssql_password or "",
                    database=self._database,
                    login_timeout=max(1, int(load.deadline.left_s)),
                    appname="querykeep",
                    autocommit=True,
                    conn_properties=(
                        "SET TEXTSIZE 2147483647; SET ROWCOUNT 0; SET ANSI_NULLS, ANSI_PADDING, ANSI_WARNINGS, "
                        "ARITHABORT, CONCAT_NULL_YIELDS_NULL, QUOTED_IDENTIFIER ON; SET NUMERIC_ROUNDABORT OFF; "
                        f"SET LOCK_TIMEOUT {lock_timeout_ms}"
                    ),
                )
        except _ERRORS as exc:
            load.deadline.check()
            raise SourceError(f"The SQL Server cannot be reached: {self._refusal(f'{_log.read()} {exc}')}.") from None

    @contextmanager
    def _configured(self, directory: Path) -> Iterator[None]:
        """Make FreeTDS read a `freetds.conf` in *directory* while the block runs, one block at a time."""
        settings: dict[str, object] = {
            "host": self._host,
            "port": self._port,
            "tds version": "7.4",
            # Other drivers call `request` Encrypt=false: only the login is encrypted, if the server supports it.
            "encryption": "require" if self._is_encrypted else "request",
            "check certificate hostname": "no" if self._params.mssql_trust_server_certificate else "yes",
            "certificate hostname": certificate_name(self._host),
            # Only the newest TLS version in this protocol.
            "openssl ciphers": "TLSv1.2+HIGH:!aNULL",
            "client charset": "UTF-8",
            "dump file": _log.path,
            "debug flags": _log.LEVELS,
        }
        with ExitStack() as stack:
            if not self._params.mssql_trust_server_certificate:
                # Without a file FreeTDS verifies nothing. Use the file's descriptor, because the format has no quotes
                # for a path.
                root = self._params.mssql_sslrootcert
                tls_context(root)
                usual = os.environ.get("SSL_CERT_FILE") or certifi.where()
                roots = stack.enter_context(Path(root or usual).open("rb"))
                settings["ca file"] = f"/proc/self/fd/{roots.fileno()}"
            file = directory / "freetds.conf"
            # Without a section of exactly this name, FreeTDS would also read the user's and the system's files.
            lines = [f"[{_SECTION}:{self._port}]", *(f"{key} = {value}" for key, value in settings.items()), ""]
            file.write_text("\n".join(lines))
            stack.enter_context(_connecting)
            stack.enter_context(_environment({"FREETDSCONF": str(file)}, without=_VARIABLES))
            _log.forget()
            yield

    def _refusal(self, said: str) -> str:
        """Return why a connection failed. *said* is the FreeTDS log and the driver's exception."""
        numbers = [int(number) for number in re.findall(r"message (\d+) from server", said)]
        if errors := [number for number in numbers if number not in _NO_ERRORS]:
            return _REFUSALS.get(errors[0], f"error {errors[0]}")
        if reason := reason_for(said, _BY_WORDS):
            return reason
        if "login packet rejected" in said and self._is_encrypted:
            return "it does not support TLS (mssql_encrypt: false turns it off), or it is not a SQL Server"
        return "it is not a SQL Server, it lacks TLS 1.2, or the connection broke"

    def _is_server(self, connection: socket.socket) -> bool:
        peer = connection.getpeername()
        return isinstance(peer, tuple) and (peer[1] == self._port or peer[1] in _REDIRECT_PORTS)

    def _begin(self, cursor: pymssql.Cursor) -> None:
        """Begin a snapshot if the database allows it. Otherwise only the statement for the rows is consistent."""
        cursor.execute("SELECT snapshot_isolation_state FROM sys.databases WHERE database_id = DB_ID()")
        if cursor.fetchall() == [(1,)]:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL SNAPSHOT")
            cursor.execute("BEGIN TRANSACTION")

    def _columns(self, cursor: pymssql.Cursor) -> list[MssqlColumn]:
        # The description reports table problems as a row. This statement fails with the error.
        cursor.execute(f"SELECT TOP (0) 1 AS one FROM {self._table}")  # noqa: S608 - quoted
        statement = f"SELECT * FROM {self._table}".replace("'", "''")  # noqa: S608 - quoted
        cursor.execute(
            "SELECT name, system_type_name, user_type_name, error_number "  # noqa: S608 - quoted
            f"FROM sys.dm_exec_describe_first_result_set(N'{statement}', NULL, 0) "
            "WHERE COALESCE(is_hidden, 0) = 0 ORDER BY column_ordinal"
        )
        described: list[Any] = cursor.fetchall()
        if not described:
            raise SourceError(f"{self._shown} has no columns that the user can read.")
        for name, _, _, error in described:
            if not name:
                raise SourceError(self._failure(error))
        return [column_of(name, declared, user_type) for name, declared, user_type, _ in described]

    def _ranged(self, cursor: pymssql.Cursor, columns: Sequence[MssqlColumn]) -> list[MssqlColumn]:
        """Return *columns*. Columns of 100 ns timestamps get the type that fits their range of values."""
        checks = [check for column in columns if column.moments for check in column.range_checks()]
        if not checks:
            return list(columns)
        cursor.execute(f"SELECT {', '.join(checks)} FROM {self._table}")  # noqa: S608 - quoted
        row: Any = cursor.fetchone()
        found = iter(map(bool, row))
        return [
            column.of_range(outside=next(found), finer=next(found)) if column.moments else column for column in columns
        ]

    def _explanation(self, error: Exception) -> SourceError:
        """Turn a driver error, which contains host, user, SQL and values, into a sentence."""
        code, text = (*(error.args if isinstance(error, pymssql.Error) else ()), None, None)[:2]
        if isinstance(text, bytes) and _NOT_CONVERTED.search(text):
            return SourceError(
                f"A string in {self._shown} is not valid Unicode (half of a UTF-16 pair): read a view that casts the "
                "column to varbinary, or omit it in refresh_sql."
            )
        if isinstance(code, int) and code not in _BROKEN:
            return SourceError(self._failure(code))
        if not isinstance(error, pymssql.Error | OSError):
            return SourceError(f"The SQL Server sent a value of {self._shown} that the driver cannot read.")
        return SourceError(f"The connection to the SQL Server broke while {self._shown} was being read.")

    def _failure(self, number: int | None) -> str:
        if number is None:
            return f"SQL Server does not describe the columns of {self._shown}."
        if number in _FAILURES:
            return f"SQL Server: {_FAILURES[number].format(table=self._shown)}."
        return f"SQL Server cannot read {self._shown}: error {number}. Run the query there to see why."


def certificate_name(host: str) -> str:
    """
    Return the name that FreeTDS looks for in the certificate of *host*: the host itself, or a pattern for Azure.

    FreeTDS 1.5 handles wildcards the wrong way round. It ignores them in certificates, but accepts them in the name
    that it looks for, where a wildcard matches any number of labels. Azure SQL certificates have wildcards, and all
    names there belong to Microsoft.
    """
    suffix = next((suffix for suffix in _AZURE if host.endswith(suffix)), None)
    return host if suffix is None else f"*{suffix}"


class _ErrorLog:
    """
    The FreeTDS log, which is the only source of the reason for a failed connection. It is in memory.

    FreeTDS opens one log for the lifetime of the process, and keeps its position in it.
    """

    #: Log fatal errors, errors and warnings, but no statements, packets or rows.
    LEVELS = "0x0f"

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("freetds")
        self._begin = 0
        self.path = f"/proc/self/fd/{self._descriptor}"

    def forget(self) -> None:
        """Drop everything logged so far."""
        self._begin = max(self._begin, os.fstat(self._descriptor).st_size)
        os.ftruncate(self._descriptor, 0)

    def read(self) -> str:
        """Return everything logged since the last `forget`."""
        size = os.fstat(self._descriptor).st_size - self._begin
        return os.pread(self._descriptor, max(0, size), self._begin).decode(errors="replace")


_log = _ErrorLog()


@contextmanager
def _environment(values: Mapping[str, str], *, without: Sequence[str]) -> Iterator[None]:
    """Set environment variables of this process to *values* while the block runs."""
    before = {name: os.environ.pop(name, None) for name in (*values, *without)}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _next(cursor: pymssql.Cursor) -> Sequence[Any] | None:
    row: Sequence[Any] | None = cursor.fetchone()
    return row


def _batches(cursor: pymssql.Cursor, columns: Sequence[MssqlColumn]) -> pa.RecordBatchReader:
    """Return the rows of *cursor* as batches."""
    long = [place for place, column in enumerate(columns) if column.kind in _LONG and column.change is None]

    def read() -> Iterator[pa.RecordBatch]:
        rows: list[Sequence[Any]] = []
        size = 0
        while (row := _next(cursor)) is not None:
            rows.append(row)
            size += _OBJECT_BYTES * len(row) + sum([len(row[place]) for place in long if row[place] is not None])
            if size >= _BATCH_BYTES:
                yield batch(rows)
                rows, size = [], 0
        if rows:
            yield batch(rows)

    def batch(rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        arrays = [_array(values, column) for values, column in zip(zip(*rows, strict=True), columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    schema = pa.schema([(column.name, column.kind) for column in columns])
    return pa.RecordBatchReader.from_batches(schema, read())


def _array(values: Sequence[object], column: MssqlColumn) -> pa.Array:
    if column.change is not None:
        change = column.change
        values = [None if value is None else change(value) for value in values]
    try:
        return pa.array(values, column.kind)
    except (pa.ArrowException, ArithmeticError, ValueError):
        raise SourceError(
            f"The column '{column.name}' has a value that does not match its type, {column.kind}."
        ) from None


def _widened(bounds: Sequence[Bound], columns: Sequence[MssqlColumn]) -> Iterator[Bound]:
    """Return *bounds* widened for the digits that the server compares but the engine lacks."""
    errors = {column.name.lower(): column.error for column in columns}
    for bound in bounds:
        error = errors.get(bound.column.lower(), timedelta(0))
        if not error:
            yield bound
        elif isinstance(bound.value, datetime) and bound.operator != "=":
            with suppress(OverflowError):
                if bound.operator in {">", ">="}:
                    yield replace(bound, operator=">=", value=bound.value - error)
                else:
                    yield replace(bound, operator="<=", value=bound.value + error)


def _literal(value: Value) -> tuple[str, str]:
    """Return the kind of *value* and the value as a Transact-SQL literal; see `standard_literal`."""
    if isinstance(value, float):
        text = repr(value)
        return ("double", text if "e" in text else f"{text}e0") if isfinite(value) else ("", "")
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return "timestamp", f"CAST('{value.isoformat()}' AS datetime2)"
        return "timestamptz", f"CAST('{value.astimezone(UTC).isoformat()}' AS datetimeoffset)"
    if isinstance(value, date):
        return "date", f"CAST('{value.isoformat()}' AS date)"
    kind, text = standard_literal(value)
    is_long = isinstance(value, int | Decimal) and len(text) > _MAX_DIGITS
    return ("", "") if is_long else (kind, text)

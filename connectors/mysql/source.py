"""
`mysql:` sources: a table or view on a MySQL or MariaDB server, read with PyMySQL.

One read-only transaction with one snapshot reads the columns and then the rows. The server sends every value as text.
The text is cast to the type that `SHOW COLUMNS` declares. A `FLOAT` is selected as a double because its text has only
six digits. A `BIT` is selected as a number.
"""

import socket
import ssl
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from math import isfinite

import pyarrow as pa
import pymysql
from pymysql.constants import CR, ER
from pymysql.cursors import Cursor, SSCursor

from connectors.databases import (
    Column,
    chosen,
    condition,
    converted,
    engine_types,
    explained,
    standard_literal,
)
from connectors.mysql.params import MysqlParams
from connectors.mysql.types import column_of, quoted
from connectors.origin import tls_context
from datasources.errors import SourceError
from datasources.sources.source import Load, Source, Value, reason_for
from datasources.sources.streams import StreamScan
from runtimeconf.model import DatasetConfig
from runtimeconf.tables import table_parts

#: The approximate memory in bytes of the Python objects for one batch of rows, and of one such object.
_BATCH_BYTES = 8 * 1024 * 1024
_OBJECT_BYTES = 64

#: Seconds after the load's deadline when the server itself ends the statement. The load ends first.
_SPARE_S = 1

#: Values of every type arrive as bytes.
_NO_CONVERSIONS: dict[int, Callable[[bytes], object]] = {}

#: The exceptions for a server that disconnects or speaks another protocol. The driver hardly checks packets.
_ERRORS = (
    *(pymysql.MySQLError, OSError, ValueError, LookupError, struct.error),
    *(AssertionError, AttributeError, RuntimeError, TypeError),
)

# Codes that only MySQL or MariaDB has: include/mysqld_ername.h, and MariaDB's error code page.
_CONNECTION_KILLED, _SECURE_TRANSPORT_REQUIRED = 1927, 3159
_ACCOUNT_LOCKED, _PASSWORD_EXPIRED = (3118, 4151), (1820, 1862)

#: Our reasons for a refused connection, by error number.
_REFUSALS = {
    ER.ACCESS_DENIED_ERROR: "it rejected the user or password",
    ER.DBACCESS_DENIED_ERROR: "the user has no access to that database",
    ER.BAD_DB_ERROR: "it has no database with that name",
    **dict.fromkeys(
        (ER.CON_COUNT_ERROR, ER.TOO_MANY_USER_CONNECTIONS, ER.USER_LIMIT_REACHED), "it has no free connections"
    ),
    ER.HOST_IS_BLOCKED: "it blocks this host after too many failed connections",
    ER.HOST_NOT_PRIVILEGED: "it accepts no connection from this host",
    _SECURE_TRANSPORT_REQUIRED: "it accepts only TLS connections: set mysql_sslmode: required",
    **dict.fromkeys(_ACCOUNT_LOCKED, "the user account is locked"),
    **dict.fromkeys(_PASSWORD_EXPIRED, "the user's password has expired"),
    ER.SERVER_SHUTDOWN: "it is shutting down",
    CR.CR_SSL_CONNECTION_ERROR: "it does not support TLS; mysql_sslmode: disabled turns it off",
    CR.CR_AUTH_PLUGIN_CANNOT_LOAD: (
        "it requests the password with a plugin that the driver does not have, or with one that sends it in plain "
        "text, which requires mysql_sslmode: required"
    ),
}
#: Our reasons for a failed query.
_FAILURES = {
    **dict.fromkeys(
        (ER.TABLEACCESS_DENIED_ERROR, ER.COLUMNACCESS_DENIED_ERROR),
        "the user has no read permission on {table} or part of it",
    ),
    ER.NO_SUCH_TABLE: "it has no table or view {table}, or the name differs in case",
    ER.VIEW_INVALID: "the view {table} references an object that does not exist or that its definer cannot read",
    ER.TABLE_DEF_CHANGED: "the definition of {table} changed while it was being read",
    **dict.fromkeys(
        (ER.QUERY_INTERRUPTED, ER.QUERY_TIMEOUT, ER.STATEMENT_TIMEOUT), "the server cancelled the query on {table}"
    ),
    _CONNECTION_KILLED: "the server ended the connection",
    ER.DISK_FULL: "the server's disk is full",
    **dict.fromkeys((ER.OUTOFMEMORY, ER.OUT_OF_SORTMEMORY, ER.OUT_OF_RESOURCES), "the server ran out of memory"),
}
#: Our reasons for a failed connection, by system message.
_BY_WORDS = (
    ("Hostname mismatch|IP address mismatch", "TLS with it failed: the certificate does not match the host name"),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "TLS with it failed: the certificate is not signed by an authority in mysql_sslrootcert or the default roots",
    ),
    (r"\[SSL|EOF occurred", "TLS with it failed: there is no TLS version or cipher in common"),
    ("timed out", "it did not respond in time"),
    ("Name or service|name resolution|No address|nodename", "its host name cannot be resolved"),
    ("refused", "nothing is listening there"),
    ("unreachable|No route", "it is unreachable"),
)


class MysqlSource(Source):
    """One table or view, read in one server snapshot. MySQL has no version number for a table."""

    def __init__(self, dataset: DatasetConfig, params: MysqlParams) -> None:
        *database, self._table = table_parts(dataset.location)
        self._database = database[0] if database else str(params.mysql_db)
        self._shown = dataset.location
        self._params = params

    @contextmanager
    def open(self, load: Load) -> Iterator[StreamScan]:
        """Connect and send the query; see `Source.open`."""
        load.deadline.check()
        with load.deadline.cut_off(self._is_server), ExitStack() as stack:
            with explained(load, self._explanation, *_ERRORS):
                connection = stack.enter_context(closing(self._connection(load)))
                table = f"{quoted(self._database)}.{quoted(self._table)}"
                with connection.cursor() as cursor:
                    self._begin(cursor, load)
                    columns = self._columns(cursor, table)
                asked = chosen(columns, load.wanted)
                expressions = ", ".join(f"{column.expression} AS {quoted(column.name)}" for column in asked)
                where = condition(columns, load.wanted, quoted=quoted, literal_of=_literal)
                unread = stack.enter_context(connection.cursor(_UnreadCursor))
                unread.execute(f"SELECT {expressions} FROM {table}{where}")  # noqa: S608 - quoted
                reader = converted(_batches(unread, [column.name for column in asked]), asked)
            yield StreamScan(reader, load, self._explanation, types=engine_types(asked))

    def _connection(self, load: Load) -> pymysql.Connection:
        sslmode, root = self._params.mysql_sslmode, self._params.mysql_sslrootcert
        context: ssl.SSLContext | None = None
        if sslmode == "required" or (sslmode == "preferred" and root is not None):
            context = tls_context(root)
        return pymysql.connect(
            host=self._params.mysql_host,
            port=self._params.mysql_tcp_port,
            user=self._params.mysql_user,
            password=self._params.mysql_pass.encode(),
            database=self._database,
            charset="utf8mb4",
            use_unicode=False,
            conv=_NO_CONVERSIONS,
            # Without either option, the driver uses TLS if the server has it, and verifies nothing.
            ssl=context,
            ssl_disabled=sslmode == "disabled",
            auth_plugin_map={} if context is not None else dict.fromkeys(_IN_CLEAR_TEXT, _Refusal),
            autocommit=None,
            local_infile=False,
            connect_timeout=max(1, int(load.deadline.left_s)),
            program_name="querykeep",
        )

    def _is_server(self, connection: socket.socket) -> bool:
        peer = connection.getpeername()
        return isinstance(peer, tuple) and peer[1] == self._params.mysql_tcp_port

    def _begin(self, cursor: Cursor, load: Load) -> None:
        timeout_s = int(max(0, load.deadline.left_s)) + 1 + _SPARE_S
        for statement in (
            "SET SESSION sql_mode = '', time_zone = '+00:00', sql_select_limit = 18446744073709551615",
            (
                f"SET SESSION wait_timeout = {timeout_s}, net_write_timeout = {timeout_s}"
                # Code only for MariaDB, and only for MySQL. Their units are the second and the millisecond.
                f" /*M! , max_statement_time = {timeout_s} */ /*!50708 , max_execution_time = {timeout_s}000 */"
            ),
            "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
        ):
            cursor.execute(statement)

    def _columns(self, cursor: Cursor, table: str) -> list[Column]:
        cursor.execute(f"SHOW FULL COLUMNS FROM {table}")
        # The fields are name, type, collation, three others, properties, and others.
        columns = [
            column_of(str(name, "utf-8"), str(declared, "utf-8"), str(collation or b"", "utf-8"))
            for name, declared, collation, _, _, _, extra, *_ in cursor.fetchall()
            if b"INVISIBLE" not in extra.upper()
        ]
        if not columns:
            raise SourceError(f"{self._shown} has no columns that the user can read.")
        return columns

    def _explanation(self, error: Exception) -> SourceError:
        """Turn a driver error, which contains host, user, SQL and values, into a sentence."""
        code = error.args[0] if isinstance(error, pymysql.MySQLError) and error.args else None
        if code in _FAILURES:
            return SourceError(f"MySQL: {_FAILURES[code].format(table=self._shown)}.")
        if code in {CR.CR_SERVER_LOST, CR.CR_SERVER_GONE_ERROR}:
            return SourceError(f"The connection to MySQL broke while {self._shown} was being read.")
        reason = "it is not a MySQL server, or the connection broke"
        if code in _REFUSALS:
            reason = _REFUSALS[code]
        elif code == CR.CR_CONN_HOST_ERROR:
            reason = reason_for(str(error), _BY_WORDS) or "it refused the connection"
        elif isinstance(code, int) and code > 0:
            return SourceError(f"MySQL cannot read {self._shown}: error {code}. Run the query there to see why.")
        return SourceError(f"The MySQL server cannot be reached: {reason}.")


class _UnreadCursor(SSCursor):  # type: ignore[misc]  # without annotations
    """An unbuffered cursor that leaves the remaining rows unread when closed, because the connection is closed too."""

    def close(self) -> None:
        if self._result is not None:
            self._result.unbuffered_active = False
        self.connection = None

    __del__ = close


#: The authentication plugins that send the password in plain text or in an easily reversible form.
_IN_CLEAR_TEXT = ("mysql_clear_password", "dialog", "mysql_old_password")


class _Refusal:
    """A handler for authentication plugins that are refused without verified TLS."""

    def __init__(self, _connection: pymysql.Connection) -> None:
        pass

    def authenticate(self, _packet: object) -> None:
        """Refuse."""
        raise pymysql.OperationalError(CR.CR_AUTH_PLUGIN_CANNOT_LOAD, "refused")


def _batches(cursor: SSCursor, names: Sequence[str]) -> pa.RecordBatchReader:
    """Return the rows of *cursor* as batches of binary columns."""

    def read() -> Iterator[pa.RecordBatch]:
        rows, size = [], 0
        while (row := cursor.fetchone()) is not None:
            rows.append(row)
            size += _OBJECT_BYTES * len(row) + sum(map(len, filter(None, row)))
            if size >= _BATCH_BYTES:
                yield batch(rows)
                rows, size = [], 0
        if rows:
            yield batch(rows)

    def batch(rows: Sequence[Sequence[bytes | None]]) -> pa.RecordBatch:
        arrays = [pa.array(values, pa.binary()) for values in zip(*rows, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    schema = pa.schema([(name, pa.binary()) for name in names])
    return pa.RecordBatchReader.from_batches(schema, read())


def _literal(value: Value) -> tuple[str, str]:
    """Return the kind of *value* and the value as a MySQL literal; see `standard_literal`."""
    if isinstance(value, float):
        text = repr(value)
        return ("double", text if "e" in text else f"{text}e0") if isfinite(value) else ("", "")
    if isinstance(value, datetime) and value.tzinfo is not None:
        # The session time zone is UTC.
        return "timestamptz", f"TIMESTAMP '{value.astimezone(UTC).replace(tzinfo=None).isoformat(sep=' ')}'"
    return standard_literal(value)

"""
`flightsql:` sources: a table or view on an Arrow Flight SQL server, such as another Querykeep, read with ADBC.

One statement reads all rows, so the data is one version of the table as the server defines it. The driver's timeouts
cover each of its calls, including a whole stream of rows.

A server may respond to a query with the locations of other servers, and the driver would send them the credentials.
Therefore the driver only fetches the endpoints. They are checked here, and the driver reads each endpoint without its
locations, over the existing connection.
"""

import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import adbc_driver_flightsql
import adbc_driver_flightsql.dbapi
import adbc_driver_manager.dbapi
import pyarrow as pa
import pyarrow.flight
from adbc_driver_flightsql import ConnectionOptions, DatabaseOptions
from adbc_driver_manager import AdbcStatusCode

from connectors.databases import INTEGERS, Column, chosen, condition, explained, mapped, viewed
from connectors.flightsql.params import FlightSqlParams
from datasources.errors import SourceError
from datasources.sources.source import Load, Source, reason_for
from datasources.sources.streams import StreamScan
from datasources.sql import identifier
from runtimeconf.addresses import parse_host
from runtimeconf.fields import InvalidValueError
from runtimeconf.model import DatasetConfig
from runtimeconf.tables import table_parts

#: The driver's scheme by the scheme of `flightsql_endpoint`.
_SCHEMES = {"grpc": "grpc+tcp", "http": "grpc+tcp", "https": "grpc+tls"}

#: The schemes of a location, and whether they use TLS (Flight RPC, "Connection details"; `http:` as above).
_HAS_TLS = {"grpc": False, "grpc+tcp": False, "http": False, "grpc+tls": True, "https": True}
#: The location that means the connection used for the query (Flight RPC, "Downloading data").
_REUSE = "arrow-flight-reuse-connection://?"

#: The type in which DuckDB sends a HUGEINT. Its 16 bytes are the bytes of the number, so 39 digits are exact.
_SENT_HUGEINT = pa.decimal128(38, 0)
#: The type that DuckDB reads as a HUGEINT.
_HUGEINT = pa.opaque(pa.binary(16), "hugeint", "DuckDB")

#: The maximum accepted message size in bytes.
_MESSAGE_BYTES = 64 * 1024 * 1024

#: While connecting, the driver asks for server properties and would follow the endpoints in the response. This time
#: limit (s) expires before the request is sent. The driver does not need the response.
_NO_TIME_S = "1e-9"
_TIMEOUTS = (DatabaseOptions.TIMEOUT_FETCH, DatabaseOptions.TIMEOUT_QUERY, DatabaseOptions.TIMEOUT_UPDATE)

#: Our reasons by ADBC status code.
_BY_CODE: Mapping[object, str] = {
    AdbcStatusCode.UNAUTHENTICATED: "it rejected the token, or the user and password",
    AdbcStatusCode.UNAUTHORIZED: "the token or user has no read permission on {table}",
    AdbcStatusCode.NOT_FOUND: "it has no table or view {table}",
    AdbcStatusCode.INVALID_ARGUMENT: "it has no table or view {table}, or does not allow reading it",
    AdbcStatusCode.NOT_IMPLEMENTED: "it does not support Flight SQL, or not this part of it",
    AdbcStatusCode.TIMEOUT: "it did not respond in time",
    AdbcStatusCode.CANCELLED: "it cancelled the query",
}
#: Our reasons for a failed connection by driver message. They take precedence over the status codes.
_BY_WORDS = (
    (
        "unknown authority|self.signed",
        "the certificate is not signed by an authority in the system's roots or flightsql_tls_root_certificate_file",
    ),
    (
        "certificate is (not )?valid for|doesn't contain any IP SANs|not valid for any names",
        "the certificate does not match the host name",
    ),
    ("has expired or is not yet valid", "the certificate has expired, or is not valid yet"),
    ("first record does not look like a TLS|tls:|authentication handshake failed", "TLS with it failed"),
    ("connection refused", "nothing is listening there"),
    ("no such host|name resolver error|produced zero addresses", "its host name cannot be resolved"),
    ("unreachable|no route", "it is unreachable"),
    ("received message larger than max", "it sends messages of more than 64 MiB"),
    ("ResourceExhausted", "it has no capacity or memory left for the query"),
    (
        "error reading server preface|failed to receive server preface|frame too large|http2",
        "it does not speak gRPC; for a server with TLS, write grpc+tls://",
    ),
    ("Unavailable|EOF|connection reset|closing transport", "the connection broke, or it is starting or stopping"),
)

# Load the driver now, because its Go runtime reserves a hundred megabytes of addresses, which must not count against
# the first load. This opens no connection.
adbc_driver_flightsql.connect("grpc://127.0.0.1:1").close()


class FlightSqlSource(Source):
    """One table or view on a server. Flight SQL has no version number for a table."""

    def __init__(self, dataset: DatasetConfig, params: FlightSqlParams) -> None:
        self._table = ".".join(map(identifier, table_parts(dataset.location)))
        self._shown = dataset.location
        self._params = params
        self._endpoint = urlsplit(params.flightsql_endpoint)

    @contextmanager
    def open(self, load: Load) -> Iterator[StreamScan]:
        """Connect and send the query; see `Source.open`."""
        load.deadline.check()
        with (
            load.deadline.cut_off(self._is_server),
            explained(load, self._explanation, adbc_driver_manager.Error, pa.ArrowException, OSError),
            self._connection(load) as connection,
            connection.cursor() as cursor,
        ):
            nothing = self._rows(cursor, f"SELECT * FROM {self._table} WHERE 1 = 0")  # noqa: S608 - quoted
            columns = [_column(field) for field in nothing.schema]
            asked = chosen(columns, load.wanted)
            expressions = ", ".join(column.expression for column in asked)
            where = condition(columns, load.wanted)
            reader = self._rows(cursor, f"SELECT {expressions} FROM {self._table}{where}")  # noqa: S608 - quoted
            yield StreamScan(mapped(reader, _with_hugeints), load, self._explanation)

    def _connection(self, load: Load) -> adbc_driver_manager.dbapi.Connection:
        options = {
            DatabaseOptions.WITH_MAX_MSG_SIZE.value: str(_MESSAGE_BYTES),
            "adbc.flight.sql.rpc.timeout_seconds.connect": str(max(0.001, load.deadline.left_s)),
            **{option.value: _NO_TIME_S for option in _TIMEOUTS},
        }
        params = self._params
        if params.flightsql_username is not None and params.flightsql_password is not None:
            options["username"], options["password"] = params.flightsql_username, params.flightsql_password
        if (path := params.flightsql_tls_root_certificate_file) is not None:
            options[DatabaseOptions.TLS_ROOT_CERTS.value] = _certificates(path)
        scheme = _SCHEMES.get(self._endpoint.scheme, self._endpoint.scheme)
        connection = adbc_driver_flightsql.dbapi.connect(
            f"{scheme}://{self._endpoint.netloc}", db_kwargs=options, autocommit=True
        )
        try:
            limit_s = str(max(0.001, load.deadline.left_s))
            options = {option.value: limit_s for option in _TIMEOUTS}
            if params.flightsql_token is not None:
                header = f"{ConnectionOptions.RPC_CALL_HEADER_PREFIX.value}authorization"
                options[header] = f"Bearer {params.flightsql_token}"
            connection.adbc_connection.set_options(**options)
        except BaseException:
            connection.close()
            raise
        return connection

    def _rows(self, cursor: adbc_driver_manager.dbapi.Cursor, sql: str) -> pa.RecordBatchReader:
        """
        Request the rows of *sql*, one endpoint after the other. No endpoint is read before all have been checked.

        Raises:
            SourceError: An endpoint names another server.
        """
        # Do not use cursor.execute, which prepares the statement. If the connection is cut, closing the prepared
        # statement fails, and then closing the connection fails too.
        cursor.adbc_statement.set_sql_query(sql)
        partitions, schema, _ = cursor.adbc_statement.execute_partitions()
        checked = [self._checked(partition) for partition in partitions]
        if not checked:
            return pa.RecordBatchReader.from_batches(pa.schema(schema), [])
        cursor.adbc_read_partition(checked[0])
        first = cursor.fetch_record_batch()

        def batches() -> Iterator[pa.RecordBatch]:
            yield from first
            for partition in checked[1:]:
                cursor.adbc_read_partition(partition)
                reader = cursor.fetch_record_batch()
                if reader.schema != first.schema:
                    raise SourceError("The Flight SQL server: its endpoints return different columns.")
                yield from reader

        return pa.RecordBatchReader.from_batches(first.schema, batches())

    def _checked(self, partition: bytes) -> bytes:
        """
        Return *partition*, a FlightInfo with one endpoint, with only the ticket of that endpoint.

        Without locations the driver can only use the queried server, regardless of how it parses URLs.

        Raises:
            SourceError: A location names another server.
        """
        try:
            (endpoint,) = pyarrow.flight.FlightInfo.deserialize(partition).endpoints
            locations = [location.uri.decode() for location in endpoint.locations]
        except (pa.ArrowException, ValueError):
            raise self._elsewhere(None) from None
        for location in locations:
            if location != _REUSE:
                self._check_location(location)
        ticket = pyarrow.flight.FlightEndpoint(endpoint.ticket, [])
        nothing = pyarrow.flight.FlightDescriptor.for_command(b"")
        info: bytes = pyarrow.flight.FlightInfo(None, nothing, [ticket], -1, -1).serialize()
        return info

    def _check_location(self, location: str) -> None:
        try:
            url = urlsplit(location)
            address = (_HAS_TLS.get(url.scheme), url.hostname, url.port)
        except ValueError:
            raise self._elsewhere(None) from None
        if address != (_HAS_TLS[self._endpoint.scheme], self._endpoint.hostname, self._endpoint.port):
            raise self._elsewhere(url.hostname)

    def _elsewhere(self, host: str | None) -> SourceError:
        """Return the error for *host*, which the server chose. The host is shown unless it contains a credential."""
        try:
            shown = f" on {parse_host(host or '')}"
        except InvalidValueError:
            shown = ""
        if any(credential.lower() in shown for credential in self._params.credentials.values()):
            shown = ""
        return SourceError(
            f"The Flight SQL server: it redirects to another server{shown} for the rows. Rows are read only from the "
            "host and port of flightsql_endpoint, with the same TLS setting."
        )

    def _is_server(self, connection: socket.socket) -> bool:
        peer = connection.getpeername()
        return isinstance(peer, tuple) and peer[1] == self._endpoint.port

    def _explanation(self, error: Exception) -> SourceError:
        """Turn a library error, which contains the address, SQL and values, into a sentence."""
        text = str(error)
        if "panicked" in text:
            # Every further driver call fails.
            return SourceError(
                "The Flight SQL server: its response is not valid Flight SQL, and the driver failed.",
                broke_library=True,
            )
        reason = reason_for(text, _BY_WORDS)
        if reason is None:
            reason = _BY_CODE.get(getattr(error, "status_code", None), "it disconnected while {table} was being read")
        return SourceError(f"The Flight SQL server: {reason.format(table=self._shown)}.")


def _certificates(path: Path) -> str:
    try:
        # The driver would silently accept a file without a certificate.
        ssl.create_default_context(cafile=path)
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        raise SourceError("The file in flightsql_tls_root_certificate_file has no readable certificate.") from None


# --- columns ----------------------------------------------------------------------------------------------------------


def _with_hugeints(batch: pa.RecordBatch) -> pa.RecordBatch:
    """
    Return *batch* with each possible HUGEINT column converted to HUGEINT.

    Arrow has no such type. DuckDB sends a decimal of 38 digits, although some of these numbers have 39.
    """
    columns = [viewed(column, lambda kind: _HUGEINT if kind == _SENT_HUGEINT else kind) for column in batch.columns]
    # The metadata of a field may contain its type, such as geoarrow.wkb.
    fields = [field.with_type(column.type) for field, column in zip(batch.schema, columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _column(field: pa.Field) -> Column:
    """Return the column for *field*, read unchanged. The server compares it if all servers compare its type alike."""
    compared: frozenset[str] = frozenset()
    if pa.types.is_integer(field.type):
        compared = INTEGERS
    elif pa.types.is_date32(field.type):
        compared = frozenset({"date"})
    elif field.type == pa.timestamp("us"):
        compared = frozenset({"timestamp"})
    return Column(name=field.name, expression=identifier(field.name), compared=compared)

"""
`flightsql:` sources: a table or view of a server that speaks Arrow Flight SQL, such as another Querykeep, by ADBC.

One statement reads the rows, so the data is what the server takes for one version. The driver's own time-outs cover
each of its calls, a stream of rows from its first to its last.

A server may answer a query with the locations of other servers that hold the rows, and the driver would follow them
with the credentials. So the driver is asked for the endpoints alone, these are judged here, and it reads each of them
without its locations, over the connection that it has.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import adbc_driver_flightsql
import adbc_driver_flightsql.dbapi
import adbc_driver_manager.dbapi
import pyarrow as pa
import pyarrow.flight
from adbc_driver_flightsql import ConnectionOptions, DatabaseOptions
from adbc_driver_manager import AdbcStatusCode

from datasources.errors import SourceError
from datasources.sources.adbc import (
    Column,
    chosen,
    condition,
    date_literal,
    integer_literal,
    mapped,
    timestamp_literal,
)
from datasources.sources.arrow_types import HUGEINT, SENT_HUGEINT, viewed, viewed_type
from datasources.sources.sockets import Peer, cut_off
from datasources.sources.source import Load
from datasources.sources.streams import StreamScan
from datasources.sql import identifier
from runtimeconf.connectors.tables import table_parts
from runtimeconf.fields import InvalidValueError, parse_host
from runtimeconf.model import DatasetConfig

#: What the driver makes of each scheme that `flightsql_endpoint` may have.
_SCHEMES = {"grpc": "grpc+tcp", "http": "grpc+tcp", "https": "grpc+tls"}

#: The schemes of a location, and whether they have TLS (Flight RPC, "Connection details"; `http:` as above).
_HAS_TLS = {"grpc": False, "grpc+tcp": False, "http": False, "grpc+tls": True, "https": True}
#: The location that stands for the connection on which the query was asked (Flight RPC, "Downloading data").
_REUSE = "arrow-flight-reuse-connection://?"

#: The largest message that is taken (bytes).
_MESSAGE_BYTES = 64 * 1024 * 1024

#: While it connects, the driver asks for properties of the server and follows the endpoints of the answer. This time
#: (s) is over before that can be sent; the driver does without.
_NO_TIME_S = "1e-9"
_TIMEOUTS = (DatabaseOptions.TIMEOUT_FETCH, DatabaseOptions.TIMEOUT_QUERY, DatabaseOptions.TIMEOUT_UPDATE)

#: What the server says of a failure, in ADBC's codes.
_BY_CODE: Mapping[object, str] = {
    AdbcStatusCode.UNAUTHENTICATED: "it refuses the token, or the user and the password",
    AdbcStatusCode.UNAUTHORIZED: "the token or user may not read {table}",
    AdbcStatusCode.NOT_FOUND: "it has no table or view {table}",
    AdbcStatusCode.INVALID_ARGUMENT: "it has no table or view {table}, or refuses to read it",
    AdbcStatusCode.NOT_IMPLEMENTED: "it does not speak Flight SQL, or not this part of it",
    AdbcStatusCode.TIMEOUT: "it did not answer in time",
    AdbcStatusCode.CANCELLED: "it cancelled the query",
}
#: What the driver says of a connection that does not come about. These come first: they have the codes of others.
_BY_WORDS = (
    (
        "unknown authority|self.signed",
        "the certificate is not from an authority that the system or flightsql_tls_root_certificate_file knows",
    ),
    (
        "certificate is (not )?valid for|doesn't contain any IP SANs|not valid for any names",
        "the certificate is not for that host",
    ),
    ("has expired or is not yet valid", "the certificate has expired, or is not valid yet"),
    ("first record does not look like a TLS|tls:|authentication handshake failed", "TLS with it failed"),
    ("connection refused", "nothing listens there"),
    ("no such host|name resolver error|produced zero addresses", "its name is not known"),
    ("unreachable|no route", "there is no way to it"),
    ("received message larger than max", "it sends messages of more than 64 MiB"),
    ("ResourceExhausted", "it has no place left for the query, or no memory"),
    (
        "error reading server preface|failed to receive server preface|frame too large|http2",
        "it does not speak gRPC; a server with TLS takes grpc+tls://",
    ),
    ("Unavailable|EOF|connection reset|closing transport", "the connection broke, or it is starting or stopping"),
)

# The driver is written in Go, which takes a hundred megabytes of addresses when it is loaded: they are not to count
# against the first load. This connects to nothing.
adbc_driver_flightsql.connect("grpc://127.0.0.1:1").close()


class FlightSqlSource:
    """One table or view of a server."""

    def __init__(self, dataset: DatasetConfig) -> None:
        self._table = ".".join(map(identifier, table_parts(dataset.location)))
        self._shown = dataset.location
        self._params = dataset.params
        self._endpoint = urlsplit(dataset.params["flightsql_endpoint"])

    @contextmanager
    def open(self, load: Load) -> Iterator[StreamScan]:
        """Connect and ask, as `Source.open` promises."""
        load.deadline.check()
        with (
            cut_off(load.deadline, self._is_server),
            self._explained(load),
            self._connection(load) as connection,
            connection.cursor() as cursor,
        ):
            nothing = self._rows(cursor, f"SELECT * FROM {self._table} WHERE 1 = 0")  # noqa: S608 - quoted
            columns = [_column(field) for field in nothing.schema]
            asked = chosen(columns, load.wanted)
            expressions = ", ".join(column.expression for column in asked)
            where = condition(columns, load.wanted, identifier)
            reader = self._rows(cursor, f"SELECT {expressions} FROM {self._table}{where}")  # noqa: S608 - quoted
            yield StreamScan(
                mapped(_with_hugeints(reader), lambda batch: batch), load, lambda exc: self._explanation(exc, load)
            )

    def has_changed(self, _version: str, _load: Load) -> bool:
        """Say yes: Flight SQL has no number that is another whenever a table is."""
        return True

    def _connection(self, load: Load) -> adbc_driver_manager.dbapi.Connection:
        options = {
            DatabaseOptions.WITH_MAX_MSG_SIZE.value: str(_MESSAGE_BYTES),
            "adbc.flight.sql.rpc.timeout_seconds.connect": str(max(0.001, load.deadline.left_s)),
            **{option.value: _NO_TIME_S for option in _TIMEOUTS},
        }
        if "flightsql_token" not in self._params and "flightsql_username" in self._params:
            options["username"] = self._params["flightsql_username"]
            options["password"] = self._params["flightsql_password"]
        if (path := self._params.get("flightsql_tls_root_certificate_file")) is not None:
            options[DatabaseOptions.TLS_ROOT_CERTS.value] = _certificates(path)
        scheme = _SCHEMES.get(self._endpoint.scheme, self._endpoint.scheme)
        connection = adbc_driver_flightsql.dbapi.connect(
            f"{scheme}://{self._endpoint.netloc}", db_kwargs=options, autocommit=True
        )
        try:
            limit_s = str(max(0.001, load.deadline.left_s))
            options = {option.value: limit_s for option in _TIMEOUTS}
            if "flightsql_token" in self._params:
                header = f"{ConnectionOptions.RPC_CALL_HEADER_PREFIX.value}authorization"
                options[header] = f"Bearer {self._params['flightsql_token']}"
            connection.adbc_connection.set_options(**options)
        except BaseException:
            connection.close()
            raise
        return connection

    def _rows(self, cursor: adbc_driver_manager.dbapi.Cursor, sql: str) -> pa.RecordBatchReader:
        """
        Ask for the rows of *sql*, one endpoint after the other; nothing is fetched before all of them are judged.

        Raises:
            SourceError: An endpoint names another server.
        """
        # Not by the cursor, which would prepare the statement: where the connection is cut, the end of that fails, and
        # then the end of the connection.
        cursor.adbc_statement.set_sql_query(sql)
        partitions, schema, _ = cursor.adbc_statement.execute_partitions()
        judged = [self._judged(partition) for partition in partitions]
        if not judged:
            return pa.RecordBatchReader.from_batches(pa.schema(schema), [])
        cursor.adbc_read_partition(judged[0])
        first = cursor.fetch_record_batch()

        def batches() -> Iterator[pa.RecordBatch]:
            yield from first
            for partition in judged[1:]:
                cursor.adbc_read_partition(partition)
                reader = cursor.fetch_record_batch()
                if reader.schema != first.schema:
                    raise SourceError("The Flight SQL server: its endpoints do not agree on the columns.")
                yield from reader

        return pa.RecordBatchReader.from_batches(first.schema, batches())

    def _judged(self, partition: bytes) -> bytes:
        """
        Return *partition*, a FlightInfo with one endpoint, with nothing but the ticket of that.

        Without locations the driver has nowhere to go but to the server that was asked, however it reads a URL.

        Raises:
            SourceError: A location is not that of this server.
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
            place = (_HAS_TLS.get(url.scheme), url.hostname, url.port)
        except ValueError:
            raise self._elsewhere(None) from None
        if place != (_HAS_TLS[self._endpoint.scheme], self._endpoint.hostname, self._endpoint.port):
            raise self._elsewhere(url.hostname)

    def _elsewhere(self, host: str | None) -> SourceError:
        """Say that the server names *host*, which it wrote itself: only what is a host is shown, and no credential."""
        try:
            shown = f" on {parse_host(host or '')}"
        except InvalidValueError:
            shown = ""
        credentials = (
            self._params.get(name) for name in ("flightsql_token", "flightsql_username", "flightsql_password")
        )
        if any(credential and credential.lower() in shown for credential in credentials):
            shown = ""
        return SourceError(
            f"The Flight SQL server: it names another server{shown} for the rows; they are read only from the host "
            "and port of flightsql_endpoint, with TLS where that has it."
        )

    def _is_server(self, peer: Peer) -> bool:
        return isinstance(peer, tuple) and peer[1] == self._endpoint.port

    @contextmanager
    def _explained(self, load: Load) -> Iterator[None]:
        try:
            yield
        except (adbc_driver_manager.Error, pa.ArrowException, OSError) as exc:
            raise self._explanation(exc, load) from None

    def _explanation(self, error: Exception, load: Load) -> SourceError:
        """Turn what the library raised into a sentence: its own texts hold the address, SQL and values."""
        load.deadline.check()
        text = str(error)
        if "panicked" in text:
            # Whatever is asked of the driver from now on fails.
            return SourceError(
                "The Flight SQL server: what it sends is not Flight SQL, and breaks the driver.", broke_library=True
            )
        reason = next((reason for words, reason in _BY_WORDS if re.search(words, text)), None)
        if reason is None:
            reason = _BY_CODE.get(getattr(error, "status_code", None), "it broke off while {table} was read")
        return SourceError(f"The Flight SQL server: {reason.format(table=self._shown)}.")


def _certificates(path: str) -> str:
    try:
        # The driver would take a file without a certificate for one that adds nothing to those of the system.
        ssl.create_default_context(cafile=path)
        return Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        raise SourceError(
            "The file that flightsql_tls_root_certificate_file names has no certificate that can be read."
        ) from None


# --- columns ----------------------------------------------------------------------------------------------------------


def _with_hugeints(reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """
    Return *reader* with what may have been a HUGEINT as a HUGEINT again.

    Arrow has no such type: DuckDB sends a decimal of 38 digits, and some of these numbers have 39.
    """

    def again(kind: pa.DataType) -> pa.DataType:
        return HUGEINT if kind == SENT_HUGEINT else kind

    schema = pa.schema([field.with_type(viewed_type(field.type, again)) for field in reader.schema])

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in reader:
            yield pa.RecordBatch.from_arrays([viewed(column, again) for column in batch.columns], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _column(field: pa.Field) -> Column:
    """Return how the column *field* is read: as it is, and compared by the server where every server compares alike."""
    column = Column(name=field.name, expression=identifier(field.name))
    if pa.types.is_integer(field.type):
        return replace(column, literal=integer_literal)
    if pa.types.is_date32(field.type):
        return replace(column, literal=date_literal)
    if pa.types.is_timestamp(field.type) and field.type.tz is None and field.type.unit == "us":
        return replace(column, literal=timestamp_literal)
    return column

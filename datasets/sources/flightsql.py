"""
`flightsql:` sources: a table or view of a server that speaks Arrow Flight SQL, such as another Latchkey, by ADBC.

One statement reads the rows, so the data is what the server takes for one version. The driver's own time-outs cover
each of its calls, a stream of rows from its first to its last.
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
from adbc_driver_flightsql import DatabaseOptions, StatementOptions
from adbc_driver_manager import AdbcStatusCode

from datasets.errors import BrokenLibraryError, SourceError
from datasets.sources.adbc import (
    Column,
    chosen,
    condition,
    date_literal,
    integer_literal,
    mapped,
    timestamp_literal,
)
from datasets.sources.sockets import Peer, cut_off
from datasets.sources.source import Load
from datasets.sources.streams import StreamScan
from datasets.sql import identifier
from runtimeconf.connectors.tables import table_parts
from runtimeconf.model import DatasetConfig

#: What the driver makes of each scheme that `flightsql_endpoint` may have.
_SCHEMES = {"grpc": "grpc+tcp", "http": "grpc+tcp", "https": "grpc+tls"}

#: The largest message that is taken (bytes), and how many batches the driver reads ahead of the engine.
_MESSAGE_BYTES = 64 * 1024 * 1024
_QUEUED_BATCHES = 2

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
            connection.cursor(adbc_stmt_kwargs={StatementOptions.QUEUE_SIZE.value: str(_QUEUED_BATCHES)}) as cursor,
        ):
            cursor.execute(f"SELECT * FROM {self._table} WHERE 1 = 0")  # noqa: S608 - quoted
            with cursor.fetch_record_batch() as nothing:
                columns = [_column(field) for field in nothing.schema]
            asked = chosen(columns, load.wanted)
            expressions = ", ".join(column.expression for column in asked)
            where = condition(columns, load.wanted, identifier)
            cursor.execute(f"SELECT {expressions} FROM {self._table}{where}")  # noqa: S608 - quoted
            with cursor.fetch_record_batch() as reader:
                yield StreamScan(mapped(reader, lambda batch: batch), load, lambda exc: self._explanation(exc, load))

    def has_changed(self, _version: str, _load: Load) -> bool:
        """Say yes: Flight SQL has no number that is another whenever a table is."""
        return True

    def _connection(self, load: Load) -> adbc_driver_manager.dbapi.Connection:
        limit_s = str(max(0.001, load.deadline.left_s))
        options = {
            DatabaseOptions.WITH_MAX_MSG_SIZE.value: str(_MESSAGE_BYTES),
            DatabaseOptions.TIMEOUT_FETCH.value: limit_s,
            DatabaseOptions.TIMEOUT_QUERY.value: limit_s,
            DatabaseOptions.TIMEOUT_UPDATE.value: limit_s,
            "adbc.flight.sql.rpc.timeout_seconds.connect": limit_s,
        }
        if "flightsql_token" in self._params:
            options[DatabaseOptions.AUTHORIZATION_HEADER.value] = f"Bearer {self._params['flightsql_token']}"
        elif "flightsql_username" in self._params:
            options["username"] = self._params["flightsql_username"]
            options["password"] = self._params["flightsql_password"]
        if (path := self._params.get("flightsql_tls_root_certificate_file")) is not None:
            options[DatabaseOptions.TLS_ROOT_CERTS.value] = _certificates(path)
        scheme = _SCHEMES.get(self._endpoint.scheme, self._endpoint.scheme)
        return adbc_driver_flightsql.dbapi.connect(
            f"{scheme}://{self._endpoint.netloc}", db_kwargs=options, autocommit=True
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
            return BrokenLibraryError("The Flight SQL server: what it sends is not Flight SQL, and breaks the driver.")
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

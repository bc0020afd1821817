"""
`postgres:` sources: a table, view, partitioned or foreign table in PostgreSQL, read with its ADBC driver.

One read-only transaction with one snapshot reads the catalog and then the rows, with COPY in binary format. Some values
are selected in another form because the driver or the engine would misread them:

* dates and times may be infinite. The driver adds the difference between two epochs without checking for infinity, so
  infinite values are selected as reserved numbers;
* a numeric may be NaN or have more digits than the engine's decimals. It is selected as text, and the engine casts it
  if the column's declared digits fit;
* multidimensional arrays are refused because the driver flattens them.

Types without an equivalent in the engine are read as PostgreSQL's text.
"""

import re
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import adbc_driver_manager.dbapi
import adbc_driver_postgresql.dbapi
import pyarrow as pa
import pyarrow.compute as pc

from connectors.databases import (
    INTEGERS,
    Column,
    UnfitValueError,
    chosen,
    condition,
    converted,
    engine_types,
    explained,
)
from connectors.postgres.params import PostgresParams
from datasources.errors import SourceError
from datasources.sources.source import Load, Source, reason_for
from datasources.sources.streams import StreamScan
from datasources.sql import identifier, literal
from runtimeconf.model import DatasetConfig
from runtimeconf.tables import table_parts

#: The approximate size of a batch in bytes. The driver's default is four times as much.
_BATCH_BYTES = 4 * 1024 * 1024

#: Milliseconds after the load's deadline when PostgreSQL itself ends the statement. The load ends first.
_SPARE_MS = 1000

# The OIDs of built-in types, the same in every server: src/include/catalog/pg_type.dat of PostgreSQL.
_DATE, _TIMESTAMP, _TIMESTAMPTZ, _INTERVAL, _NUMERIC, _OID = 1082, 1114, 1184, 1186, 1700, 26
_INTEGERS = frozenset({20, 21, 23})
_REAL, _DOUBLE, _CHAR_N = 700, 701, 1042
#: bool, bytea, bigint, smallint, integer, text, json, real, double, char(n), varchar, time, uuid, jsonb
_AS_THEY_ARE = frozenset({16, 17, 25, 114, _REAL, _DOUBLE, _CHAR_N, 1043, 1083, 2950, 3802}) | _INTEGERS

#: Tables, views, materialized views, foreign and partitioned tables, as in pg_class.relkind.
_TABLE_KINDS = frozenset("rvmfp")

#: The maximum number of digits in the engine's decimals.
_MAX_DIGITS = 38

#: Timestamps from this value on (µs since 1970, 294246-01-01) are outside the engine's range, or almost. Three of them
#: represent values without a number.
_FAR = 9_223_339_708_800_000_000
_DAY_US = 86_400_000_000
_POSITIVE, _NEGATIVE, _TOO_FAR = _FAR, _FAR + _DAY_US, _FAR + 2 * _DAY_US
#: The engine's infinite timestamps and dates.
_INFINITE_US = 2**63 - 1
_INFINITE_DAY = 2**31 - 1

_COLUMNS = """
WITH RECURSIVE resolved (number, name, type, modifier) AS (
  SELECT a.attnum, a.attname, a.atttypid, a.atttypmod FROM pg_catalog.pg_attribute a
  WHERE a.attrelid = {oid} AND a.attnum > 0 AND NOT a.attisdropped
  UNION ALL
  SELECT r.number, r.name, t.typbasetype, CASE WHEN t.typtypmod >= 0 THEN t.typtypmod ELSE r.modifier END
  FROM resolved r JOIN pg_catalog.pg_type t ON t.oid = r.type WHERE t.typtype = 'd'
), padded (type) AS (
  SELECT {char_n}::oid
  UNION ALL
  SELECT t.oid FROM padded p JOIN pg_catalog.pg_type t ON t.typbasetype = p.type WHERE t.typtype = 'd'
)
SELECT r.name::text, r.type::bigint, r.modifier,
       CASE WHEN t.typcategory = 'A' AND t.typlen = -1
            THEN CASE WHEN t.typelem IN (SELECT type FROM padded) THEN {char_n} ELSE t.typelem::bigint END END
FROM resolved r JOIN pg_catalog.pg_type t ON t.oid = r.type WHERE t.typtype <> 'd' ORDER BY r.number
"""

#: Our reasons by SQLSTATE (appendix A of PostgreSQL's manual).
_BY_SQLSTATE = {
    "42501": "the user has no read permission on {table} or part of it",
    "42P01": "{table} no longer exists",
    "53300": "the server has no free connections",
    "57014": "the server cancelled the query",
    "57P01": "the server is shutting down",
    "40001": "the server cancelled the query because of a replication conflict",
    "53200": "the server ran out of memory",
    "53100": "the server's disk is full",
    "53400": "the query needs more temporary space than the server allows it",
}
#: PgBouncer's message when a transaction begins in a pool in statement mode.
_NO_TRANSACTIONS = "not allowed in statement pooling mode"
_TLS_FAILED = "TLS with it failed:"
#: Our reasons for a failed connection, by client library message.
_BY_WORDS = (
    (_NO_TRANSACTIONS, "its PgBouncer allows no transactions: connect to a pool in transaction or session mode"),
    ("password authentication failed", "it rejected the user or password"),
    ("no password supplied", "it asks for a password: set pg_pass"),
    ("no pg_hba.conf entry", "its pg_hba.conf has no entry for this user, database and address"),
    ("database .* does not exist", "it has no database with that name"),
    ("role .* does not exist", "it rejected the user or password"),
    ("does not support SSL", "it does not support TLS; pg_sslmode: disable turns it off"),
    ("server certificate .*does not match host name", f"{_TLS_FAILED} the certificate does not match the host name"),
    (
        "root certificate|certificate verify failed",
        f"{_TLS_FAILED} the certificate is not signed by an authority in pg_sslrootcert or the system's roots",
    ),
    ("certificate verify|server certificate|SSL", f"{_TLS_FAILED} there is no TLS version or cipher in common"),
    ("timeout expired", "it did not respond in time"),
    ("could not translate host name", "its host name cannot be resolved"),
    ("Connection refused|No such file", "nothing is listening there"),
    ("starting up|shutting down|recovery", "it is starting up or shutting down"),
    ("too many clients|remaining connection slots", "it has no free connections"),
    ("unreachable|No route", "it is unreachable"),
    ("expected authentication request|invalid response|received invalid", "it is not a PostgreSQL server"),
)


class PostgresSource(Source):
    """One table or view, read in one database snapshot. PostgreSQL has no version number for a table."""

    def __init__(self, dataset: DatasetConfig, params: PostgresParams) -> None:
        self._parts = table_parts(dataset.location)
        self._shown = dataset.location
        self._params = params

    @contextmanager
    def open(self, load: Load) -> Iterator[StreamScan]:
        """Connect and send the query; see `Source.open`."""
        load.deadline.check()
        with (
            load.deadline.cut_off(self._is_server),
            explained(load, self._explanation, adbc_driver_manager.Error),
            self._connection(load) as connection,
            connection.cursor() as cursor,
        ):
            self._begin(cursor, load)
            oid, table = self._table(cursor)
            cursor.execute(_COLUMNS.format(oid=oid, char_n=_CHAR_N))
            rows = cursor.fetchall()
            if not rows:
                raise SourceError(f"{self._shown} has no columns.")
            columns = [_column(*row) for row in rows]
            asked = chosen(columns, load.wanted)
            expressions = ", ".join(f"{column.expression} AS {identifier(column.name)}" for column in asked)
            where = condition(columns, load.wanted)
            cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(_BATCH_BYTES)})
            cursor.execute(f"SELECT {expressions} FROM {table}{where}")  # noqa: S608 - quoted
            arrays = [name for name, _, _, element in rows if element is not None]
            reader = converted(cursor.fetch_record_batch(), asked)
            yield StreamScan(reader, load, partial(self._explanation, arrays=arrays), types=engine_types(asked))

    def _connection(self, load: Load) -> adbc_driver_manager.dbapi.Connection:
        # Set every relevant option, so that no PG* variable, password file or service file has an effect.
        params = self._params
        options = {
            "host": params.pg_host,
            "hostaddr": "",
            "port": str(params.pg_port),
            "dbname": params.pg_db,
            "user": params.pg_user,
            "password": params.pg_pass,
            "passfile": str(load.scratch / "no-password-file"),
            "sslmode": params.pg_sslmode,
            "sslrootcert": self._root_certificates(),
            "sslcert": str(load.scratch / "no-certificate"),
            "sslkey": str(load.scratch / "no-key"),
            "gssencmode": "disable",
            "target_session_attrs": "any",
            "options": "",
            "application_name": "querykeep",
            "client_encoding": "UTF8",
            "connect_timeout": str(max(1, int(load.deadline.left_s))),
            "keepalives": "1",
            "keepalives_idle": "10",
            "keepalives_interval": "10",
            "keepalives_count": "3",
            "tcp_user_timeout": str(max(1000, int(load.deadline.left_s * 1000))),
        }
        text = " ".join(f"{name}={_quoted_option(value)}" for name, value in options.items())
        # The driver prepares a statement in one round trip and executes it in the next. A pooler may send these to
        # different servers unless they are in a transaction. The driver begins a transaction in a single round trip.
        connection: adbc_driver_manager.dbapi.Connection = adbc_driver_postgresql.dbapi.connect(text)
        return connection

    def _root_certificates(self) -> str:
        path = self._params.pg_sslrootcert
        if path is not None:
            if not path.is_file():
                raise SourceError("The file in pg_sslrootcert cannot be read.")
            return str(path)
        known = ssl.get_default_verify_paths()
        bundles = (known.cafile, known.openssl_cafile, "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/cert.pem")
        found = next((bundle for bundle in bundles if bundle is not None and Path(bundle).is_file()), "")
        # Without a file the library searches the home directory, and verifies nothing if it finds none.
        return found if self._params.pg_sslmode.startswith("verify") else ""

    def _is_server(self, connection: socket.socket) -> bool:
        peer = connection.getpeername()
        port = self._params.pg_port
        if isinstance(peer, tuple):
            return bool(peer[1] == port)
        return bool(peer == f"{self._params.pg_host}/.s.PGSQL.{port}")

    def _begin(self, cursor: Any, load: Load) -> None:
        """Set up the transaction that the driver began when it connected."""
        timeout_ms = int(max(0, load.deadline.left_s) * 1000) + _SPARE_MS
        for statement in (
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY",
            f"SET LOCAL statement_timeout = {timeout_ms}",
            f"SET LOCAL idle_in_transaction_session_timeout = {timeout_ms}",
            "SET LOCAL TimeZone = 'UTC'",
            "SET LOCAL DateStyle = 'ISO, MDY'",
            "SET LOCAL IntervalStyle = 'postgres'",
            "SET LOCAL bytea_output = 'hex'",
            # All digits of the floating-point numbers in text, such as those of points and ranges.
            "SET LOCAL extra_float_digits = 3",
            # NULL in the text of an array is a null, not a string.
            "SET LOCAL array_nulls = on",
            "SET LOCAL standard_conforming_strings = on",
        ):
            cursor.execute(statement)

    def _table(self, cursor: Any) -> tuple[int, str]:
        """Return the table's OID and its name as SQL."""
        name = ".".join(map(identifier, self._parts))
        cursor.execute(
            "SELECT c.oid::bigint, n.nspname::text, c.relname::text, c.relkind::text "  # noqa: S608 - quoted
            "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
            f"WHERE c.oid = pg_catalog.to_regclass({literal(name)})"
        )
        row = cursor.fetchone()
        if row is None:
            raise SourceError(
                f"The database has no table or view {self._shown}, or the user has no access to it. "
                "Names are case-sensitive."
            )
        oid, schema, table, kind = row
        if kind not in _TABLE_KINDS:
            raise SourceError(f"{self._shown} is neither a table nor a view.")
        return oid, f"{identifier(schema)}.{identifier(table)}"

    def _explanation(self, error: Exception, arrays: Sequence[str] = ()) -> SourceError:
        """Turn a library error, which contains host, user, SQL and values, into a sentence."""
        text = str(error)
        state = getattr(error, "sqlstate", None) or next(iter(re.findall(r"SQLSTATE: (\w{5})", text)), None)
        if state in _BY_SQLSTATE:
            return SourceError(f"PostgreSQL: {_BY_SQLSTATE[state].format(table=self._shown)}.")
        if state is not None:
            return SourceError(f"PostgreSQL cannot read {self._shown}: SQLSTATE {state}.")
        if "Failed to connect" in text or _NO_TRANSACTIONS in text:
            reason = reason_for(text, _BY_WORDS) or "it refused the connection"
            return SourceError(f"The PostgreSQL server cannot be reached: {reason}.")
        if "lower bound" in text:
            names = ", ".join(f"'{name}'" for name in arrays)
            return SourceError(
                f"{self._shown} has an array of several dimensions in the column {names}: "
                "the engine supports only one dimension, so omit that column in a view."
            )
        if "ERROR:" in text:
            return SourceError(
                f"PostgreSQL disconnected while {self._shown} was being read: run the query there to see why."
            )
        return SourceError(f"The connection to PostgreSQL broke while {self._shown} was being read.")


def _quoted_option(value: str) -> str:
    """Quote *value* for a libpq connection string (section 34.1.1.1 of PostgreSQL's manual), which is not SQL."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


# --- types ------------------------------------------------------------------------------------------------------------


def _column(name: str, oid: int, modifier: int, element: int | None) -> Column:
    """Return how the column *name* of type *oid* is read. *element* is the element type of an array."""
    quoted = identifier(name)
    if element is not None:
        return _array_column(name, element, modifier)
    if oid in _AS_THEY_ARE:
        return Column(name=name, expression=quoted, compared=_COMPARED.get(oid, frozenset()))
    if oid in {_DATE, _TIMESTAMP, _TIMESTAMPTZ}:
        return _date_column(name) if oid == _DATE else _timestamp_column(name, has_zone=oid == _TIMESTAMPTZ)
    if oid == _INTERVAL:
        # The engine does not accept the plus signs that PostgreSQL writes after a negative part.
        return Column(name=name, expression=f"replace({quoted}::text, '+', '')", engine_type="INTERVAL")
    if oid == _NUMERIC and (decimal := _decimal(modifier)) is not None:
        return Column(name=name, expression=f"{quoted}::text", engine_type=decimal, compared=_EXACT)
    return Column(name=name, expression=f"{quoted}::{'bigint' if oid == _OID else 'text'}")


def _date_column(name: str) -> Column:
    quoted = identifier(name)
    expression = (
        f"CASE {quoted} WHEN 'infinity' THEN {_INFINITE_DAY} WHEN '-infinity' THEN -{_INFINITE_DAY} "
        f"ELSE {quoted} - '1970-01-01'::date END"
    )
    # Days since 1970. Infinite dates have the engine's numbers.
    return Column(name=name, expression=expression, convert=lambda days: days.view(pa.date32()), compared={"date"})


def _timestamp_column(name: str, *, has_zone: bool) -> Column:
    quoted, zone = identifier(name), "+00" if has_zone else ""
    expression = (
        f"CASE WHEN {quoted} < '294246-01-01 00:00:00{zone}' AND {quoted} > '-infinity' THEN {quoted} "
        f"WHEN {quoted} = 'infinity' THEN '294246-01-01 00:00:00{zone}' "
        f"WHEN {quoted} = '-infinity' THEN '294246-01-02 00:00:00{zone}' "
        f"WHEN {quoted} IS NOT NULL THEN '294246-01-03 00:00:00{zone}' END"
    )
    compared = {"timestamptz" if has_zone else "timestamp"}
    return Column(name=name, expression=expression, convert=_timestamps(name), compared=compared)


def _array_column(name: str, element: int, modifier: int) -> Column:
    # A slice of the whole array begins at 1, as lists do. The driver refuses an array that begins at 2, so such an
    # array replaces multidimensional arrays.
    quoted = identifier(name)
    array, wrong = f"{quoted}[:]", "'[2:2]={NULL}'"
    if element == _CHAR_N:
        # The elements may have a domain, whose cast to text would remove trailing spaces.
        array = f"{array}::bpchar[]"
    engine_type = None
    if element not in _AS_THEY_ARE:
        # Each element is cast on its own: the text of an array separates boxes, and types of extensions, by other
        # characters than commas.
        of_text = f"{_IN_ENGINE_FORM.get(element, '{}')}::text[]".replace("{}", array)
        array, wrong = of_text, f"{wrong}::text[]"
        engine_type = _ELEMENTS.get(element) if element != _NUMERIC else _decimal(modifier)
    return Column(
        name=name,
        expression=f"CASE WHEN pg_catalog.array_ndims({quoted}) > 1 THEN {wrong} ELSE {array} END",
        engine_type=f"{engine_type}[]" if engine_type is not None else None,
    )


def _decimal(modifier: int) -> str | None:
    """Return the engine's type for a numeric with this type modifier; None if no decimal fits all values."""
    if modifier < 0:
        return None
    # src/backend/utils/adt/numeric.c: eleven bits of signed scale, above them the precision, plus 4.
    precision, scale = (modifier - 4) >> 16 & 0xFFFF, (((modifier - 4) & 0x7FF) ^ 1024) - 1024
    digits, scale = max(precision, scale, precision - scale), max(scale, 0)
    return f"DECIMAL({digits},{scale})" if digits <= _MAX_DIGITS else None


def _timestamps(name: str) -> Callable[[pa.Array], pa.Array]:
    def convert(array: pa.Array) -> pa.Array:
        latest = pc.max(array.view(pa.int64())).as_py()
        if latest is None or latest < _FAR:
            return array
        numbers = array.view(pa.int64())
        if (index := pc.index(pc.greater_equal(numbers, _TOO_FAR), value=True).as_py()) >= 0:
            raise UnfitValueError(name, index, "a time after the year 294245, which the engine does not support")
        numbers = pc.if_else(pc.equal(numbers, _POSITIVE), _INFINITE_US, numbers)
        return pc.if_else(pc.equal(numbers, _NEGATIVE), -_INFINITE_US, numbers).view(array.type)

    return convert


#: Years before Christ: the engine writes the marker after the day, PostgreSQL at the end.
_BC_AFTER_DAY = r"regexp_replace({}::text, '(\d-\d\d-\d\d)([^,\"]*) BC', '\1 (BC)\2', 'g')"
#: The text of arrays by element type, in the form that the engine reads.
_IN_ENGINE_FORM = {
    _INTERVAL: "replace({}::text, '+', '')",
    **dict.fromkeys((_DATE, _TIMESTAMP, _TIMESTAMPTZ), _BC_AFTER_DAY),
}

_EXACT = INTEGERS | {"decimal"}
# Without real, because the engine and PostgreSQL compare it with a constant at different precisions.
_COMPARED = {**dict.fromkeys(_INTEGERS, _EXACT), _DOUBLE: _EXACT | {"double"}}

_ELEMENTS = {_DATE: "DATE", _TIMESTAMP: "TIMESTAMP", _TIMESTAMPTZ: "TIMESTAMPTZ", _INTERVAL: "INTERVAL", _OID: "BIGINT"}

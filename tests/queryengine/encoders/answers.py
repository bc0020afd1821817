"""What the tests of encoders share: results taken from DuckDB as a session takes them, and a strict JSON parser."""

import json
import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa

from queryengine.encoders import encode_parts
from queryengine.engine import Encoding
from queryengine.manifest import Column
from queryengine.values import select_list

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def connect() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def result(
    connection: duckdb.DuckDBPyConnection, sql: str, batch_size: int = 2048
) -> tuple[tuple[Column, ...], pa.RecordBatchReader]:
    """Run *sql* and return its columns as it names them, and its batches after the projection."""
    plain = connection.sql(sql)
    columns = tuple(Column(name=name, type=str(kind)) for name, kind in zip(plain.columns, plain.types, strict=True))
    projection = select_list((column.name, column.type) for column in columns)
    projected = plain if projection is None else plain.project(projection)
    return columns, projected.to_arrow_reader(batch_size)


def encode(
    encoding: Encoding, columns: tuple[Column, ...], schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[bytes]:
    return map(b"".join, encode_parts(encoding, columns, schema, batches))


def declared(columns: dict[str, str]) -> tuple[Column, ...]:
    """Return columns of these names and DuckDB types."""
    return tuple(Column(name=name, type=type_) for name, type_ in columns.items())


def answer(connection: duckdb.DuckDBPyConnection, sql: str, encoding: Encoding = "json") -> bytes:
    columns, reader = result(connection, sql)
    return b"".join(encode(encoding, columns, reader.schema, reader))


def from_arrow(columns: dict[str, str], *batches: pa.RecordBatch, encoding: Encoding = "json") -> bytes:
    """Encode batches that a test has made; *columns* are names and DuckDB types."""
    return b"".join(encode(encoding, declared(columns), batches[0].schema, batches))


def strict_json(text: bytes) -> Any:
    """Parse JSON: UTF-8, one line, no white space between tokens, no NaN, no key twice; every number is a Decimal."""
    decoded = text.decode("utf-8", "strict")
    assert not re.search(r"\s", _STRING.sub('""', decoded))

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({key for key, _ in pairs}) == len(pairs), pairs
        return dict(pairs)

    def refused(word: str) -> None:
        raise AssertionError(word)

    return json.loads(decoded, parse_int=Decimal, parse_float=Decimal, parse_constant=refused, object_pairs_hook=unique)

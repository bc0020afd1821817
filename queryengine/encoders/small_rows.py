"""
Encodes small results from Python values as JSON, NDJSON, CSV or a record batch.

For a few rows, this is cheaper than a call to Arrow. The bytes are the same as those of the other encoders, and a
record batch is the same as DuckDB's own. A value that may differ is written by its renderer. If Python cannot represent
a value exactly (a date that may be an infinity, a year beyond 9999), the other encoders write the whole result.
"""

import datetime as dt
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from json.encoder import encode_basestring  # the C function behind `json_text`
from typing import Any, Final, TypeVar

import pyarrow as pa
from msgspec import Struct

from queryengine.encoders.csv import quoted_text
from queryengine.encoders.rendering import json_text
from queryengine.encoders.scalars import FloatRenderer
from queryengine.engine import Encoding
from queryengine.manifest import Column
from queryengine.values import parse_type, unique_names

#: The encodings that this module writes. The others are made from record batches.
ENCODINGS: Final[frozenset[Encoding]] = frozenset({"json", "ndjson", "csv"})

#: Lists of names or types with more characters in total are not cached.
_CACHED_CHARACTERS: Final = 2000

#: Python and Arrow write floating-point numbers in this range in the same way: the shortest digits, and no exponent.
_ALIKE_FROM: Final = 1e-4
_ALIKE_UNTIL: Final = 1e10

#: The bounds of Python's calendar. DuckDB's infinities are converted to these values too.
_BOUNDS: Final = frozenset({dt.date.min, dt.date.max, dt.datetime.min, dt.datetime.max})  # noqa: DTZ901 - without a zone

_FLOATS: Final = FloatRenderer()

_Writer = Callable[[Any], str]
_Made = TypeVar("_Made")


class UnsureError(Exception):
    """A value may differ from DuckDB's own, so the result must be computed as record batches."""


class _Format(Struct, frozen=True):
    """The template of a row, and the text before, between and after the rows."""

    row: str
    start: str
    between: str
    end: str


class Plan(Struct, frozen=True):
    """The writers of the values in these columns, for each encoding of `ENCODINGS`."""

    columns: tuple[Column, ...]
    writers: Mapping[Encoding, tuple[_Writer, ...]]

    def encode(self, encoding: Encoding, rows: Sequence[tuple[Any, ...]]) -> bytes:
        """
        Return the encoded result.

        Raises:
            UnsureError: The other encoders must write the result.
        """
        form = _FORMATS[encoding](tuple([column.name for column in self.columns]))
        row, writers = form.row, self.writers[encoding]
        if len(writers) == 1:
            (write,) = writers
            texts = [row % write(value) for (value,) in rows]
        else:
            texts = [
                row % tuple([write(value) for write, value in zip(writers, values, strict=True)]) for values in rows
            ]
        return (form.start + form.between.join(texts) + form.end).encode()


def plan(columns: tuple[Column, ...]) -> Plan | None:
    """Return the plan for *columns* with DuckDB types; None if this module does not support a type."""
    writers = _writers(tuple([column.type for column in columns]))
    return None if writers is None else Plan(columns, writers)


def _cached(make: Callable[[tuple[str, ...]], _Made]) -> Callable[[tuple[str, ...]], _Made]:
    """Cache the results of *make*, except for long arguments, which could fill the memory."""
    made = lru_cache(maxsize=256)(make)
    return lambda texts: (made if sum(map(len, texts)) <= _CACHED_CHARACTERS else make)(texts)


@_cached
def _writers(types: tuple[str, ...]) -> Mapping[Encoding, tuple[_Writer, ...]] | None:
    names = [parse_type(type_).name for type_ in types]
    if not names or not all(name in _WRITERS for name in names):
        return None
    in_json = tuple(_or(_WRITERS[name][0], "null") for name in names)
    return {
        "json": in_json,
        "ndjson": in_json,
        "csv": tuple(_or(_WRITERS[name][1], "") for name in names),
    }


@_cached
def _json(names: tuple[str, ...]) -> _Format:
    return _Format(row=_object(names), start="[", between=",", end="]")


@_cached
def _ndjson(names: tuple[str, ...]) -> _Format:
    return _Format(row=_object(names) + "\n", start="", between="", end="")


def _object(names: tuple[str, ...]) -> str:
    return "{" + ",".join([json_text(key).replace("%", "%%") + ":%s" for key in unique_names(names)]) + "}"


@_cached
def _csv(names: tuple[str, ...]) -> _Format:
    header = ",".join(map(quoted_text, unique_names(names))) + "\n"
    return _Format(row=",".join(["%s"] * len(names)) + "\n", start=header, between="", end="")


_FORMATS: Final[Mapping[Encoding, Callable[[tuple[str, ...]], _Format]]] = {
    "json": _json,
    "ndjson": _ndjson,
    "csv": _csv,
}


def _or(write: _Writer, null: str) -> _Writer:
    return lambda value: null if value is None else write(value)


def _quoted(write: _Writer) -> _Writer:
    return lambda value: f'"{write(value)}"'


def _free(write: _Writer) -> _Writer:
    return lambda value: quoted_text(write(value))


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _float_json(value: float) -> str:
    return _float_plain(value) if math.isfinite(value) else "null"


def _float_plain(value: float) -> str:
    if _ALIKE_FROM <= abs(value) < _ALIKE_UNTIL:
        return repr(value)
    return str(_FLOATS.plain(pa.array([value], pa.float64()))[0])


def _sure(value: Any) -> Any:
    """Return a date or time that means the same in Python and DuckDB, or raise UnsureError."""
    if isinstance(value, str) or value in _BOUNDS:
        raise UnsureError
    return value


def _date(value: dt.date | str) -> str:
    return str(_sure(value).isoformat())


def _time(value: dt.datetime | dt.time | str) -> str:
    """Return the time with the shortest exact fraction of 0, 3 or 6 digits."""
    sure: dt.datetime | dt.time = _sure(value)
    if sure.microsecond % 1000:
        return sure.isoformat()
    return sure.isoformat(timespec="milliseconds" if sure.microsecond else "seconds")


#: The writers of a non-null value in JSON and in CSV, by type name in `values.TABLE`. FLOAT is missing because Python
#: gets a DOUBLE. The other missing types are nested, or DuckDB must convert them to text.
_WRITERS: Final[Mapping[str, tuple[_Writer, _Writer]]] = {
    "NULL": (str, str),
    "BOOLEAN": (_boolean, _boolean),
    **dict.fromkeys(
        (
            *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT"),
            *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"),
        ),
        (str, str),
    ),
    "DOUBLE": (_float_json, _float_plain),
    "DECIMAL": ("{:f}".format, "{:f}".format),
    **dict.fromkeys(("VARCHAR", "JSON", "ENUM"), (encode_basestring, quoted_text)),
    "UUID": (_quoted(str), str),
    "BLOB": (_quoted(bytes.hex), _free(bytes.hex)),
    "DATE": (_quoted(_date), _date),
    **dict.fromkeys(("TIME", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS"), (_quoted(_time), _time)),
}

#: Functions that convert a non-null value to one that Arrow accepts. Values of other types need no conversion.
_TO_ARROW: Final[Mapping[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(("UUID", "UHUGEINT"), str),
    **dict.fromkeys(("DATE", "TIME", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS"), _sure),
}


def fit_batch(schema: pa.Schema) -> bool:
    """Return whether `batch` supports *schema*. It does not support dictionaries, which must be DuckDB's own."""
    return not any(pa.types.is_dictionary(field.type) for field in schema)


def batch(columns: Sequence[Column], schema: pa.Schema, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """
    Return one or more *rows* as a record batch with *schema*. `plan` must support the types of *columns*.

    Raises:
        UnsureError: A value may differ from the one that DuckDB would export.
    """
    try:
        arrays = [
            pa.array(_converted(column, values), field.type)
            for column, field, values in zip(columns, schema, zip(*rows, strict=True), strict=True)
        ]
    except (pa.ArrowException, OverflowError) as exc:  # Arrow's decimals have no room for a HUGEINT with 39 digits.
        raise UnsureError from exc
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _converted(column: Column, values: Sequence[Any]) -> Sequence[Any]:
    convert = _TO_ARROW.get(parse_type(column.type).name)
    return values if convert is None else [None if value is None else convert(value) for value in values]

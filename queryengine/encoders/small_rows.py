"""
Answers of a few rows as JSON or CSV, from Python values: for those a call of Arrow costs more than the rows do.

The bytes are those that the encoders of record batches write. A value that is not plainly the same in both is written
by their renderer, and one of which Python does not know enough (a date that may be an infinity, a year beyond 9999)
leaves the answer to them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from json.encoder import encode_basestring  # as `json_text`, without an encoder
from types import MappingProxyType
from typing import Any, Final, TypeVar

import pyarrow as pa

from queryengine.encoders.csv import quoted_text
from queryengine.encoders.rendering import json_text
from queryengine.encoders.scalars import FloatRenderer
from queryengine.engine import Encoding
from queryengine.manifest import Column
from queryengine.values import parse_type, unique_names

#: What can be written here.
ENCODINGS: Final[frozenset[Encoding]] = frozenset({"json", "csv"})

#: Of names or types longer than this, all together, nothing is kept.
_KEPT_CHARACTERS: Final = 2000

#: Of these floating point numbers Python and Arrow write the same shortest digits in the same way.
_PLAIN_FROM: Final = 1e-4
_PLAIN_UNTIL: Final = 1e10

#: The bounds of Python's calendar also stand for DuckDB's infinities.
_DAYS: Final = frozenset({dt.date.min, dt.date.max})
_MOMENTS: Final = frozenset({dt.datetime.min, dt.datetime.max})  # noqa: DTZ901 - local ones

_FLOATS: Final = FloatRenderer()

_Writer = Callable[[Any], str]
_Made = TypeVar("_Made")


class UnsureError(Exception):
    """A value may be written otherwise: the answer is to be computed as record batches."""


@dataclass(frozen=True, slots=True)
class _Format:
    """
    How rows are written: the template of a row, and what stands before, between and after them.

    `empty` is the answer without rows.
    """

    row: str
    start: str
    between: str
    end: str
    empty: str


@dataclass(frozen=True, slots=True)
class Plan:
    """How rows with these columns are written, in each encoding of `ENCODINGS`."""

    columns: tuple[Column, ...]
    writers: Mapping[Encoding, tuple[_Writer, ...]]

    def encode(self, encoding: Encoding, rows: Sequence[tuple[Any, ...]]) -> bytes:
        """
        Return the whole answer.

        Raises:
            UnsureError: This is for the other encoders.
        """
        form = _FORMATS[encoding](tuple([column.name for column in self.columns]))
        if not rows:
            return form.empty.encode()
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
    """Return the plan of these columns with DuckDB's types; None when a type is not for this module."""
    writers = _writers(tuple([column.type for column in columns]))
    return None if writers is None else Plan(columns, writers)


def _remembering(make: Callable[[tuple[str, ...]], _Made]) -> Callable[[tuple[str, ...]], _Made]:
    """Have what *make* makes of texts be made once; but not of long ones, which could fill the memory."""
    made = lru_cache(maxsize=256)(make)
    return lambda texts: (made if sum(map(len, texts)) <= _KEPT_CHARACTERS else make)(texts)


@_remembering
def _writers(types: tuple[str, ...]) -> Mapping[Encoding, tuple[_Writer, ...]] | None:
    names = [parse_type(type_).name for type_ in types]
    if not names or not all(name in _WRITERS for name in names):
        return None
    return MappingProxyType(
        {
            "json": tuple(_or(_WRITERS[name][0], "null") for name in names),
            "csv": tuple(_or(_WRITERS[name][1], "") for name in names),
        }
    )


@_remembering
def _json(names: tuple[str, ...]) -> _Format:
    members = ",".join([json_text(key).replace("%", "%%") + ":%s" for key in unique_names(names)])
    return _Format(row="{" + members + "}", start="[", between=",", end="]", empty="[]")


@_remembering
def _csv(names: tuple[str, ...]) -> _Format:
    header = ",".join(map(quoted_text, unique_names(names))) + "\n"
    return _Format(row=",".join(["%s"] * len(names)), start=header, between="\n", end="\n", empty=header)


_FORMATS: Final[Mapping[Encoding, Callable[[tuple[str, ...]], _Format]]] = MappingProxyType(
    {"json": _json, "csv": _csv}
)


def _or(write: _Writer, null: str) -> _Writer:
    return lambda value: null if value is None else write(value)


def _quoted(write: _Writer) -> _Writer:
    return lambda value: f'"{write(value)}"'


def _free(write: _Writer) -> _Writer:
    return lambda value: quoted_text(write(value))


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _float_json(value: float) -> str:
    if _PLAIN_FROM <= abs(value) < _PLAIN_UNTIL:
        return repr(value)
    text: str | None = _FLOATS.json(pa.array([value], pa.float64())).values[0].as_py()
    return "null" if text is None else text


def _float_plain(value: float) -> str:
    if _PLAIN_FROM <= abs(value) < _PLAIN_UNTIL:
        return repr(value)
    return str(_FLOATS.plain(pa.array([value], pa.float64()))[0])


def _decimal(value: Decimal) -> str:
    return f"{value:f}"


def plain_date(value: dt.date | str) -> dt.date:
    """Return a date that is in Python what it is in DuckDB, or raise UnsureError; so do the next two."""
    if isinstance(value, str) or value in _DAYS:
        raise UnsureError
    return value


def plain_timestamp(value: dt.datetime | str) -> dt.datetime:
    """As `plain_date`, for a timestamp."""
    if isinstance(value, str) or value in _MOMENTS:
        raise UnsureError
    return value


def plain_time(value: dt.time | str) -> dt.time:
    """As `plain_date`, for a time of day."""
    if isinstance(value, str):
        raise UnsureError
    return value


def _date(value: dt.date | str) -> str:
    return plain_date(value).isoformat()


def _timestamp(value: dt.datetime | str) -> str:
    return _shortest(plain_timestamp(value))


def _time(value: dt.time | str) -> str:
    return _shortest(plain_time(value))


def _shortest(value: dt.datetime | dt.time) -> str:
    """Write with the shortest fraction of 0, 3 or 6 digits that holds it."""
    if value.microsecond % 1000:
        return value.isoformat()
    return value.isoformat(timespec="milliseconds" if value.microsecond else "seconds")


#: How a value that is not null is written in JSON and in CSV, by the name of its type in `values.TABLE`. A FLOAT comes
#: to Python as the DOUBLE that it is not; other types that are not here are nested, or text that DuckDB has to make.
_WRITERS: Final[Mapping[str, tuple[_Writer, _Writer]]] = MappingProxyType(
    {
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
        "DECIMAL": (_decimal, _decimal),
        **dict.fromkeys(("VARCHAR", "JSON", "ENUM"), (encode_basestring, quoted_text)),
        "UUID": (_quoted(str), str),
        "BLOB": (_quoted(bytes.hex), _free(bytes.hex)),
        "DATE": (_quoted(_date), _date),
        "TIME": (_quoted(_time), _time),
        **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS"), (_quoted(_timestamp), _timestamp)),
    }
)

"""
The types of a MySQL or MariaDB server, for `mysql:` sources.

The server sends every value as text. Only the declared type determines how text is parsed.
"""

import re
from collections.abc import Callable
from collections.abc import Set as AbstractSet

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from connectors.databases import INTEGERS, Column, Conversion, UnfitValueError
from datasources.errors import SourceError

#: The maximum number of digits in the engine's decimals.
_MAX_DIGITS = 38

#: The beginnings of the collations whose characters all have a Unicode equivalent.
_UNICODE = ("binary", "utf", "ucs2", "latin1", "gb18030")
#: Text as UTF-8, or `_LOST` if the server would replace a character with a question mark, or with U+FFFD.
_CHECKED = (
    "IF(CHAR_LENGTH(REPLACE({0}, '?', '')) <> CHAR_LENGTH(REPLACE(CONVERT({0} USING utf8mb4), '?', ''))"
    " OR INSTR(CAST(CONVERT({0} USING utf8mb4) AS BINARY), x'EFBFBD') > 0,"
    " x'FF', CAST(CONVERT({0} USING utf8mb4) AS BINARY))"
)
_LOST = b"\xff"  # not UTF-8

#: The beginning of a type in `SHOW COLUMNS`, such as `decimal(10,2)` and `int(10) unsigned`.
_TYPE = re.compile(r"(\w*)(?:\((\d+)(?:,(\d+))?\))?( unsigned)?")

_GEOMETRIES = frozenset(
    {"geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"}
    | {"geometrycollection", "geomcollection"}
)

_NO_DATE = (
    "an invalid calendar date, such as 0000-00-00: read a view that replaces it, for example with NULLIF({0}, 0), or "
    "that has CAST({0} AS CHAR)"
)
_NO_TIME = "a time below 00:00:00 or above 23:59:59: read a view that has CAST({0} AS CHAR) or TIME_TO_SEC({0})"
_NO_CHARACTER = "a character that the server cannot convert to Unicode: read a view that has CAST({0} AS BINARY)"
_NO_TYPE = "the type {1}, which the engine does not support: omit it in refresh_sql, or read a view that has {2}"

_EXACT = INTEGERS | {"decimal"}


class _Reading(Struct, frozen=True, kw_only=True):
    """How columns of a type are read: the fields of `Column`, with `{}` for the name."""

    expression: str = "{}"
    engine_type: str | None = None
    convert: Callable[[str], Conversion | None] = lambda _name: _text
    compared: frozenset[str] = frozenset()


def quoted(name: str) -> str:
    """Return *name* as a quoted identifier that is valid in every server mode."""
    return "`" + name.replace("`", "``") + "`"


def column_of(name: str, declared: str, collation: str = "") -> Column:
    """Return how the column *name* is read. *declared* and *collation* are its type and collation in `SHOW COLUMNS`."""
    match = _TYPE.match(declared.lower())
    base, precision, scale, unsigned = match.groups("") if match else ("",) * 4
    if base == "decimal" and int(precision) <= _MAX_DIGITS:
        reading = _parsed(pa.decimal128(int(precision), int(scale)), compared=_EXACT)
    else:
        reading = _READINGS.get(base + unsigned) or _READINGS.get(base) or _refused(base)
    if reading is _TEXT and collation and not collation.startswith(_UNICODE):
        reading = _Reading(expression=_CHECKED, convert=_checked)
    return Column(
        name=name,
        expression=reading.expression.format(quoted(name)),
        engine_type=reading.engine_type,
        convert=reading.convert(name),
        compared=reading.compared,
    )


def _text(array: pa.Array) -> pa.Array:
    return array.view(pa.string())


def _checked(name: str) -> Conversion:
    def convert(array: pa.Array) -> pa.Array:
        if (index := pc.index(array, _LOST).as_py()) >= 0:
            raise UnfitValueError(name, index, _NO_CHARACTER.format(name))
        return _text(array)

    return convert


def _parsed(
    kind: pa.DataType,
    refused: str = "a value that does not match its type",
    *,
    expression: str = "{}",
    compared: AbstractSet[str] = frozenset(),
    then: Conversion = lambda array: array,
) -> _Reading:
    """Parse text as *kind*, and convert it with *then*. *refused* describes values that cannot be parsed."""

    def by_name(name: str) -> Conversion:
        def convert(array: pa.Array) -> pa.Array:
            texts = _text(array)
            try:
                return then(texts.cast(kind))
            except pa.ArrowInvalid:
                raise UnfitValueError(name, _first_unfit(texts, kind), refused.format(name)) from None

        return convert

    return _Reading(expression=expression, convert=by_name, compared=frozenset(compared))


def _first_unfit(texts: pa.Array, kind: pa.DataType) -> int:
    """Return the index of the first of *texts* that is not of *kind*. There must be one."""
    low, high = 0, len(texts)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            texts.slice(low, middle - low).cast(kind)
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low


def _refused(base: str) -> _Reading:
    """Refuse columns of a type as soon as one is requested."""
    form = "ST_AsText({0}) or ST_AsBinary({0})" if base in _GEOMETRIES else "CAST({0} AS CHAR)"

    def by_name(name: str) -> Conversion:
        def convert(_array: pa.Array) -> pa.Array:
            raise SourceError(f"The column '{name}' has {_NO_TYPE.format(name, base, form.format(name))}.")

        return convert

    return _Reading(convert=by_name)


_TEXT = _Reading()

_READINGS = {
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set"), _TEXT),
    # A decimal with more digits than the engine supports is text.
    **dict.fromkeys(("inet4", "inet6", "decimal"), _Reading()),
    "json": _Reading(engine_type="JSON"),
    "uuid": _Reading(engine_type="UUID"),
    **dict.fromkeys(
        ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), _Reading(convert=lambda _name: None)
    ),
    "tinyint": _parsed(pa.int8(), compared=_EXACT),
    "tinyint unsigned": _parsed(pa.uint8(), compared=_EXACT),
    "smallint": _parsed(pa.int16(), compared=_EXACT),
    "smallint unsigned": _parsed(pa.uint16(), compared=_EXACT),
    **dict.fromkeys(("mediumint", "int"), _parsed(pa.int32(), compared=_EXACT)),
    **dict.fromkeys(("mediumint unsigned", "int unsigned"), _parsed(pa.uint32(), compared=_EXACT)),
    "bigint": _parsed(pa.int64(), compared=_EXACT),
    "bigint unsigned": _parsed(pa.uint64(), compared=_EXACT),
    "bit": _parsed(pa.uint64(), expression="{} + 0"),
    # Not compared, because the server interprets a two-digit year as a year of this or the last century.
    "year": _parsed(pa.int16()),
    # Select products, which are doubles with all digits. A sum would lose the sign of -0.
    "float": _parsed(pa.float64(), expression="{} * 1e0", then=lambda array: array.cast(pa.float32())),
    "double": _parsed(pa.float64(), expression="{} * 1e0", compared=_EXACT | {"double"}),
    "date": _parsed(pa.date32(), _NO_DATE, compared={"date"}),
    "datetime": _parsed(pa.timestamp("us"), _NO_DATE, compared={"timestamp"}),
    "timestamp": _parsed(
        pa.timestamp("us"),
        _NO_DATE,
        compared={"timestamptz"},
        then=lambda array: array.view(pa.timestamp("us", "UTC")),
    ),
    # Arrow cannot parse times without dates.
    "time": _parsed(
        pa.timestamp("us"),
        _NO_TIME,
        expression="CONCAT('1970-01-01 ', {})",
        then=lambda array: array.view(pa.int64()).view(pa.time64("us")),
    ),
}

"""DuckDB's types in ODBC and JDBC terms (`FlightSql.proto`), for GetXdbcTypeInfo and column metadata."""

import re
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from flightapi.protocol.messages import enum_values

_NUMBER: Final = pa.int32()


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


ANSWER: Final = pa.schema(
    [
        _required("type_name", pa.string()),
        _required("data_type", _NUMBER),
        pa.field("column_size", _NUMBER),
        pa.field("literal_prefix", pa.string()),
        pa.field("literal_suffix", pa.string()),
        pa.field("create_params", pa.list_(_required("item", pa.string()))),
        _required("nullable", _NUMBER),
        _required("case_sensitive", pa.bool_()),
        _required("searchable", _NUMBER),
        pa.field("unsigned_attribute", pa.bool_()),
        _required("fixed_prec_scale", pa.bool_()),
        pa.field("auto_increment", pa.bool_()),
        pa.field("local_type_name", pa.string()),
        pa.field("minimum_scale", _NUMBER),
        pa.field("maximum_scale", _NUMBER),
        _required("sql_data_type", _NUMBER),
        pa.field("datetime_subcode", _NUMBER),
        pa.field("num_prec_radix", _NUMBER),
        pa.field("interval_precision", _NUMBER),
    ]
)

_TYPES: Final = enum_values("XdbcDataType")
_SUBCODES: Final = enum_values("XdbcDatetimeSubcode")
_NULLABLE: Final = enum_values("Nullable")["NULLABILITY_NULLABLE"]
_SEARCHABLE: Final = enum_values("Searchable")


_Row = dict[str, Any]


def _type(name: str, kind: str, **columns: object) -> _Row:
    """Return one row. Omitted columns are null."""
    return {
        "type_name": name,
        "data_type": _TYPES[kind],
        "sql_data_type": _TYPES[kind],
        "nullable": _NULLABLE,
        "case_sensitive": False,
        "searchable": _SEARCHABLE["SEARCHABLE_BASIC"],
        "fixed_prec_scale": False,
        **columns,
    }


def _number(name: str, kind: str, size: int, *, unsigned: bool = False, radix: int = 10, **columns: object) -> _Row:
    """Return a numeric type of *size* digits in base *radix*."""
    return _type(
        name,
        kind,
        column_size=size,
        unsigned_attribute=unsigned,
        auto_increment=False,
        num_prec_radix=radix,
        **columns,
    )


def _integer(name: str, kind: str, digits: int, *, unsigned: bool = False) -> _Row:
    return _number(name, kind, digits, unsigned=unsigned, minimum_scale=0, maximum_scale=0)


def _text(name: str, kind: str, characters: int | None) -> _Row:
    return _type(
        name,
        kind,
        column_size=characters,
        literal_prefix="'",
        literal_suffix="'",
        case_sensitive=True,
        searchable=_SEARCHABLE["SEARCHABLE_FULL"],
    )


def _prefixed(name: str, kind: str, **columns: object) -> _Row:
    """Return a type whose literals begin with its name."""
    return _type(name, kind, literal_prefix=f"{name} '", literal_suffix="'", **columns)


def _datetime(name: str, kind: str, subcode: str, characters: int, digits: int) -> _Row:
    """Return a date or time type with values of *characters* characters and *digits* fractional second digits."""
    return _prefixed(
        name,
        kind,
        sql_data_type=_TYPES["XDBC_DATETIME"],
        column_size=characters,
        minimum_scale=digits,
        maximum_scale=digits,
        datetime_subcode=_SUBCODES[f"XDBC_SUBCODE_{subcode}"],
    )


_ROWS: Final = (
    _type("BOOLEAN", "XDBC_BIT", column_size=1),
    _integer("TINYINT", "XDBC_TINYINT", 3),
    _integer("UTINYINT", "XDBC_TINYINT", 3, unsigned=True),
    _integer("SMALLINT", "XDBC_SMALLINT", 5),
    _integer("USMALLINT", "XDBC_SMALLINT", 5, unsigned=True),
    _integer("INTEGER", "XDBC_INTEGER", 10),
    _integer("UINTEGER", "XDBC_INTEGER", 10, unsigned=True),
    _integer("BIGINT", "XDBC_BIGINT", 19),
    _integer("UBIGINT", "XDBC_BIGINT", 20, unsigned=True),
    _integer("HUGEINT", "XDBC_NUMERIC", 39),
    _integer("UHUGEINT", "XDBC_NUMERIC", 39, unsigned=True),
    _number("FLOAT", "XDBC_REAL", 24, radix=2),
    _number("DOUBLE", "XDBC_DOUBLE", 53, radix=2),
    _number("DECIMAL", "XDBC_DECIMAL", 38, create_params=("precision", "scale"), minimum_scale=0, maximum_scale=38),
    _text("VARCHAR", "XDBC_VARCHAR", None),
    _text("JSON", "XDBC_LONGVARCHAR", None),
    _text("UUID", "XDBC_CHAR", 36),
    _prefixed("BLOB", "XDBC_VARBINARY"),
    _datetime("DATE", "XDBC_DATE", "DATE", 10, 0),
    _datetime("TIME", "XDBC_TIME", "TIME", 15, 6),
    _datetime("TIME WITH TIME ZONE", "XDBC_TIME", "TIME_WITH_TIMEZONE", 21, 6),
    _datetime("TIMESTAMP", "XDBC_TIMESTAMP", "TIMESTAMP", 26, 6),
    _datetime("TIMESTAMP_S", "XDBC_TIMESTAMP", "TIMESTAMP", 19, 0),
    _datetime("TIMESTAMP_MS", "XDBC_TIMESTAMP", "TIMESTAMP", 23, 3),
    _datetime("TIMESTAMP_NS", "XDBC_TIMESTAMP", "TIMESTAMP", 29, 9),
    _datetime("TIMESTAMP WITH TIME ZONE", "XDBC_TIMESTAMP", "TIMESTAMP_WITH_TIMEZONE", 32, 6),
    _prefixed("INTERVAL", "XDBC_INTERVAL"),
)


_NAMES: Final[Mapping[pa.DataType, str]] = {
    pa.null(): "NULL",
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.date32(): "DATE",
    pa.time64("us"): "TIME",
    pa.time64("ns"): "TIME_NS",
    pa.timestamp("s"): "TIMESTAMP_S",
    pa.timestamp("ms"): "TIMESTAMP_MS",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("ns"): "TIMESTAMP_NS",
}
_PLAIN_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*")


def type_name(kind: pa.DataType) -> str:
    """Return the type name of a column of *kind* as clients receive it. All text is VARCHAR."""
    if kind in _NAMES:
        return _NAMES[kind]
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "TIMESTAMP WITH TIME ZONE"
    if pa.types.is_nested(kind):
        return _nested_name(kind)
    is_binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return "BLOB" if is_binary else "VARCHAR"


def _nested_name(kind: Any) -> str:
    if pa.types.is_map(kind):
        return f"MAP({type_name(kind.key_type)}, {type_name(kind.item_type)})"
    if pa.types.is_struct(kind) or pa.types.is_union(kind):
        members = (f"{_quoted(member.name)} {type_name(member.type)}" for member in kind)
        return f"{'STRUCT' if pa.types.is_struct(kind) else 'UNION'}({', '.join(members)})"
    return f"{type_name(kind.value_type)}[{kind.list_size if pa.types.is_fixed_size_list(kind) else ''}]"


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else '"' + name.replace('"', '""') + '"'


def answer(data_type: int | None) -> pa.Table:
    """Return the rows of the types with the XdbcDataType number *data_type*, or of all types if it is None."""
    rows = [row for row in _ROWS if data_type is None or row["data_type"] == data_type]
    rows.sort(key=lambda row: (row["data_type"], row["type_name"]))
    return pa.Table.from_pylist(rows, schema=ANSWER)

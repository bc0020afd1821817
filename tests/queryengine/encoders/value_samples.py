"""Values of every DuckDB type, and how JSON writes them."""

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import duckdb

from tests.queryengine.encoders.answers import answer, strict_json

Oracle = Callable[[str], Any]


def floating(text: str) -> Any:
    return float(text) if math.isfinite(float(text)) else None


def moment(text: str) -> Any:
    """DuckDB's text of a date, time or timestamp as ISO 8601."""
    if "infinity" in text:
        return None
    match = re.fullmatch(r"(?:(\d+)-(\d\d-\d\d)( \(BC\))?)?(.*)", text)
    assert match
    year_text, day, _, rest = match.groups()
    bc = " (BC)" in text
    rest = rest.replace(" (BC)", "")
    clock = re.fullmatch(r" ?(?:(\d\d:\d\d:\d\d)(?:\.(\d+))?(\+00)?)?", rest)
    assert clock, rest
    time, fraction, zone = clock.groups()
    if fraction:
        time += "." + fraction.ljust(-(-len(fraction) // 3) * 3, "0")
    if year_text is None:
        return time
    year = 1 - int(year_text) if bc else int(year_text)
    years = f"{year:04}" if 0 <= year <= 9999 else f"{year:+07}"
    return f"{years}-{day}" + (f"T{time}" if time else "") + ("Z" if zone else "")


INTEGERS = {
    "TINYINT": (-(2**7), 2**7 - 1),
    "SMALLINT": (-(2**15), 2**15 - 1),
    "INTEGER": (-(2**31), 2**31 - 1),
    "BIGINT": (-(2**63), 2**63 - 1),
    "HUGEINT": (-(2**127), 2**127 - 1),
    "UTINYINT": (0, 2**8 - 1),
    "USMALLINT": (0, 2**16 - 1),
    "UINTEGER": (0, 2**32 - 1),
    "UBIGINT": (0, 2**64 - 1),
    "UHUGEINT": (0, 2**128 - 1),
    "BIGNUM": (-(10**400), 10**400),
}
DATES = ["2024-01-31", "0001-01-01", "9999-12-31", "10000-01-01", "0001-12-31 (BC)", "0002-01-01 (BC)", "1969-12-31"]
DATES += ["5877642-06-25 (BC)", "5881580-07-10", "32768-01-01", "2000-02-29", "1900-03-01", "infinity", "-infinity"]
CLOCKS = ["00:00:00", "12:34:56", "12:34:56.5", "12:34:56.789", "12:34:56.000001", "23:59:59.999999"]
STAMPS = [f"2024-01-31 {clock}" for clock in CLOCKS] + ["1969-12-31 23:59:59.999999", "infinity", "-infinity"]
FAR_STAMPS = [
    "290309-12-22 (BC) 00:00:00",
    "294247-01-10 04:00:54.775806",
    "0001-01-01 (BC) 00:00:00.5",
    "0002-01-01 (BC) 00:00:00.5",
]
DOUBLES = ["0.1", "1", "-0.0", "12345678901", "123456789012345.5", "9007199254740993", "1e15", "1e16", "1e300"]
DOUBLES += ["5e-324", "1.7976931348623157e308", "0.00001"]
TEXTS = ["", "x", 'a "quoted" \\ b', "line\nbreak\r\ttab", "comma, semicolon;", "\x00\x01\x1f\x7f", "\u2028é🦆", "null"]

#: For each type of the table: SQL literals to be cast to it, and what JSON holds for DuckDB's text of the value.
SAMPLES: dict[str, tuple[str, list[str], Oracle]] = {
    "BOOLEAN": ("BOOLEAN", ["true", "false"], lambda value: value == "true"),
    **{name: (name, [str(low), "0", "42", str(high)], Decimal) for name, (low, high) in INTEGERS.items()},
    "FLOAT": ("FLOAT", ["0.1", "1", "-0.0", "3.4028235e38", "1e-45", "nan", "inf", "-inf"], floating),
    "DOUBLE": ("DOUBLE", [*DOUBLES, "nan", "inf", "-inf"], floating),
    "DECIMAL": (
        "DECIMAL(38,10)",
        ["0", "0.0000000001", "-0.0000000001", "1.5", "-9999999999999999999999999999.9999999999"],
        Decimal,
    ),
    "VARCHAR": ("VARCHAR", TEXTS, str),
    "JSON": ("JSON", ['{"a": [1,  2.50]}', '"x"', "[NaN]", "null"], str),
    "UUID": ("UUID", ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"], str),
    "ENUM": ("ENUM('plain', 'with \"quotes\", and a comma')", ["plain", 'with "quotes", and a comma'], str),
    "BLOB": ("BLOB", ["", "\\x00\\xFF", "plain"], str),
    "BIT": ("BIT", ["0", "1", "0101", "1" * 70], str),
    "DATE": ("DATE", DATES, moment),
    "TIME": ("TIME", [*CLOCKS, "24:00:00"], moment),
    "TIME_NS": ("TIME_NS", [*CLOCKS, "12:34:56.123456789", "24:00:00"], moment),
    "TIME WITH TIME ZONE": ("TIMETZ", ["12:34:56+02", "00:00:00+15:59:59", "24:00:00-15:59:59", "01:02:03.5"], str),
    "TIMESTAMP": ("TIMESTAMP", STAMPS + FAR_STAMPS, moment),
    "TIMESTAMP_S": ("TIMESTAMP_S", ["2024-01-31 12:34:56", "290309-12-22 (BC) 00:00:00", "infinity"], moment),
    "TIMESTAMP_MS": ("TIMESTAMP_MS", ["2024-01-31 12:34:56", "2024-01-31 12:34:56.7", "infinity", "-infinity"], moment),
    "TIMESTAMP_NS": (
        "TIMESTAMP_NS",
        [*STAMPS, "2024-01-31 12:34:56.123456789", "1677-09-22 00:00:00", "2262-04-11 23:47:16.854775806"],
        moment,
    ),
    "TIMESTAMP WITH TIME ZONE": ("TIMESTAMPTZ", [f"{stamp}+00" for stamp in FAR_STAMPS] + STAMPS, moment),
    "TIMESTAMPTZ_NS": ("TIMESTAMPTZ_NS", ["2024-01-31 12:34:56.123456789+00", "infinity"], moment),
    "INTERVAL": (
        "INTERVAL",
        ["0", "1 year 2 months 3 days 04:05:06.789", "-1 day -00:00:01", "3000000 hours", "2147483647 months"],
        str,
    ),
    "GEOMETRY": ("GEOMETRY", ["POINT (1 2)", "LINESTRING (0.1 0, 1 1)", "POINT EMPTY"], str),
    "NULL": ('"NULL"', [], str),
}

#: Built from the others.
COMPOSITES = {"LIST", "ARRAY", "STRUCT", "TUPLE", "MAP", "UNION", "VARIANT", "TYPE"}

#: How a value of another type is nested, and the JSON around its token.
NESTINGS = {
    "LIST": ("[v, NULL]", "[%s,null]"),
    "ARRAY": ("array_value(v, v)", "[%s,%s]"),
    "STRUCT": ("{'a': v, 'q\"\n': v}", '{"a":%s,"q\\"\\n":%s}'),
    "TUPLE": ("row(v, 1)", "[%s,1]"),
    "MAP": ("MAP {'k': v}", '{"k":%s}'),
    "UNION": ("union_value(m := v)", "%s"),
    "deep": (
        "[{'m': MAP {'k': [union_value(u := row(v, NULL))]}}, NULL]",
        '[{"m":{"k":[[%s,null]]}},null]',
    ),
}


def values_of(name: str) -> str:
    """SQL of the samples of a type in one column `v`, a null among them."""
    kind, literals, _ = SAMPLES[name]
    rows = ", ".join(f"({position}, {sql_text(literal)})" for position, literal in enumerate(literals))
    numbered = f"(VALUES {rows}, (998, NULL))" if rows else "(VALUES (998, NULL))"
    return f"SELECT CAST(s AS {kind}) AS v FROM {numbered} t(n, s) ORDER BY n"


def sql_text(value: str) -> str:
    """A literal; an expression where the value has a NUL."""
    return "(" + " || chr(0) || ".join("'" + part.replace("'", "''") + "'" for part in value.split("\0")) + ")"


def engine_texts(connection: duckdb.DuckDBPyConnection, name: str) -> list[str | None]:
    how = "lower(hex(v))" if name == "BLOB" else "CAST(v AS VARCHAR)"
    return [value for (value,) in connection.execute(f"SELECT {how} FROM ({values_of(name)})").fetchall()]


def tokens(connection: duckdb.DuckDBPyConnection, sql: str) -> list[str]:
    """The JSON of each value of a result with the one column `v`."""
    body = answer(connection, sql).decode()
    strict_json(body.encode())
    assert body.startswith('[{"v":')
    assert body.endswith("}]")
    return body[len('[{"v":') : -len("}]")].split('},{"v":')

"""The result of a statement for a model: as many rows as are useful to it, exact, as text and as JSON."""

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, TypeAlias

from mcpapi.errors import ToolError

DEFAULT_ROWS = 200
MAX_ROWS = 1000
#: The size of the rows' text, and of the header with the columns. A model pays for each byte, twice with JSON.
MAX_BYTES = 48 * 1024
MAX_HEADER_BYTES = 128 * 1024
#: The longest schema or row that is read. A longer one is an error, not a reason to buffer without limit.
_MAX_VALUE_CHARACTERS = 1 << 20
#: The engine's chunks have up to many megabytes, of which the first rows are enough.
_PIECE_BYTES = 64 * 1024

#: Integers beyond are rounded by JavaScript, in which most MCP clients are written.
_MAX_SAFE_INTEGER = 2**53 - 1
_SAFE_DIGITS = len(str(-_MAX_SAFE_INTEGER))

_PLAIN_NAME = re.compile(r"\w+")


class Number(str):
    """A JSON number exactly as the engine wrote it."""

    __slots__ = ()


Value: TypeAlias = "bool | str | Number | list[Value] | dict[str, Value] | None"


@dataclass(frozen=True, slots=True)
class Rows:
    """
    The columns as pairs of name and SQL type, and the rows that fit. `is_cut` if the statement has more.

    In `rows`, numbers that a double would change are strings. `lines` are the rows as JSON arrays, exact, in which no
    value can look like another line.
    """

    columns: list[tuple[str, str]]
    rows: list[list[Any]]
    lines: list[str]
    is_cut: bool

    @property
    def header(self) -> str:
        """The columns on one line."""
        return ", ".join(f"{_quoted(name)} {kind}" for name, kind in self.columns)

    def structured(self) -> dict[str, Any]:
        """Return the JSON for `structuredContent`."""
        return {
            "columns": [{"name": name, "type": kind} for name, kind in self.columns],
            "rows": self.rows,
            "row_count": len(self.rows),
            "is_cut": self.is_cut,
        }


def read_rows(chunks: Iterable[bytes], max_rows: int = DEFAULT_ROWS, max_bytes: int = MAX_BYTES) -> Rows:
    """
    Read up to *max_rows* rows whose text takes up to *max_bytes*.

    *chunks* are the result of a statement as `application/vnd.spiceai.sql.v1+json`.

    Raises:
        ToolError: The statement failed, or its columns or its first row are too large.
        RecursionError: A value is nested too deep.
    """
    objects = _objects(chunks)
    fields = next(objects, {})["fields"]
    found = Rows([(str(field["name"]), _sql_type(field["data_type"])) for field in fields], [], [], is_cut=False)
    if len(found.header.encode()) > MAX_HEADER_BYTES:
        raise ToolError("result_too_wide", f"The result has {len(fields):,} columns, too many to show: name fewer.")
    size = 0
    for row in map(list, map(dict.values, objects)):
        line = _text(row)
        size += len(line.encode())
        if size > max_bytes and not found.rows:
            raise ToolError(
                "row_too_large",
                f"The first row has more than {max_bytes // 1024} KiB: name fewer columns, or shorten values with"
                " left(column, 200).",
            )
        if size > max_bytes or len(found.rows) == max_rows:
            return replace(found, is_cut=True)
        found.rows.append([_plain(value) for value in row])
        found.lines.append(line)
    return found


#: What comes before the schema and each row, and after the last row. The engine writes no white space.
_BEFORE = re.compile(r'(?:\{"schema":|,"data":\[|,)(?=\{)')
_AFTER = re.compile(r'(?:,"data":\[)?\]')
_DECODER = json.JSONDecoder(parse_int=Number, parse_float=Number)


def _objects(chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the schema, then each row: the objects in `{"schema":{...},"data":[{...},...],...}`."""
    pieces = _pieces(chunks)
    text, at = "", 0
    while not _AFTER.match(text, at):
        if before := _BEFORE.match(text, at):
            with suppress(json.JSONDecodeError):  # It continues in the next piece.
                value, at = _DECODER.raw_decode(text, before.end())
                yield value
                continue
        text, at = text[at:], 0
        length = len(text)
        if length > _MAX_VALUE_CHARACTERS:
            raise ToolError("row_too_large", "A row is too large: name fewer columns, or shorten values.")
        # As much again each time: the work stays linear in the length of the value.
        while len(text) <= 2 * length and (piece := next(pieces, "")):
            text += piece
        if len(text) == length:
            raise ToolError(
                "incomplete_result", "The result is incomplete, or not from a runtime: run the statement again."
            )
    for _ in pieces:  # The statement ends only when all of its result has been read.
        pass


def _pieces(chunks: Iterable[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for chunk in chunks:
        for at in range(0, len(chunk), _PIECE_BYTES):
            if piece := decoder.decode(chunk[at : at + _PIECE_BYTES]):
                yield piece


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else _text(name)


def _text(value: Value) -> str:
    if isinstance(value, Number):
        return value
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{_text(name)}:{_text(item)}' for name, item in value.items())}}}"
    return json.dumps(value, ensure_ascii=False).translate(_LINE_BREAKS)


#: JSON need not escape these, but a value must not look like another line.
_LINE_BREAKS = {ord(character): f"\\u{ord(character):04x}" for character in "\x85\u2028\u2029"}


def _plain(value: Value) -> Any:
    if isinstance(value, Number):
        return _exact(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value


def _exact(number: Number) -> int | float | str:
    """Return a number that a double holds exactly, otherwise the text."""
    if number.lstrip("-").isdigit():
        # Python converts only a limited number of digits.
        is_safe = len(number) <= _SAFE_DIGITS and abs(int(number)) <= _MAX_SAFE_INTEGER
        return int(number) if is_safe else str(number)
    double = float(number)
    return double if Decimal(repr(double)) == Decimal(number) else str(number)


#: The engine names types as Arrow's Rust implementation does.
_SIMPLE = {
    "Null": "NULL",
    "Boolean": "BOOLEAN",
    "Int8": "TINYINT",
    "Int16": "SMALLINT",
    "Int32": "INTEGER",
    "Int64": "BIGINT",
    "UInt8": "UTINYINT",
    "UInt16": "USMALLINT",
    "UInt32": "UINTEGER",
    "UInt64": "UBIGINT",
    "Float32": "FLOAT",
    "Float64": "DOUBLE",
    "Utf8": "VARCHAR",
    "LargeUtf8": "VARCHAR",
    "Binary": "BLOB",
    "LargeBinary": "BLOB",
    "Date32": "DATE",
}
_PARAMETRISED: Mapping[str, Callable[[Any], str]] = {
    "Decimal128": lambda details: f"DECIMAL({details[0]},{details[1]})",
    "Timestamp": lambda details: "TIMESTAMP WITH TIME ZONE" if details[1] else "TIMESTAMP",
    "Time64": lambda _: "TIME",
    "Dictionary": lambda details: _sql_type(details[1]),
    "List": lambda details: f"{_sql_type(details['data_type'])}[]",
    "LargeList": lambda details: f"{_sql_type(details['data_type'])}[]",
    "FixedSizeList": lambda details: f"{_sql_type(details[0]['data_type'])}[{details[1]}]",
    "Struct": lambda details: f"STRUCT({_members(details)})",
    "Map": lambda details: (
        f"MAP({', '.join(_sql_type(one['data_type']) for one in details[0]['data_type']['Struct'])})"
    ),
    "Union": lambda details: f"UNION({_members([field for _, field in details[0]])})",
}


def _sql_type(arrow: Any) -> str:
    if isinstance(arrow, str):
        return _SIMPLE.get(arrow, arrow)
    ((name, details),) = arrow.items()
    return _PARAMETRISED[name](details) if name in _PARAMETRISED else str(name)


def _members(fields: list[dict[str, Any]]) -> str:
    return ", ".join(f"{_quoted(str(field['name']))} {_sql_type(field['data_type'])}" for field in fields)

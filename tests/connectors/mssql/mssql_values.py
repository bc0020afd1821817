"""Columns and values of Microsoft SQL Server's protocol, as bytes: [MS-TDS], sections 2.2.5.4 to 2.2.5.6."""

import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

#: Moments of tests.
EAST = timezone(timedelta(hours=5, minutes=30))
BEGIN = datetime(1, 1, 1)  # noqa: DTZ001 (a time without a zone)
END = datetime(9999, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001
NOON = datetime(2024, 2, 29, 12, 0, 0, 1)  # noqa: DTZ001

COLLATION = bytes.fromhex("0904d00034")  # SQL_Latin1_General_CP1_CI_AS

_EPOCH, _EPOCH_1900 = date(1, 1, 1), datetime(1900, 1, 1)  # noqa: DTZ001 (times without a zone)
_Encoder = Callable[[Any], bytes]  # of a value that is not null
Codec = tuple[bytes, _Encoder]


def codec(kind: str) -> Codec:
    """Return the type in the metadata of a column (TYPE_INFO), and what encodes its values."""
    base, _, rest = kind.partition("(")
    sizes = [-1 if size == "max" else int(size) for size in rest.rstrip(")").split(",") if size]
    if base in _FIXED:
        info, encode = _FIXED[base]
        return info, _short(encode)
    if base in {"decimal", "numeric"}:
        precision, scale = sizes
        size = 4 * next(index for index, most in enumerate((9, 19, 28, 38), 1) if precision <= most)

        def decimal(value: Decimal) -> bytes:
            digits: int = int("".join(map(str, value.as_tuple().digits)))
            digits *= 10 ** (scale + int(value.as_tuple().exponent))
            return bytes([not value.is_signed()]) + digits.to_bytes(size, "little")

        return bytes([0x6A, size + 1, precision, scale]), _short(decimal)
    if base in {"time", "datetime2", "datetimeoffset"}:
        scale = sizes[0] if sizes else 7
        return bytes([{"time": 0x29, "datetime2": 0x2A, "datetimeoffset": 0x2B}[base], scale]), _short(_moment(scale))
    text = base.startswith("n")
    number = {"nvarchar": 0xE7, "nchar": 0xEF, "varbinary": 0xA5, "binary": 0xAD, "timestamp": 0xAD}[base]
    size = (sizes or [8])[0] * (2 if text else 1)
    info = bytes([number]) + struct.pack("<H", size if size > 0 else 0xFFFF) + (COLLATION if text else b"")
    return info, _long if size < 0 else _medium


def _short(encode: _Encoder) -> _Encoder:
    def encoded(value: Any) -> bytes:
        data = encode(value)
        return bytes([len(data)]) + data

    return encoded


def _data(value: Any) -> bytes:
    data: bytes = value.encode("utf-16-le", "surrogatepass") if isinstance(value, str) else value
    return data


def _medium(value: Any) -> bytes:
    data = _data(value)
    return struct.pack("<H", len(data)) + data


def _long(value: Any) -> bytes:
    """Encode a value of a `max` type: in chunks."""
    data = _data(value)
    chunks = (data[start : start + 3000] for start in range(0, len(data), 3000))
    # The length of a text is not said before (PLP_UNKNOWN).
    length = 2**64 - 2 if isinstance(value, str) else len(data)
    return struct.pack("<Q", length) + b"".join(struct.pack("<I", len(chunk)) + chunk for chunk in chunks) + bytes(4)


def _moment(scale: int) -> _Encoder:
    """Encode times; a tuple is one and its last digit, which is of 100 ns."""

    def encode(value: Any) -> bytes:
        value, last = value if isinstance(value, tuple) else (value, 0)
        ends = b""
        if isinstance(value, datetime):
            if value.tzinfo is not None:
                offset: Any = value.utcoffset()
                ends = struct.pack("<h", offset // timedelta(minutes=1))
                value = value.astimezone(UTC)
            ends = (value.date() - _EPOCH).days.to_bytes(3, "little") + ends
        at = value if isinstance(value, time) else value.time()
        micros = ((at.hour * 60 + at.minute) * 60 + at.second) * 10**6 + at.microsecond
        units: int = (micros * 10 + last) // 10 ** (7 - scale)
        return units.to_bytes(3 if scale < 3 else 4 if scale < 5 else 5, "little") + ends

    return encode


def time_text(value: Any, *, is_in_utc: bool) -> str:
    """Return what CONVERT writes with style 121 for a time in steps of 100 ns; see `_moment` for tuples."""
    value, last = value if isinstance(value, tuple) else (value, 0)
    if isinstance(value, time):
        return f"{value.isoformat('microseconds')}{last}"
    zone = value.tzinfo is not None and not is_in_utc
    if value.tzinfo is not None and is_in_utc:
        value = value.astimezone(UTC)
    text = value.replace(tzinfo=None).isoformat(" ", "microseconds")
    return f"{text}{last}{value.isoformat()[-6:].rjust(7) if zone else ''}"


def _datetime(value: datetime) -> bytes:
    since = value - _EPOCH_1900
    return struct.pack("<iI", since.days, round((since.seconds + since.microseconds / 1e6) * 300))


def _smalldatetime(value: datetime) -> bytes:
    since = value - _EPOCH_1900
    return struct.pack("<HH", since.days, since.seconds // 60)


def _packed(layout: str) -> _Encoder:
    return struct.Struct(layout).pack


#: By type: TYPE_INFO, and what encodes a value.
_FIXED: dict[str, tuple[bytes, _Encoder]] = {
    "bit": (b"\x68\x01", _packed("<?")),
    "tinyint": (b"\x26\x01", _packed("<B")),
    "smallint": (b"\x26\x02", _packed("<h")),
    "int": (b"\x26\x04", _packed("<i")),
    "bigint": (b"\x26\x08", _packed("<q")),
    "real": (b"\x6d\x04", _packed("<f")),
    "float": (b"\x6d\x08", _packed("<d")),
    "uniqueidentifier": (b"\x24\x10", lambda value: UUID(value).bytes_le),
    "date": (b"\x28", lambda value: (value - _EPOCH).days.to_bytes(3, "little")),
    "datetime": (b"\x6f\x08", _datetime),
    "smalldatetime": (b"\x6f\x04", _smalldatetime),
}

"""
Renderers of dates, times and timestamps: ISO 8601 with a `T`, and a fraction of 3, 6 or 9 digits if it is not zero.

Years 0000 to 9999 have four digits (0000 is 1 BC). Other years have a sign and at least six digits, as in ECMAScript.
"""

import datetime as dt
from abc import abstractmethod
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from queryengine.encoders.rendering import Fragment, Renderer, to_text, where

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_COARSER = {"ms": "s", "us": "ms", "ns": "us"}
_PER_COARSER = pa.scalar(1000, pa.int64())
_SECONDS_A_DAY = 86_400

#: The range of days since 1970 whose year has four digits: from 0000-01-01 to 9999-12-31.
_FIRST_DAY = -719_528
_LAST_DAY = 2_932_896

_INT64_MAX = 2**63 - 1
_INT32_MAX = 2**31 - 1


class _TemporalRenderer(Renderer):
    """
    The common base. Arrow's cast renders the usual values, and Python renders the rest.

    `infinity` and its negative are the integers for the two infinities, or 0 if the type has none. Arrow renders
    integers from `first` to `last` correctly. `after` is appended to each value. `storage` is the integer type.
    """

    free_text = False
    infinity = 0
    first: int
    last: int
    after = ""
    storage = pa.int64()

    def _json(self, array: pa.Array) -> Fragment:
        return Fragment(self._finite(array.view(self.storage)), '"', self.after + '"')

    def _plain(self, array: pa.Array) -> pa.StringArray:
        integers = array.view(self.storage)
        text = Fragment(self._finite(integers), "", self.after).whole()
        if text.null_count > array.null_count:
            for infinity, word in ((self.infinity, "infinity"), (-self.infinity, "-infinity")):
                text = pc.if_else(pc.equal(integers, infinity), word, text)
        return text

    def _finite(self, integers: pa.Array) -> pa.StringArray:
        """Render integers in the type's unit. Infinities become null."""
        bounds = pc.min_max(integers).as_py()
        if bounds["min"] is None or (self.first <= bounds["min"] and bounds["max"] <= self.last):
            return self._usual(integers)
        usual = pc.and_(pc.greater_equal(integers, self.first), pc.less_equal(integers, self.last))
        unusual = where(pc.invert(usual), integers).to_pylist()
        rare = [None if value is None or abs(value) == self.infinity else self._rare(value) for value in unusual]
        return pc.coalesce(self._usual(where(usual, integers)), pa.array(rare, pa.string()))

    @abstractmethod
    def _usual(self, integers: pa.Array) -> pa.StringArray: ...  # `first` to `last`

    @abstractmethod
    def _rare(self, value: int) -> str: ...  # outside of them


class DateRenderer(_TemporalRenderer):
    """A day."""

    infinity = _INT32_MAX
    first = _FIRST_DAY
    last = _LAST_DAY
    storage = pa.int32()

    def _usual(self, integers: pa.Array) -> pa.StringArray:
        return to_text(integers.view(pa.date32()))

    def _rare(self, value: int) -> str:
        return _iso_date(value)


class TimestampRenderer(_TemporalRenderer):
    """A point in time in `s`, `ms`, `us` or `ns`. It is local if the type has no zone, otherwise in UTC with a `Z`."""

    infinity = _INT64_MAX

    def __init__(self, unit: str, *, zoned: bool) -> None:
        self._unit = unit
        self._per_second = _PER_SECOND[unit]
        self.first = max(_FIRST_DAY * _SECONDS_A_DAY * self._per_second, 1 - _INT64_MAX)
        self.last = min((_LAST_DAY + 1) * _SECONDS_A_DAY * self._per_second, _INT64_MAX) - 1
        self.after = "Z" if zoned else ""

    def _usual(self, integers: pa.Array) -> pa.StringArray:
        return _shortest(integers, self._unit, _timestamp_text)

    def _rare(self, value: int) -> str:
        seconds, fraction = divmod(value, self._per_second)
        days, seconds = divmod(seconds, _SECONDS_A_DAY)
        return f"{_iso_date(days)}T{_iso_time(seconds, fraction, self._unit)}"


class TimeRenderer(_TemporalRenderer):
    """A time of day, including `24:00:00`."""

    first = 0

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self.last = _SECONDS_A_DAY * _PER_SECOND[unit] - 1

    def _usual(self, integers: pa.Array) -> pa.StringArray:
        return _shortest(integers, self._unit, _time_text)

    def _rare(self, value: int) -> str:
        return _iso_time(*divmod(value, _PER_SECOND[self._unit]), self._unit)


def _shortest(
    integers: pa.Int64Array, unit: str, text: Callable[[pa.Int64Array, str], pa.StringArray]
) -> pa.StringArray:
    """Render integers in *unit*, each with the shortest exact fraction. *text* renders fractions of one length."""
    if unit == "s":
        return text(integers, unit)
    quotients = pc.divide(integers, _PER_COARSER)
    fits = pc.equal(pc.multiply(quotients, _PER_COARSER), integers)
    if not fits.true_count:
        return text(integers, unit)
    if not fits.false_count:
        return _shortest(quotients, _COARSER[unit], text)
    return pc.replace_with_mask(text(integers, unit), fits, _shortest(quotients.filter(fits), _COARSER[unit], text))


def _timestamp_text(integers: pa.Int64Array, unit: str) -> pa.StringArray:
    text = to_text(integers.view(pa.timestamp(unit)))
    # All values have the same length, so the space between date and time recurs at a fixed distance.
    _, offsets, data = text.buffers()
    width = len("2024-01-31T12:34:56") + _fraction_width(unit)
    separated = bytearray(data)
    positions = range(len("2024-01-31"), (len(text) - text.null_count) * width, width)
    separated[positions.start : positions.stop : width] = b"T" * len(positions)
    return pa.Array.from_buffers(
        pa.string(), len(text), [text.buffers()[0], offsets, pa.py_buffer(separated)], text.null_count
    )


def _time_text(integers: pa.Int64Array, unit: str) -> pa.StringArray:
    times = (
        integers.view(pa.time64(unit)) if unit in {"us", "ns"} else pc.cast(integers, pa.int32()).view(pa.time32(unit))
    )
    return to_text(times)


def _fraction_width(unit: str) -> int:
    digits = len(str(_PER_SECOND[unit])) - 1
    return digits and 1 + digits


def _iso_time(seconds: int, fraction: int, unit: str) -> str:
    """Return a time of day as text. *fraction* is in *unit*."""
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    if not fraction:
        return clock
    digits = f"{fraction:0{_fraction_width(unit) - 1}}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f"{clock}.{digits}"


def _iso_date(days: int) -> str:
    """Return a day of the proleptic Gregorian calendar, given in days since 1970, as text."""
    # The calendar repeats every 400 years, so Python's range of years is sufficient.
    cycles, rest = divmod(days, 146_097)
    day = dt.date(1970, 1, 1) + dt.timedelta(rest)
    year = day.year + 400 * cycles
    years = f"{year:04}" if 0 <= year <= 9999 else f"{year:+07}"
    return f"{years}-{day:%m-%d}"

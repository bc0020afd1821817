r"""
The types of texts: a column has a type only if the type keeps every value exactly.

The engine proposes a type for each column of a text file, and guesses: it reads `epoch` as 1900-01-01, cuts
nanoseconds, and rounds long numbers. Here each value is compared, in the engine. If the proposed type would change a
value, the next one in `_NEXT` is tried, and text keeps every value.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import duckdb

from datasources.sql import literal

TEXT = "VARCHAR"

#: The types to try after the one that the engine proposes, in order. DECIMAL has as many digits as the values need. The
#: first check of DOUBLE is a quick one, which does not know every number that a double keeps.
_NEXT: Mapping[str, tuple[str, ...]] = {
    "BOOLEAN": (),
    "BIGINT": ("HUGEINT", "BIGNUM", "DOUBLE"),
    "HUGEINT": ("BIGNUM", "DOUBLE"),
    "BIGNUM": (),
    "DOUBLE": ("DOUBLE", "HUGEINT", "BIGNUM", "DECIMAL"),
    "DATE": (),
    "TIME": ("TIME_NS",),
    "TIMESTAMP": ("TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ_NS"),
    "TIMESTAMP WITH TIME ZONE": ("TIMESTAMPTZ_NS", "TIMESTAMP", "TIMESTAMP_NS"),
    "UUID": (),
}
#: The types that are compared.
CHECKED = frozenset(_NEXT)

#: The most columns that one statement compares, at first and with the next types: each takes memory to plan.
_COLUMNS_AT_ONCE = (200, 10)

#: The most digits of a DECIMAL.
_MAX_DIGITS = 38
#: A double keeps any number of so many digits, if its exponent is small.
_DOUBLE_DIGITS = 15
#: So many digits tell each double from all others: `%.17g` of C, R and others writes them.
ROUND_TRIP_DIGITS = 17

# Years have four digits at least, as in ISO 8601. The engine itself writes `(BC)` after those before the first.
_DAY = r"[+-]?\d{4,6}[-/]\d{1,2}[-/]\d{1,2}"
_ERA = r"(?: \(BC\))?"
_HOUR_OF_DAY = r"(?:\d|[01]\d|2[0-3])"
_ZONE = r"(?:Z| ?UTC|[+-]\d\d(?::?\d\d)?)"
_INFINITE = "-?infinity"


def _clock(hour: str, digits: int) -> str:
    """Return the pattern of a time with at most *digits* of a second that are not zero."""
    return rf"{hour}:[0-5]\d(?::[0-5]\d(?:\.\d{{0,{digits}}}0*)?)?"


def _moment(digits: int, zone: str = "") -> str:
    return rf"{_DAY}[ T]{_clock(_HOUR_OF_DAY, digits)}{zone}{_ERA}|{_INFINITE}"


#: What the texts of dates and times are like. The engine takes much more, such as a time for a date.
_PATTERNS = {
    "DATE": f"{_DAY}{_ERA}|{_INFINITE}",
    "TIME": _clock(r"(?:\d|[01]\d|2[0-4])", 6),
    "TIME_NS": _clock(r"(?:\d|[01]\d|2[0-4])", 9),
    "TIMESTAMP": _moment(6),
    "TIMESTAMP_NS": _moment(9),
    "TIMESTAMP WITH TIME ZONE": _moment(6, _ZONE),
    "TIMESTAMPTZ_NS": _moment(9, _ZONE),
}

#: Numbers without an exponent, and with one. A leading zero means a code, such as a telephone number.
_PLAIN = r"-?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)"
_NUMBER = rf"{_PLAIN}(?:[eE][-+]?\d+)?"

#: What the directives of a date format match, if not one or two digits.
_DIRECTIVES = {"Y": r"\d{4}", "y": r"\d{2}", "f": r"\d{1,6}", **dict.fromkeys("aAbBhp", r"[^\d\s]+"), "%": "%"}


@dataclass(frozen=True, slots=True)
class Place:
    """
    Where texts are: an SQL expression *root*, and the *steps* into it.

    A step is the name of a member of a struct, or None for the items of a list.
    """

    root: str
    steps: tuple[str | None, ...] = ()

    def aggregate(self, function: str, of_text: Callable[[str], str]) -> str:
        """Return SQL for the aggregate *function* over what *of_text* gives for each text."""
        return f"{function}({self._nested(function, self.root, 0, of_text)})"

    def _nested(self, function: str, value: str, at: int, of_text: Callable[[str], str]) -> str:
        if at == len(self.steps):
            return f"CASE WHEN {value} IS NOT NULL THEN {of_text(value)} END"
        step = self.steps[at]
        if step is not None:
            return self._nested(function, f"struct_extract({value}, {literal(step)})", at + 1, of_text)
        item = f"i{at}"
        of_item = self._nested(function, item, at + 1, of_text)
        return f"list_aggregate(list_transform({value}, lambda {item}: {of_item}), '{function}')"


@dataclass(frozen=True, slots=True)
class Found:
    """A type that keeps all values of a place; with *date_format*, they are read by `strptime`."""

    type: str
    date_format: str | None = None

    def of(self, text: str) -> str:
        """Return SQL for the value of *text*, SQL for a text."""
        read = text if self.date_format is None else f"strptime({text}, {literal(self.date_format)})"
        return read if self.type == TEXT else f"CAST({read} AS {self.type})"


def exact_types(
    connection: duckdb.DuckDBPyConnection, relation: str, proposed: Mapping[Place, str], *, words: bool
) -> dict[Place, str]:
    """
    Return a type for each place of *relation* that keeps its texts exactly.

    Args:
        connection: The engine.
        relation: SQL of a relation.
        proposed: The types that the engine proposes, all `CHECKED`.
        words: Whether the texts were words rather than numbers: then a column of `NaN` alone is text.
    """
    found: dict[Place, str] = {}
    # Most columns have the proposed type, so the others are compared only where it does not fit.
    for is_first, size in zip((True, False), _COLUMNS_AT_ONCE, strict=True):
        rest = [place for place in proposed if place not in found]
        for start in range(0, len(rest), size):
            candidates = [
                (place, type_, _checks(place, type_, words=words, is_first=is_first))
                for place in rest[start : start + size]
                for type_ in ((proposed[place],) if is_first else _NEXT[proposed[place]])
            ]
            row = iter(_one_row(connection, relation, [check for _, _, checks in candidates for check in checks]))
            for place, type_, checks in candidates:
                kept = _kept(type_, [next(row) for _ in checks])
                if kept is not None:
                    found.setdefault(place, kept)
    return {place: found.get(place, TEXT) for place in proposed}


def formats_that_keep(
    connection: duckdb.DuckDBPyConnection, relation: str, places: Sequence[Place], formats: Sequence[str]
) -> dict[Place, list[str]]:
    """Return those of the date *formats* by which all texts of each of *places* can be read; none if it has no text."""
    found: dict[Place, list[str]] = {}
    size = _COLUMNS_AT_ONCE[1]
    for start in range(0, len(places), size):
        some = places[start : start + size]
        checks = [place.aggregate("bool_and", _by_format(format_)) for place in some for format_ in formats]
        row = iter(_one_row(connection, relation, checks))
        found |= {place: [format_ for format_ in formats if next(row)] for place in some}
    return found


def _one_row(connection: duckdb.DuckDBPyConnection, relation: str, checks: Sequence[str]) -> Sequence[object]:
    if not checks:
        return ()
    return connection.execute(f"SELECT {', '.join(checks)} FROM {relation}").fetchone() or ()  # noqa: S608 - quoted


def _by_format(format_: str) -> Callable[[str], str]:
    # Every second part is the letter of a directive. Alone, strptime takes words such as epoch, and 26 for the year 26.
    parts = enumerate(re.split("%-?(.)", format_))
    pattern = "".join(_DIRECTIVES.get(part, r"\d{1,2}") if at % 2 else re.escape(part) for at, part in parts)

    def keeps(text: str) -> str:
        return f"({_matches(text, pattern)} AND try_strptime({text}, {literal(format_)}) IS NOT NULL)"

    return keeps


def _checks(place: Place, type_: str, *, words: bool, is_first: bool) -> list[str]:
    """Return the aggregates by which `_kept` knows whether *type_* keeps the texts of *place*."""
    keeps = _keeps_surely_as_double if is_first and type_ == "DOUBLE" else _KEEPS.get(type_, _keeps_as(type_))
    checks = [place.aggregate("bool_and", keeps)]
    if type_ in _PATTERNS or (type_ == "DOUBLE" and words):
        # Words for infinity and NaN alone are words.
        checks.append(place.aggregate("bool_or", lambda text: f"lower(right({text}, 1)) NOT IN ('y', 'n', 'f')"))
    if type_ == "DECIMAL":
        checks.append(place.aggregate("max", lambda text: "length({digits}) + {exponent}".format(**_parts_of(text))))
        checks.append(place.aggregate("max", lambda text: "-({exponent})".format(**_parts_of(text))))
    return checks


def _kept(type_: str, results: Sequence[object]) -> str | None:
    """Return the type if the *results* of `_checks` allow it; no value at all allows any."""
    if type_ != "DECIMAL":
        return type_ if all(result is not False for result in results) else None
    keeps, whole, scale = results
    digits = [max(0, size) if isinstance(size, int) else 0 for size in (whole, scale)]
    return f"DECIMAL({_MAX_DIGITS},{digits[1]})" if keeps is not False and sum(digits) <= _MAX_DIGITS else None


def _matches(text: str, pattern: str) -> str:
    return f"regexp_full_match({text}, {literal(pattern)})"


def _keeps_as(type_: str) -> Callable[[str], str]:
    """Return SQL for whether *type_* keeps a text that has the form of `_PATTERNS`, or is as the engine writes it."""
    pattern = _PATTERNS.get(type_)
    if pattern is not None:
        return lambda text: f"({_matches(text, f'(?i:{pattern})')} AND TRY_CAST({text} AS {type_}) IS NOT NULL)"
    return lambda text: f"coalesce(CAST(TRY_CAST({text} AS {type_}) AS VARCHAR) = {text}, false)"


def _keeps_surely_as_double(text: str) -> str:
    """As `keeps_as_double`, for numbers with few digits, and as the engine writes them."""
    return (
        f"(length({text}) <= {_DOUBLE_DIGITS} AND {_matches(text, _PLAIN)} "
        f"OR coalesce(CAST(TRY_CAST({text} AS DOUBLE) AS VARCHAR) = {text}, false))"
    )


def keeps_as_double(text: str) -> str:
    """
    Return SQL for whether the double of *text* is that number, and not only the nearest one.

    It may have more digits than a double needs: 17, or any number of them with an exponent, as `%.18e` writes.
    """
    number = f"TRY_CAST({text} AS DOUBLE)"
    digits = f"length(regexp_extract({text}, '[0-9.]+')) - 2"
    printed = f"printf('%.' || least(greatest({digits}, 0), {_MAX_DIGITS}) || 'e', {number})"
    whole, fraction = (rf"regexp_extract({text}, '^-?(\d*)\.?(\d*)$', {part})" for part in (1, 2))
    round_trip = f"printf('%.' || length({fraction}) || 'f', {number})"
    cases = (
        (_keeps_surely_as_double(text), "true"),
        (_matches(text, "(?i:-?inf(?:inity)?|nan)"), "true"),
        (f"NOT {_matches(text, _NUMBER)} OR NOT isfinite({number})", "false"),
        (f"{_digits_of(f'CAST({number} AS VARCHAR)')} = {_digits_of(text)}", "true"),
        (f"contains(lower({text}), 'e')", f"{_digits_of(printed)} = {_digits_of(text)}"),
        (
            f"length(ltrim({whole} || {fraction}, '0')) <= {ROUND_TRIP_DIGITS}",
            f"{_digits_of(round_trip)} = {_digits_of(text)}",
        ),
    )
    return f"(CASE {' '.join(f'WHEN {condition} THEN {value}' for condition, value in cases)} ELSE false END)"


def _parts_of(number: str) -> dict[str, str]:
    """Return SQL for the `digits` of the text *number* as an integer without zeros at its ends, and its `exponent`."""

    def part(at: int) -> str:
        return rf"regexp_extract({number}, '^-?(\d*)\.?(\d*)(?:[eE]([-+]?\d+))?$', {at})"

    whole = f"ltrim({part(1)} || {part(2)}, '0')"
    digits = f"rtrim({whole}, '0')"
    exponent = f"coalesce(TRY_CAST({part(3)} AS BIGINT), 0) - length({part(2)}) + length({whole}) - length({digits})"
    return {"digits": digits, "exponent": exponent}


def _digits_of(number: str) -> str:
    """Return SQL for a text that is equal for equal numbers, apart from their signs."""
    parts = _parts_of(number)
    return "CASE WHEN {digits} = '' THEN '' ELSE {digits} || 'e' || ({exponent}) END".format(**parts)


#: How values are compared with what a type would make of them, where it is not as in `_keeps_as`.
_KEEPS: Mapping[str, Callable[[str], str]] = {
    "BOOLEAN": lambda text: f"lower({text}) IN ('true', 'false')",
    "DOUBLE": keeps_as_double,
    "DECIMAL": lambda text: _matches(text, _NUMBER),
}

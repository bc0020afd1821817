r"""
Finds types for text columns. A column gets a type only if the type keeps every value exactly.

The engine proposes a type for each column of a text file, but it guesses. It reads `epoch` as 1900-01-01, truncates
nanoseconds, and rounds long numbers. Therefore this module makes the engine compare each value with its conversion. If
the proposed type would change a value, the next type in `_NEXT` is tried. Text keeps every value.
"""

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import duckdb
from msgspec import Struct
from msgspec.structs import replace

from datasources.sql import literal

TEXT = "VARCHAR"

#: The type for numbers with more digits than a double keeps. If they do not fit, the column is text. The scale is that
#: of Spark and of most cryptocurrency amounts. It is the same for every file, because a scale that followed the digits
#: in one file would change with the next file.
_DECIMAL = "DECIMAL(38,18)"

#: The types to try after the one that the engine proposes, in order.
_NEXT: Mapping[str, tuple[str, ...]] = {
    "BOOLEAN": (),
    "BIGINT": ("HUGEINT", "BIGNUM", "DOUBLE", _DECIMAL),
    "HUGEINT": ("BIGNUM", "DOUBLE", _DECIMAL),
    "BIGNUM": (),
    "DOUBLE": ("HUGEINT", "BIGNUM", _DECIMAL),
    "DATE": (),
    "TIME": ("TIME_NS",),
    "TIMESTAMP": ("TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ_NS"),
    "TIMESTAMP WITH TIME ZONE": ("TIMESTAMPTZ_NS", "TIMESTAMP", "TIMESTAMP_NS"),
    "UUID": (),
}
#: The types whose values are compared.
CHECKED = frozenset(_NEXT)
INTEGERS = frozenset({"BIGINT", "HUGEINT", "BIGNUM"})

#: The maximum number of columns in one statement: with expressions for each column, which take time and memory to plan,
#: or with all columns in a list.
_COLUMNS_AT_ONCE = 30
_LISTED_AT_ONCE = 1000

#: The maximum number of decimal places that are compared with those of a double.
_MAX_DECIMALS = 100
#: A double keeps any number with this many digits if its exponent is small.
_DOUBLE_DIGITS = 15
#: This many digits distinguish each double from all others. `%.17g` in C, R and others writes them.
ROUND_TRIP_DIGITS = 17

#: Takes SQL for a text, and returns SQL that tests whether the text has a property.
Property = Callable[[str], str]

# Years have at least four digits, as in ISO 8601. The engine itself writes `(BC)` after years before year 1.
_DAY = r"[+-]?\d{4,6}[-/]\d{1,2}[-/]\d{1,2}"
_ERA = r"(?: \(BC\))?"
_HOUR_OF_DAY = r"(?:\d|[01]\d|2[0-3])"
_ZONE = r"(?:Z| ?UTC|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)"
_INFINITE = "-?infinity"


def _clock(hour: str, digits: int) -> str:
    """Return the pattern of a time with at most *digits* non-zero fractional second digits."""
    return rf"{hour}:[0-5]\d(?::[0-5]\d(?:\.\d{{0,{digits}}}0*)?)?"


def _moment(digits: int, zone: str = "") -> str:
    return rf"{_DAY}[ T]{_clock(_HOUR_OF_DAY, digits)}{zone}{_ERA}|{_INFINITE}"


#: Patterns of dates and times. The engine accepts much more, such as a time as a date.
_PATTERNS = {
    "DATE": f"{_DAY}{_ERA}|{_INFINITE}",
    "TIME": _clock(r"(?:\d|[01]\d|2[0-4])", 6),
    "TIME_NS": _clock(r"(?:\d|[01]\d|2[0-4])", 9),
    "TIMESTAMP": _moment(6),
    "TIMESTAMP_NS": _moment(9),
    "TIMESTAMP WITH TIME ZONE": _moment(6, _ZONE),
    "TIMESTAMPTZ_NS": _moment(9, _ZONE),
}

#: Numbers without and with an exponent. A leading zero means a code, such as a telephone number.
_PLAIN = r"-?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)"
_NUMBER = rf"{_PLAIN}(?:[eE][-+]?\d+)?"
_SHORT_NUMBER = rf"{_PLAIN}(?:[eE][-+]?\d{{1,2}})?"
_SHORT_DECIMAL = r"-?(?:0|[1-9]\d{0,19})?(?:\.\d{0,18}0*)?"

#: The patterns of date format directives that do not match one or two digits.
_DIRECTIVES = {"Y": r"\d{4}", "y": r"\d{2}", "f": r"\d{1,6}", **dict.fromkeys("aAbBhp", r"[^\d\s]+"), "%": "%"}


class Place(Struct, frozen=True):
    """
    The location of text in a relation: an SQL expression *root*, and the *steps* into its value.

    A step is the name of a struct member, or None for the items of a list. *quick* is a faster expression than *root*.
    Its result differs only for unusual text, such as text surrounded by spaces.
    """

    root: str
    steps: tuple[str | None, ...] = ()
    quick: str | None = None

    def all(self, keeps: Property) -> str:
        """Return SQL for an aggregate: true if every text has the property, or null if there is no text."""
        return f"bool_and({self._nested(self.root, 0, keeps)})"

    def _nested(self, value: str, at: int, keeps: Property) -> str:
        if at == len(self.steps):
            return f"CASE WHEN {value} IS NOT NULL THEN {keeps(value)} END"
        step = self.steps[at]
        if step is not None:
            return self._nested(f"struct_extract({value}, {literal(step)})", at + 1, keeps)
        item = f"i{at}"
        of_item = self._nested(item, at + 1, keeps)
        return f"list_aggregate(list_transform({value}, lambda {item}: {of_item}), 'bool_and')"


class Found(Struct, frozen=True):
    """A type that keeps all values of a place. With *date_format*, the values are read with `strptime`."""

    type: str
    date_format: str | None = None

    def of(self, text: str) -> str:
        """Return SQL for the value of *text*, which is itself SQL."""
        read = text if self.date_format is None else f"strptime({text}, {literal(self.date_format)})"
        return read if self.type == TEXT else f"CAST({read} AS {self.type})"


def exact_types(
    connection: duckdb.DuckDBPyConnection, relation: str, proposed: Mapping[Place, str], *, words: bool
) -> dict[Place, str]:
    """
    Return a type for each place in *relation* that keeps its text exactly.

    Args:
        connection: The engine.
        relation: SQL for a relation.
        proposed: The types that the engine proposes, all `CHECKED`.
        words: Whether the values are written as text rather than as numbers. If so, a column with only `NaN` is text.
    """
    # The proposed type usually fits, so other types are compared only where it does not.
    quick = {replace(place, root=place.quick or place.root): place for place in proposed}
    first = [(place, proposed[of]) for place, of in quick.items()]
    found = {quick[place]: type_ for place, type_ in types_that_keep(connection, relation, first, words=words).items()}
    rest = [
        (place, next_)
        for place, type_ in proposed.items()
        if place not in found
        for next_ in (*((type_,) if place.quick is not None else ()), *_NEXT[type_])
    ]
    found |= types_that_keep(connection, relation, rest, words=words)
    return {place: found.get(place, TEXT) for place in proposed}


def types_that_keep(
    connection: duckdb.DuckDBPyConnection, relation: str, candidates: Sequence[tuple[Place, str]], *, words: bool
) -> dict[Place, str]:
    """Return the first candidate type of each place that keeps its text, if any. Without text, any type fits."""
    # A column that contains only words for infinity and NaN is a text column.
    worded = [(place, _is_word) for place, type_ in candidates if type_ in _PATTERNS or (type_ == "DOUBLE" and words)]
    questions = [*((place, keeps_as(type_)) for place, type_ in candidates), *dict.fromkeys(worded)]
    (found,) = answers(connection, relation, questions) or ([None] * len(questions),)
    are_words = {
        place
        for (place, _), answer in zip(questions[len(candidates) :], found[len(candidates) :], strict=True)
        if answer
    }
    kept: dict[Place, str] = {}
    for (place, type_), answer in zip(candidates, found, strict=False):
        if answer is not False and place not in are_words:
            kept.setdefault(place, type_)
    return kept


def formats_that_keep(
    connection: duckdb.DuckDBPyConnection, relation: str, places: Sequence[Place], formats: Sequence[str], file: str
) -> dict[Place, list[tuple[str, ...]]]:
    """
    Return the date *formats* that fit all text of each of *places*, for each file that has text there.

    *file* is the quoted name of the column that distinguishes files.
    """
    questions = [(place, by_format(format_)) for place in places for format_ in formats]
    found: dict[Place, list[tuple[str, ...]]] = {place: [] for place in places}
    for row in answers(connection, relation, questions, file):
        for at, place in enumerate(places):
            of_place = row[at * len(formats) : (at + 1) * len(formats)]
            if any(answer is not None for answer in of_place):
                found[place].append(tuple(itertools.compress(formats, of_place)))
    return found


def answers(
    connection: duckdb.DuckDBPyConnection,
    relation: str,
    questions: Sequence[tuple[Place, Property]],
    group: str | None = None,
) -> list[list[bool | None]]:
    """
    For each question, return whether all text of the place has the property; None if there is no text.

    The result has one list for each value of the column *group*, a quoted name. A statement about many columns takes
    longer to plan than to run, so their text is combined into one column.
    """
    found: dict[object, list[bool | None]] = {}
    asked: dict[Place, list[int]] = {}
    for at, (place, _) in enumerate(questions):
        asked.setdefault(place, []).append(at)
    is_listed = len(asked) > _COLUMNS_AT_ONCE and not any(place.steps for place in asked)
    places, size = list(asked), _LISTED_AT_ONCE if is_listed else _COLUMNS_AT_ONCE
    for start in range(0, len(places), size):
        some = [at for place in places[start : start + size] for at in asked[place]]
        statement = _listed if is_listed else _direct
        for value, at, answer in statement(connection, relation, [questions[at] for at in some], group):
            found.setdefault(value, [None] * len(questions))[some[at]] = answer
    return list(found.values())


def _direct(
    connection: duckdb.DuckDBPyConnection, relation: str, questions: Sequence[tuple[Place, Property]], group: str | None
) -> Iterator[tuple[object, int, bool | None]]:
    checks = ", ".join(place.all(keeps) for place, keeps in questions)
    by = f"GROUP BY {group}" if group is not None else ""
    rows = connection.execute(f"SELECT {group or 'NULL'}, {checks} FROM {relation} {by}").fetchall()  # noqa: S608 - quoted
    return ((value, at, answer) for value, *row in rows for at, answer in enumerate(row))


def _listed(
    connection: duckdb.DuckDBPyConnection, relation: str, questions: Sequence[tuple[Place, Property]], group: str | None
) -> Iterator[tuple[object, int, bool | None]]:
    # Places with the same questions are adjacent, so that a range identifies the places of a question.
    alike: dict[Place, list[tuple[str, int]]] = {}
    for at, (place, keeps) in enumerate(questions):
        alike.setdefault(place, []).append((keeps("v"), at))
    numbers: dict[str, dict[int, int]] = {}
    places = sorted(alike, key=lambda place: [check for check, _ in alike[place]])
    for number, place in enumerate(places):
        for check, at in alike[place]:
            numbers.setdefault(check, {})[number] = at
    checks = ", ".join(
        f"bool_and(CASE WHEN {_is_one_of(list(asked))} THEN {check} END)" for check, asked in numbers.items()
    )
    rows = connection.execute(
        f"SELECT g, i, {checks} FROM ("  # noqa: S608 - quoted
        f"SELECT {group or 'NULL'} AS g, unnest([{', '.join(place.root for place in places)}]) AS v, "
        f"unnest(range({len(places)})) AS i FROM {relation}) WHERE v IS NOT NULL GROUP BY g, i"
    ).fetchall()
    return (
        (value, asked[number], answer)
        for value, number, *row in rows
        for asked, answer in zip(numbers.values(), row, strict=True)
        if number in asked
    )


def _is_one_of(numbers: Sequence[int]) -> str:
    is_range = len(numbers) == numbers[-1] - numbers[0] + 1
    return f"i BETWEEN {numbers[0]} AND {numbers[-1]}" if is_range else f"i IN ({', '.join(map(str, numbers))})"


def by_format(format_: str) -> Property:
    """Return the property of text in the given date format."""
    # Every second part is a directive's letter. strptime alone accepts words such as epoch, and reads 26 as the year
    # 26.
    parts = enumerate(re.split("%-?(.)", format_))
    pattern = "".join(_DIRECTIVES.get(part, r"\d{1,2}") if at % 2 else re.escape(part) for at, part in parts)
    return lambda text: f"({matches(text, pattern)} AND try_strptime({text}, {literal(format_)}) IS NOT NULL)"


def matches(text: str, pattern: str) -> str:
    """Return SQL that tests whether *pattern* matches all of *text*, which is itself SQL."""
    return f"regexp_full_match({text}, {literal(pattern)})"


def _is_word(text: str) -> str:
    return f"right({text}, 1) IN ('y', 'Y', 'n', 'N', 'f', 'F')"


@functools.cache
def keeps_as(type_: str) -> Property:
    """Return the property of text that *type_* keeps. It matches `_PATTERNS` or is in the engine's output format."""
    pattern = _PATTERNS.get(type_)
    if pattern is not None:
        return lambda text: f"({matches(text, f'(?i:{pattern})')} AND TRY_CAST({text} AS {type_}) IS NOT NULL)"
    # -0 is the only integer that the engine writes without its sign.
    zero = "CASE WHEN {text} = '-0' THEN '0' ELSE {text} END" if type_ in INTEGERS else "{text}"
    return _KEEPS.get(
        type_, lambda text: f"coalesce(CAST(TRY_CAST({text} AS {type_}) AS VARCHAR) = {zero.format(text=text)}, false)"
    )


def keeps_as_double(text: str) -> str:
    """
    Return SQL that tests whether the double of *text* is exactly that number, not only the nearest one.

    This is the case if the double, written with the same number of digits or with as few as needed, equals *text*. It
    is also the case for numbers that programs write with 17 digits, or with more digits than a double has.
    """
    number = f"TRY_CAST({text} AS DOUBLE)"
    # In the format of C's %f and %e, with the number of decimals in the text.
    fixed, mantissa = rf"regexp_extract({text}, '\.(\d*)$', 1)", rf"regexp_extract({text}, '\.(\d*)[eE]', 1)"
    as_fixed, as_scientific = (
        f"printf('%.' || least(length({decimals}), {_MAX_DECIMALS}) || '{letter}', {number})"
        for decimals, letter in ((fixed, "f"), (mantissa, "e"))
    )
    has_fraction, digits = matches(text, r"-?\d*\.\d*[1-9]\d*"), _digits_of(text)
    cases = (
        (f"length({text}) <= {_DOUBLE_DIGITS} AND {matches(text, _SHORT_NUMBER)}", "true"),
        (f"CAST({number} AS VARCHAR) = {text}", "true"),
        (f"coalesce(NOT isfinite({number}), true)", matches(text, "(?i:-?inf(?:inity)?|nan)")),
        (f"NOT {matches(text, _NUMBER)}", "false"),
        (f"printf('%.{ROUND_TRIP_DIGITS}g', {number}) = {text}", "true"),
        (has_fraction, rf"{as_fixed} = regexp_replace({text}, '^(-?)\.', '\10.')"),
        (f"{as_scientific} = lower({text})", "true"),
        (f"{_digits_of(f'CAST({number} AS VARCHAR)')} = {digits}", "true"),
    )
    written = f"contains(lower({text}), 'e') AND {_digits_of(as_scientific)} = {digits}"
    return f"(CASE {' '.join(f'WHEN {condition} THEN {value}' for condition, value in cases)} ELSE {written} END)"


def is_text_of_its_double(text: str) -> str:
    """Return SQL that tests whether the shortest text of the double of *text* is the same number."""
    own = f"CAST(TRY_CAST({text} AS DOUBLE) AS VARCHAR)"
    return f"(CASE WHEN {own} = {text} THEN true ELSE coalesce({_digits_of(own)} = {_digits_of(text)}, false) END)"


def _keeps_as_decimal(text: str) -> str:
    size = "length({digits}) + {exponent} <= 20 AND -({exponent}) <= 18".format(**_parts_of(text))
    return (
        f"(CASE WHEN {matches(text, _SHORT_DECIMAL)} THEN true WHEN {matches(text, _NUMBER)} THEN {size} "
        f"ELSE false END AND TRY_CAST({text} AS {_DECIMAL}) IS NOT NULL)"
    )


def _parts_of(number: str) -> dict[str, str]:
    """Return SQL for the `digits` of the text *number*, an integer without zeros at either end, and its `exponent`."""

    def part(at: int) -> str:
        return rf"regexp_extract({number}, '^-?(\d*)\.?(\d*)(?:[eE]([-+]?\d+))?$', {at})"

    whole = f"ltrim({part(1)} || {part(2)}, '0')"
    digits = f"rtrim({whole}, '0')"
    exponent = f"coalesce(TRY_CAST({part(3)} AS BIGINT), 0) - length({part(2)}) + length({whole}) - length({digits})"
    return {"digits": digits, "exponent": exponent}


def _digits_of(number: str) -> str:
    """Return SQL for a text that is equal for equal numbers, ignoring signs."""
    parts = _parts_of(number)
    return "CASE WHEN {digits} = '' THEN '' ELSE {digits} || 'e' || ({exponent}) END".format(**parts)


#: The properties of text kept by types for which the comparison in `keeps_as` does not work.
_KEEPS: Mapping[str, Property] = {
    "BOOLEAN": lambda text: f"lower({text}) IN ('true', 'false')",
    "DOUBLE": keeps_as_double,
    _DECIMAL: _keeps_as_decimal,
}

"""Formats durations, sizes and other text for people, and escapes characters that are unsafe on a terminal."""

import re
import unicodedata
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtimeclient.http.resources import DatasetStatus

# The seconds and the name of a unit, and of the next smaller unit.
_PERIODS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))
# The maximum length of a statement in a table.
_SHOWN_CHARACTERS = 80
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def duration(seconds: float) -> str:
    """Format a duration in one or two units: `412 ms`, `3.2 s`, `2 min 5 s`, `3 h 12 min`."""
    if seconds < 0.9995:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    unit_s, unit, part_s, part = next(period for period in _PERIODS if whole >= period[0])
    rest = whole % unit_s // part_s
    return f"{whole // unit_s} {unit}" + (f" {rest} {part}" if rest else "")


def age(moment: str, now: datetime) -> str:
    """
    Return how long ago a time was. A time that cannot be parsed is returned unchanged.

    Args:
        moment: A time in ISO 8601, in UTC if it has no zone.
        now: A time with a zone.
    """
    try:
        then = datetime.fromisoformat(moment)
    except ValueError:
        return moment
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    return elapsed((now - then).total_seconds())


def dataset_age(dataset: "DatasetStatus", now: datetime) -> str | None:
    """Return the age of a dataset's rows, by the runtime's clock if possible; None if the dataset was never loaded."""
    if dataset.age_s is not None:
        return elapsed(dataset.age_s)
    return None if dataset.refreshed_at is None else age(dataset.refreshed_at, now)


def elapsed(seconds: float) -> str:
    """Format an age in whole seconds. A negative age, caused by different clocks, is shown as 0 s."""
    return duration(round(seconds)) if seconds >= 59.5 else f"{max(round(seconds), 0)} s"


def size(count: int) -> str:
    """Format a number of bytes in powers of 1,000: `823 B`, `12.3 MB`."""
    value = float(count)
    for unit in _UNITS:
        if value < 999.5 or unit == _UNITS[-1]:
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" or value >= 99.95 else f"{value:.1f} {unit}"


def plural(count: int, noun: str) -> str:
    """Format a count with its noun: `1 row`, `336,776 rows`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def beginning(sql: str) -> str:
    """Return the beginning of a statement on one line."""
    text = " ".join(sql.split())
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def width(text: str) -> int:
    """Return the terminal columns of a text. East Asian characters and emoji take two columns, combining marks none."""
    if text.isascii() and text.isprintable():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415 (slow to import)

    return cell_len(text)


_SHORT_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_JOINERS = "\u200c\u200d"
# Characters that Python considers printable but that are invisible: Unicode's default ignorable characters
# (DerivedCoreProperties), except the text and emoji presentation selectors, and the blank Braille pattern.
_BLANKS = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0d\uffa0\U000e0000-\U000e0fff]"
)
# Emoji that are newer than Python's Unicode tables.
_EMOJI_BLOCKS = range(0x1F000, 0x1FB00)
_MAX_LINE = 4000
_CARET_LINE = re.compile(r"^[\s^~]*$", re.MULTILINE)


def visible(text: str) -> str:
    r"""
    Escape characters that could control a terminal or are invisible.

    These are control and format characters (`\x1b`, `\u202e`), lone surrogates, line and paragraph separators,
    unassigned and private code points, and invisible ones. Line breaks and tabs become `\n` and `\t`.
    """
    if text.isprintable() and (text.isascii() or not _BLANKS.search(text)):
        return text
    previous = ""
    shown = []
    for character in text:
        shown.append(character if _is_harmless(character, previous) else _escape(character))
        previous = character
    return "".join(shown)


def one_line(text: str) -> str:
    """Return an external message on one line, escaped and shortened to 4,000 characters."""
    # Drop the engine's caret line, which is meaningless on a single line.
    line = visible(" ".join(_CARET_LINE.sub("", text).split()))
    return line if len(line) <= _MAX_LINE else line[:_MAX_LINE] + "..."


def _is_harmless(character: str, previous: str) -> bool:
    if _BLANKS.match(character):
        return False
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return True
    # Persian, Indic scripts and emoji need joiners. Between Latin letters, joiners only disguise text.
    if character in _JOINERS:
        return bool(previous) and not previous.isascii() and previous not in _JOINERS
    return ord(character) in _EMOJI_BLOCKS


def _escape(character: str) -> str:
    point = ord(character)
    if point < 0x100:
        return _SHORT_ESCAPES.get(character, f"\\x{point:02x}")
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"

"""Text that is safe to print on a terminal: it cannot move the cursor, or colour, reorder or hide text."""

import re
import unicodedata

from rich.cells import cell_len

#: The terminal columns of a text: East Asian characters and emoji take two, combining marks none.
width = cell_len

_SHORT_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_JOINERS = "\u200c\u200d"
# Printable for Python, but invisible: Unicode's default ignorable characters (DerivedCoreProperties), except the text
# and emoji presentation selectors, and the blank Braille pattern.
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
    """Put a message from elsewhere on one line: escaped, and at most 4,000 characters."""
    # Drop the engine's caret line: on one line, it points at nothing.
    line = visible(" ".join(_CARET_LINE.sub("", text).split()))
    return line if len(line) <= _MAX_LINE else line[:_MAX_LINE] + "..."


def _is_harmless(character: str, previous: str) -> bool:
    if _BLANKS.match(character):
        return False
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return True
    # Persian, Indic scripts and emoji need joiners; between Latin letters they only disguise text.
    if character in _JOINERS:
        return bool(previous) and not previous.isascii() and previous not in _JOINERS
    return ord(character) in _EMOJI_BLOCKS


def _escape(character: str) -> str:
    point = ord(character)
    if point < 0x100:
        return _SHORT_ESCAPES.get(character, f"\\x{point:02x}")
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"

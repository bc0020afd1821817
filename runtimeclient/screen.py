"""Text for a screen: nothing in it can move the cursor, colour, reorder or hide what is shown."""

from __future__ import annotations

import re
import unicodedata

from rich.cells import cell_len

_SHORT_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_JOINERS = "\u200c\u200d"
# Printable for Python, and yet nothing is seen of them: what Unicode calls default ignorable (DerivedCoreProperties),
# but for the selectors of text or emoji style, and the blank pattern of Braille.
_BLANKS = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0d\uffa0\U000e0000-\U000e0fff]"
)
# Emoji younger than the Unicode tables of this Python.
_EMOJI_BLOCKS = range(0x1F000, 0x1FB00)
_LONGEST_LINE = 4000
_CARET_LINE = re.compile(r"^[\s^~]*$", re.MULTILINE)


def visible(text: str) -> str:
    r"""
    Escape what could act on a terminal or hide.

    That is control and format characters (`\x1b`, `\u202e`), lone surrogates, line and paragraph separators, unassigned
    and private code points, and those that show nothing. Line breaks and tabs become `\n` and `\t`.
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
    """Put a message of somebody else on one line, escaped, at most 4,000 characters of it."""
    # An engine marks the place of a mistake by a caret below the line, which means nothing on one line.
    line = visible(" ".join(_CARET_LINE.sub("", text).split()))
    return line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + "..."


def width(text: str) -> int:
    """How many columns of a terminal *text* takes: East Asian characters and emoji take two, combining marks none."""
    return cell_len(text)


def _is_harmless(character: str, previous: str) -> bool:
    if _BLANKS.match(character):
        return False
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return True
    # Persian, Indic scripts and emoji need the joiners; between Latin letters they only hide a difference.
    if character in _JOINERS:
        return bool(previous) and not previous.isascii() and previous not in _JOINERS
    return ord(character) in _EMOJI_BLOCKS


def _escape(character: str) -> str:
    point = ord(character)
    if point < 0x100:
        return _SHORT_ESCAPES.get(character, f"\\x{point:02x}")
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"

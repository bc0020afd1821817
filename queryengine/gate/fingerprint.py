"""
Query fingerprints: the gate judges statements with the same fingerprint alike, as they differ only in numeric values.

`fingerprint` replaces each number that is only a value. Everything else stays as written, including white space,
comments, strings and other numbers. So two statements have the same fingerprint only if DuckDB's parser makes the same
tree of both, up to the values of constants, which the gate ignores.

A number may be more than a value: the number of a parameter (`$1`) or column (`#1`), a modifier of a type
(`DECIMAL(18, 3)`, `TIMESTAMP(3)`), the length of an array (`INTEGER[3]`), a percentage (`10%`, `SAMPLE 10`), a part of
an interval. So a number is replaced only where the tokens before and after it, and before every bracket around it, show
that it is a value; the lists of these tokens contain only reserved words and single signs.
"""

from __future__ import annotations

import re
from typing import Final

from queryengine.gate.lexer import Kind, Scan, lower

#: The marks of a number of up to 9 digits (an INTEGER), of up to 18 (a BIGINT), and with a fraction (a DECIMAL). A
#: statement cannot contain a NUL character.
_INTEGER: Final = "\0i"
_BIGINT: Final = "\0l"
_DECIMAL: Final = "\0d"
_INTEGER_DIGITS: Final = 9
_BIGINT_DIGITS: Final = 18

_SIGNS: Final = frozenset("=<>+-*/|")

#: A number after one of these is a value; so are the numbers in a bracket after one.
_BEFORE: Final = _SIGNS | {",", "(", "select", "distinct", "where", "and", "or", "not", "on", "having", "in"}
_BEFORE_NUMBER: Final = _BEFORE | {"between", "case", "when", "then", "else", "by", "limit", "offset"}
_BEFORE_BRACKET: Final = _BEFORE | {"from", "values", "as", "union", "except", "intersect", "all"}

#: A number that is a value is followed by one of these, or by nothing.
_AFTER: Final = _SIGNS | {
    *(",", ")", "and", "or", "as", "when", "then", "else", "end", "from", "where", "group", "having", "qualify"),
    *("order", "asc", "desc", "limit", "offset", "union", "except", "intersect"),
}

#: The mark of a text, and an approximate expression for one.
_TEXT: Final = "\0t"
_ANY_TEXT: Final = re.compile(r"'[^']*+'")

_OPENING, _CLOSING, _NUMBER = int(Kind.OPENING), int(Kind.CLOSING), int(Kind.NUMBER)


def fingerprint(statement: Scan) -> str:
    """Return the text of *statement* with each number that is only a value replaced by a mark of its type."""
    text, spans = statement.text, statement.spans
    last = len(spans) - 1
    pieces: list[str] = []
    kept = 0
    outer: list[bool] = []
    values = True  # whether the current brackets contain values
    for index, (kind, start, end, _) in enumerate(spans):
        if kind == _NUMBER:
            if (
                values
                and (index == 0 or _stands_in(statement, index - 1, _BEFORE_NUMBER))
                and (index == last or _stands_in(statement, index + 1, _AFTER))
                and (mark := _mark(text[start:end]))
            ):
                pieces += (text[kept:start], mark)
                kept = end
        elif kind == _OPENING:
            outer.append(values)
            values = values and text[start] == "(" and (index == 0 or _stands_in(statement, index - 1, _BEFORE_BRACKET))
        elif kind == _CLOSING:
            values = outer.pop()
    return "".join((*pieces, text[kept:]))


def pattern(marked: str) -> str:
    """
    Return the fingerprint *marked* without its texts. Statements that differ only in values usually have one pattern.

    This is a guess: good enough to choose a faster way, not to judge.
    """
    return _ANY_TEXT.sub(_TEXT, marked) if "'" in marked else marked


def _stands_in(statement: Scan, index: int, words: frozenset[str]) -> bool:
    """Say whether the token at *index* is one of *words*. A quoted name is not: its text includes its quotes."""
    _, start, end, _ = statement.spans[index]
    return lower(statement.text[start:end]) in words


def _mark(number: str) -> str | None:
    """Return the mark of the type that DuckDB gives to *number*; None if it may be special."""
    whole, dot, fraction = number.partition(".")
    if not whole.isdecimal() or (whole[0] == "0" and (len(whole) > 1 or not dot)):
        return None
    if dot:
        if len(whole) > _INTEGER_DIGITS or not fraction.isdecimal() or len(fraction) > _INTEGER_DIGITS:
            return None
        return _DECIMAL
    if len(whole) > _INTEGER_DIGITS:
        return _BIGINT if len(whole) <= _BIGINT_DIGITS else None
    return _INTEGER

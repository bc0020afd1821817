"""
Which statements the gate judges alike: those that differ in plain numbers only, where a number is only a value.

`shape` gives a statement with such numbers taken out. Everything else stays as it is written, white space, comments,
strings and other numbers included. So two statements have one shape only when DuckDB's parser makes the same tree of
both, up to the values of constants, at which the gate does not look.

A number may mean more than a value: the number of a parameter (`$1`) or column (`#1`), a modifier of a type
(`DECIMAL(18, 3)`, `TIMESTAMP(3)`), the length of an array (`INTEGER[3]`), a share (`10%`, `SAMPLE 10`), a part of an
interval. So a number is taken out only where it is known to be a value, by what stands before and after it and before
every bracket around it; these lists hold reserved words and single signs only.
"""

from __future__ import annotations

import re
from typing import Final

from queryengine.gate.lexer import Kind, Scan, lower

#: What stands for a number of up to 9 digits (an INTEGER), of up to 18 (a BIGINT), and with a fraction (a DECIMAL).
#: A statement cannot hold a NUL character.
_INTEGER: Final = "\0i"
_BIGINT: Final = "\0l"
_DECIMAL: Final = "\0d"
_INTEGER_DIGITS: Final = 9
_BIGINT_DIGITS: Final = 18

_SIGNS: Final = frozenset("=<>+-*/|")

#: After these stands a number that is a value, or a bracket with such numbers.
_BEFORE: Final = _SIGNS | {",", "(", "select", "distinct", "where", "and", "or", "not", "on", "having", "in"}
_BEFORE_NUMBER: Final = _BEFORE | {"between", "case", "when", "then", "else", "by", "limit", "offset"}
_BEFORE_BRACKET: Final = _BEFORE | {"from", "values", "as", "union", "except", "intersect", "all"}

#: A number that is a value stands before one of these, or at the end.
_AFTER: Final = _SIGNS | {
    *(",", ")", "and", "or", "as", "when", "then", "else", "end", "from", "where", "group", "having", "qualify"),
    *("order", "asc", "desc", "limit", "offset", "union", "except", "intersect"),
}

#: What stands for a text, and roughly what is one.
_TEXT: Final = "\0t"
_ANY_TEXT: Final = re.compile(r"'[^']*+'")

_OPENING, _CLOSING, _NUMBER = int(Kind.OPENING), int(Kind.CLOSING), int(Kind.NUMBER)


def shape(statement: Scan) -> str:
    """Return the text of *statement* with each number that is only a value replaced by a mark of its type."""
    text, spans = statement.text, statement.spans
    last = len(spans) - 1
    pieces: list[str] = []
    kept = 0
    outer: list[bool] = []
    values = True  # whether what stands in the brackets here is values
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


def pattern(shaped: str) -> str:
    """
    Return the *shaped* text without the texts in it: statements that differ in their values tend to have one.

    It is a guess of what is alike: good for choosing a faster way, not for judging.
    """
    return _ANY_TEXT.sub(_TEXT, shaped) if "'" in shaped else shaped


def _stands_in(statement: Scan, index: int, words: frozenset[str]) -> bool:
    """Say whether the token at *index* is one of *words*. A name in quotes is none: its quotes belong to its text."""
    _, start, end, _ = statement.spans[index]
    return lower(statement.text[start:end]) in words


def _mark(number: str) -> str | None:
    """Return the mark of the type that DuckDB gives to *number*; None when it may be special."""
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

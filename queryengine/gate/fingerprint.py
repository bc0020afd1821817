"""
The forms of a statement by which gate decisions and results are cached and statistics are kept.

**Query fingerprints.** The gate makes the same decision for statements with the same fingerprint, because they differ
only in numeric values. `fingerprint` replaces each number that is only a value. Everything else stays as written,
including white space, comments, strings and other numbers. Two statements therefore have the same fingerprint only if
DuckDB's parser builds the same tree for both, except for the values of constants, which the gate ignores.

A number may be more than a value: the number of a parameter (`$1`) or column (`#1`), a type modifier
(`DECIMAL(18, 3)`, `TIMESTAMP(3)`), an array length (`INTEGER[3]`), a percentage (`10%`, `SAMPLE 10`) or part of an
interval. Therefore a number is replaced only if the tokens before and after it, and before every bracket around it,
show that it is a value. The lists of these tokens contain only reserved words and single-character signs.

**Normal form.** Results are cached by normal form, which ignores the same differences as parsers. White space and
comments between two tokens become one space. White space and comments around the statement, and trailing semicolons,
are removed. The text between two string literals is kept, because the parser joins the literals if there is a line
break between them. A parameter `:name` becomes `$name`. Nothing else changes: case, names and literals stay as written,
and no space is added.

**Digest.** Statistics are kept by digest. Statements have the same digest if they differ only in the values of
literals, in the number of literals in a list, in white space, in comments or in the case of words. A digest does not
reveal literals.
"""

import hashlib
import re
from functools import lru_cache
from typing import Final

from queryengine.errors import SqlSyntaxError
from queryengine.gate.lexer import Kind, Scan, lower, scan
from queryengine.gate.named_parameters import with_dollar_names

#: The numbers that are replaced: up to 9 digits (an INTEGER), up to 18 digits (a BIGINT), with a fraction (a DECIMAL).
#: The replacement is NUL, which a statement cannot contain, followed by the name of the regex group.
_VALUE: Final = re.compile(
    r"(?P<i>[1-9][0-9]{0,8}) | (?P<l>[1-9][0-9]{9,17}) | (?P<d>(?:0|[1-9][0-9]{0,8})\.[0-9]{1,9})", re.VERBOSE
)

_SIGNS: Final = frozenset("=<>+-*/|")

#: A number after one of these tokens is a value, and so are the numbers in a bracket after one of them.
_BEFORE: Final = _SIGNS | {",", "(", "select", "distinct", "where", "and", "or", "not", "on", "having", "in"}
_BEFORE_NUMBER: Final = _BEFORE | {"between", "case", "when", "then", "else", "by", "limit", "offset"}
_BEFORE_BRACKET: Final = _BEFORE | {"from", "values", "as", "union", "except", "intersect", "all"}

#: A number that is a value is followed by one of these tokens, or by nothing.
_AFTER: Final = _SIGNS | {
    *(",", ")", "and", "or", "as", "when", "then", "else", "end", "from", "where", "group", "having", "qualify"),
    *("order", "asc", "desc", "limit", "offset", "union", "except", "intersect"),
}

#: An approximate pattern of a string literal.
_TEXT: Final = re.compile(r"'[^']*+'")

#: Longer statements are their own normal form, because the calling process also serves other requests.
_SCANNED_CHARACTERS: Final = 4096
_CACHED: Final = 512

_STRING, _NUMBER, _OPENING, _CLOSING = map(int, (Kind.STRING, Kind.NUMBER, Kind.OPENING, Kind.CLOSING))
_IDENTIFIER = int(Kind.IDENTIFIER)

_DIGEST_BYTES: Final = 8


def fingerprint(statement: Scan) -> str:
    """Return the text of *statement*, with each number that is only a value replaced by a marker for its type."""
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
                and (value := _VALUE.fullmatch(text, start, end))
            ):
                pieces += (text[kept:start], f"\0{value.lastgroup}")
                kept = end
        elif kind == _OPENING:
            outer.append(values)
            values = values and text[start] == "(" and (index == 0 or _stands_in(statement, index - 1, _BEFORE_BRACKET))
        elif kind == _CLOSING:
            values = outer.pop()
    return "".join((*pieces, text[kept:]))


def pattern(marked: str) -> str:
    """
    Return the fingerprint *marked* without its string literals.

    Statements that differ only in values usually have the same pattern. This is a heuristic that is good enough to
    choose a faster method, but not for gate decisions.
    """
    return _TEXT.sub("\0t", marked) if "'" in marked else marked


def digest(statement: Scan) -> str:
    """Return the digest of *statement*, 16 hexadecimal digits."""
    text = statement.text
    words: list[str] = []
    for kind, start, end, _ in statement.spans[: statement.size_without_end]:
        if kind not in {_STRING, _NUMBER}:
            words.append(text[start:end] if kind == _IDENTIFIER else lower(text[start:end]))
        elif words[-2:] == ["0", ","]:
            words.pop()  # another literal in a list
        else:
            words.append("0")
    return hashlib.blake2b(" ".join(words).encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _stands_in(statement: Scan, index: int, words: frozenset[str]) -> bool:
    """Return whether the token at *index* is one of *words*. A quoted name is not: its text includes its quotes."""
    _, start, end, _ = statement.spans[index]
    return lower(statement.text[start:end]) in words


def normal_form(sql: str) -> str:
    """Return the normal form of *sql*. SQL that is too long or cannot be scanned is returned unchanged."""
    return _normal_form(sql) if len(sql) <= _SCANNED_CHARACTERS else sql


@lru_cache(_CACHED)
def _normal_form(sql: str) -> str:
    try:
        found = with_dollar_names(scan(sql))
    except SqlSyntaxError:
        return sql
    text = found.text
    pieces: list[str] = []
    kind_before = end_before = 0
    for kind, start, end, _ in found.spans[: found.size_without_end]:
        if pieces and start > end_before:
            pieces.append(text[end_before:start] if kind == kind_before == _STRING else " ")
        pieces.append(text[start:end])
        kind_before, end_before = kind, end
    return "".join(pieces)

"""
The normal form of a statement, under which its result is cached: it ignores the differences that parsers ignore.

White space and comments between two tokens become one space; those around the statement, and the semicolons after it,
are removed. The text between two string literals stays: with a line break there, the parser joins them to one. Nothing
else changes: no case, no name, no literal, and no space is added.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from queryengine.errors import SqlSyntaxError
from queryengine.gate.lexer import Kind, scan

#: Longer texts stay as they are: the calling process also answers other requests.
_SCANNED_CHARACTERS: Final = 4096
_CACHED: Final = 512

_STRING: Final = int(Kind.STRING)


def normal_form(sql: str) -> str:
    """Return the normal form of *sql*; a text that is too long or cannot be scanned is returned unchanged."""
    return _of_short(sql) if len(sql) <= _SCANNED_CHARACTERS else sql


@lru_cache(_CACHED)
def _of_short(sql: str) -> str:
    try:
        found = scan(sql)
    except SqlSyntaxError:
        return sql
    text, count = found.text, found.size
    for semicolon in reversed(found.separators):
        if semicolon != count - 1:
            break
        count = semicolon
    pieces: list[str] = []
    kind_before = end_before = 0
    for kind, start, end, _ in found.spans[:count]:
        if pieces and start > end_before:
            pieces.append(text[end_before:start] if kind == kind_before == _STRING else " ")
        pieces.append(text[start:end])
        kind_before, end_before = kind, end
    return "".join(pieces)

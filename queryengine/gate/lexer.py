"""
Splits SQL text into tokens, in linear time, before the engine's parser sees it.

A statement of a few kilobytes can make the parser run for minutes, use gigabytes of memory or overflow the stack, and
the parser cannot be interrupted (`docs/internals/decisions/0004-statement-gate.md` has measurements). Therefore `scan`
first estimates the cost of parsing a statement, and refuses a statement that would take more than about a second.

The lexer splits text in the same way as DuckDB's own tokenizer, and a test compares the two. If the engine is lenient,
the lexer is strict.
"""

import re
from enum import IntEnum
from functools import cached_property
from typing import Final, NamedTuple

from queryengine.errors import SqlSyntaxError

MAX_TOKENS: Final = 50_000
MAX_NESTING: Final = 200
MAX_PREFIX_RUN: Final = 200

#: The engine reads an integer with many digits in quadratic time. 400,000 digits take 2.4 seconds.
MAX_NUMBER_CHARACTERS: Final = 1_000

#: The maximum number of expressions in the GROUP BY clauses of a statement. The parser takes quadratic time for them
#: (12,000 take 6 seconds), and the tree of a ROLLUP of 4,000 has 38 MB.
MAX_GROUPS: Final = 1_000

#: The maximum work in tokens. Each token counts as often as the parser may read it. 500,000 tokens take about half a
#: second and 250 MiB.
MAX_WORK: Final = 500_000

#: The number of times that the parser may read the body of a common table expression after a syntax error in the body.
_READS_PER_BODY: Final = 6


#: The group for the opening quote of a dollar-quoted string, which becomes a `Kind.STRING`.
_TAG: Final = 10


class Kind(IntEnum):
    """The kind of a token. The values are the group numbers in `_TOKEN`. Words come before brackets."""

    STRING = 1
    IDENTIFIER = 2  # quoted, with double quotes or back-ticks
    BODY = 3  # AS or MATERIALIZED: precedes the body of a common table expression
    PREFIX = 4  # a word that, like an operator, may be repeated without limit
    WORD = 5  # any other keyword, or an unquoted identifier
    NUMBER = 6
    OPENING = 7  # a bracket
    CLOSING = 8
    PUNCTUATION = 9  # comma, semicolon or dot
    STRAY = 11  # an unclosed quote or comment, a comment in a comment, or a number without a space after it
    OPERATOR = 12  # one character of an operator, so that a long operator counts as several


#: Characters that DuckDB treats as spaces between tokens. Inside literals they stay unchanged.
_UNICODE_SPACES: Final = "\u00a0\u2000-\u200b\u202f\u205f\u2060\u3000\ufeff"
_NOT_IN_WORDS: Final = rf"\t-\r\x20!-\x23%-/:-@\[-^`{{-~{_UNICODE_SPACES}"
_START: Final = rf"[^{_NOT_IN_WORDS}$0-9]"
_REST: Final = rf"[^{_NOT_IN_WORDS}]"
_DIGITS: Final = r"[0-9]++(?:_[0-9]++)*"

#: Every match begins where the previous one ended, because the last alternative matches any character. Before 3.11.5,
#: Python does not put the position back if the last repetition of a possessive group fails after its first character
#: (CPython issue 106052). The alternative `(?!)`, which always fails, does.
_TOKEN: Final = re.compile(
    rf"""
    (?: [\t-\r\x20{_UNICODE_SPACES}]++ | --[^\n\r]*+ | /\*[^*/]*+(?:(?:\*(?!/)|/(?!\*)|(?!))[^*/]*+)*+\*/ | (?!) )*+
    (?: ( [eE]'[^'\\]*+(?:(?:\\.|'')[^'\\]*+)*+' | '[^']*+(?:''[^']*+)*+' )
      | ( "[^"]*+(?:""[^"]*+)*+" | `[^`]*+(?:``[^`]*+)*+` )
      | ( (?:[aA][sS]|[mM][aA][tT][eE][rR][iI][aA][lL][iI][zZ][eE][dD])(?!{_REST}) )
      | ( (?i:not|desc|describe|summarize|show|explain)(?!{_REST}) )
      | ( (?![eE]'){_START}{_REST}*+ )
      | ( (?>(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][+-]?[0-9]++)?)(?![.'"`]|{_REST}) )
      | ( [(\[{{] )
      | ( [)\]}}] )
      | ( [,;] | \.(?![0-9]) )
      | ( \$(?:{_START}[^{_NOT_IN_WORDS}$]*+)?\$ ) .*? \10
      | ( [eE]?'|["`0-9.] | /\* | \$(?:{_START}[^{_NOT_IN_WORDS}$]*+)?\$ )
      | ( . )
      | \Z
    )""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE: Final = re.compile(r"/\*|\*/")
_UNICODE_SPACE: Final = re.compile(f"[{_UNICODE_SPACES}]")
#: The kinds that `_split` compares with, as plain integers.
_COMPARED: Final = tuple(
    map(
        int,
        (
            *(Kind.PREFIX, Kind.NUMBER, Kind.OPENING, Kind.CLOSING, Kind.PUNCTUATION, Kind.BODY, Kind.STRAY),
            Kind.OPERATOR,
        ),
    )
)
_CLOSES: Final = {"(": ")", "[": "]", "{": "}"}
_WORDS: Final = frozenset({Kind.BODY, Kind.PREFIX, Kind.WORD})


class Token(NamedTuple):
    """A token that is not a comment. `start` and `end` are character positions in `Scan.text`."""

    kind: Kind
    text: str
    start: int
    end: int
    depth: int  # number of enclosing brackets; the same for an opening bracket and its closing bracket

    @property
    def word(self) -> str:
        """The token as a possible keyword, in lower case; empty if it is not a word or is quoted."""
        return lower(self.text) if self.kind in _WORDS else ""

    @property
    def name(self) -> str | None:
        """The token as an identifier, in lower case; None if it cannot be an identifier."""
        if self.kind is Kind.IDENTIFIER:
            quote = self.text[0]
            return lower(self.text[1:-1].replace(quote * 2, quote))
        return self.word or None


class Scan:
    """A statement as tokens. In `text`, Unicode spaces between tokens are replaced by plain spaces."""

    def __init__(self, text: str, spans: list[tuple[int, int, int, int]], separators: list[int]) -> None:
        self.text = text
        self.spans = spans  # (kind, start, end, depth) of each token, as in `Token`, for code that must be fast
        self.separators = separators  # the indexes of the semicolons among the tokens
        self.size = len(spans)

    @property
    def size_without_end(self) -> int:
        """The number of tokens before trailing semicolons."""
        size = self.size
        for semicolon in reversed(self.separators):
            if semicolon != size - 1:
                break
            size = semicolon
        return size

    @cached_property
    def tokens(self) -> tuple[Token, ...]:
        """All tokens, without comments."""
        return tuple(self[index] for index in range(self.size))

    def __getitem__(self, index: int) -> Token:
        kind, start, end, depth = self.spans[index]
        return Token(Kind(kind), self.text[start:end], start, end, depth)

    def head(self, size: int) -> "Scan":
        """
        Return the first *size* tokens, as `scan` would return them for their text alone.

        *size* is at least 1, and there must be no semicolon among the tokens.
        """
        begin, end = self.spans[0][1], self.spans[size - 1][2]
        if begin == 0 and end == len(self.text):
            return self
        spans = self.spans[:size]
        if begin:
            spans = [(kind, start - begin, end - begin, depth) for kind, start, end, depth in spans]
        return Scan(self.text[begin:end], spans, [])


_TO_LOWER: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def lower(name: str) -> str:
    """Fold case as DuckDB does for names: only the letters A to Z. `str.lower` would convert the Kelvin sign to `k`."""
    return name.lower() if name.isascii() else name.translate(_TO_LOWER)


def check_text(sql: str) -> None:
    """Raise SqlSyntaxError if *sql* cannot be encoded."""
    if not sql.isascii():
        try:
            sql.encode()
        except UnicodeEncodeError:
            raise SqlSyntaxError(
                "The statement contains a lone surrogate, which is not a valid character: send UTF-8."
            ) from None


def scan(sql: str) -> Scan:
    """
    Split *sql* into tokens.

    Raises:
        SqlSyntaxError: *sql* cannot be encoded, exceeds a limit, or has an unclosed literal, comment or bracket.
    """
    check_text(sql)
    if "\0" in sql:
        raise SqlSyntaxError("The statement contains a NUL character: write chr(0) instead.")
    spans, separators = _split(sql)
    found = Scan(_with_plain_spaces(sql, spans), spans, separators)
    if len(spans) > MAX_GROUPS:
        _check_groups(found)
    return found


def _split(sql: str) -> tuple[list[tuple[int, int, int, int]], list[int]]:  # noqa: C901, PLR0912, PLR0915 - see below
    # One inlined pass over plain integers, because a call or an enum for each token would double the time.
    prefix, number, opening, closing, punctuation, body, stray, operator = _COMPARED
    tag = _TAG
    spans: list[tuple[int, int, int, int]] = []
    separators: list[int] = []
    brackets: list[str] = []
    weights = [1]  # how often the parser may read a token at this depth
    weight = 1
    depth = before = prefixes = work = position = 0
    while position < len(sql):
        for match in _TOKEN.finditer(sql, position):
            kind = match.lastindex
            if kind is None:  # white space or comments up to the end
                position = len(sql)
                break
            start, end = match.span(kind)
            inside = depth
            work += weight
            if kind in (operator, prefix):
                prefixes += 1
                if prefixes > MAX_PREFIX_RUN:
                    raise SqlSyntaxError(f"The statement has more than {MAX_PREFIX_RUN} operators in a row.")
            else:
                prefixes = 0
                if kind >= opening:
                    if kind == opening:
                        if depth == MAX_NESTING:
                            raise SqlSyntaxError(
                                f"The statement is nested too deeply: the limit is {MAX_NESTING} brackets."
                            )
                        brackets.append(sql[start])
                        depth += 1
                        if before == body:
                            weight *= _READS_PER_BODY
                        weights.append(weight)
                        work += weight * depth  # Tables in nested brackets are read again at each level.
                    elif kind == closing:
                        if not brackets or _CLOSES[brackets.pop()] != sql[start]:
                            raise SqlSyntaxError(f'The brackets do not match: "{sql[start]}" has no opening bracket.')
                        inside = depth = depth - 1
                        weights.pop()
                        weight = weights[-1]
                    elif kind == punctuation:
                        if sql[start] == ";":
                            separators.append(len(spans))
                    elif kind == tag:
                        kind, end = int(Kind.STRING), match.end()
                    elif kind == stray:
                        position = _end_of_comment(sql, start, match[kind])
                        break
                elif kind == number:
                    check_number(end - start)
            if work > MAX_WORK or len(spans) == MAX_TOKENS:
                raise _too_much(len(spans))
            spans.append((kind, start, end, inside))
            before = kind
    if brackets:
        raise SqlSyntaxError(f'The brackets do not match: "{_CLOSES[brackets[-1]]}" is missing.')
    return spans, separators


def check_number(characters: int) -> None:
    """Raise SqlSyntaxError if a number with this many *characters* is too long."""
    if characters > MAX_NUMBER_CHARACTERS:
        raise SqlSyntaxError(
            f"A number in the statement is too long: {MAX_NUMBER_CHARACTERS:,} characters at most. Write a longer one "
            "as a string with a cast."
        )


def _end_of_comment(sql: str, start: int, opening: str) -> int:
    if opening in "0123456789.":
        raise SqlSyntaxError("Write a space after a number.")
    if opening != "/*":
        what = "text" if opening.endswith("'") else "text in dollar quotes" if opening[0] == "$" else "name"
        raise SqlSyntaxError(f"A quoted {what} is not closed: {opening.lstrip('eE')[:40]} is missing.")
    depth = 0
    for edge in _COMMENT_EDGE.finditer(sql, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
        if depth > MAX_NESTING:
            raise SqlSyntaxError(f"The comments are nested too deeply: the limit is {MAX_NESTING} levels.")
    raise SqlSyntaxError("A comment is not closed: */ is missing.")


def _too_much(tokens: int) -> SqlSyntaxError:
    if tokens == MAX_TOKENS:
        return SqlSyntaxError(
            f"The statement is too long: {MAX_TOKENS:,} words, values and symbols at most. Send a long list of values "
            "as one parameter."
        )
    return SqlSyntaxError(
        "The statement nests brackets and common table expressions too deeply for its length: define them one after "
        "another."
    )


#: Reserved words, which end a GROUP BY clause unless they are part of a name, as in `t.order`.
_AFTER_GROUPS: Final = frozenset(
    {*("having", "window", "qualify", "order", "limit", "offset", "select", "union", "intersect", "except")}
)


def _check_groups(found: Scan) -> None:
    """Refuse more than `MAX_GROUPS` expressions in GROUP BY clauses, including those in a ROLLUP."""
    groups = 0
    clauses: list[int] = []  # the depths of the lists around the token
    tokens = [Token(Kind.PUNCTUATION, "", 0, 0, 0)] * 2
    for token in found.tokens:
        before, last = tokens
        tokens = [last, token]
        while clauses and token.depth < clauses[-1]:
            clauses.pop()
        if last.word == "by" and before.word == "group":
            clauses.append(token.depth)
            groups += 1
        elif before.word == "rollup" and last.text == "(" and clauses:
            clauses.append(token.depth)
        if not clauses or token.depth != clauses[-1]:
            continue
        if token.text == ",":
            groups += 1
        elif token.word in _AFTER_GROUPS and last.text not in (".", "$"):
            clauses.pop()
    if groups > MAX_GROUPS:
        raise SqlSyntaxError(f"More than {MAX_GROUPS:,} expressions in GROUP BY in one statement are not allowed.")


def _with_plain_spaces(sql: str, spans: list[tuple[int, int, int, int]]) -> str:
    if sql.isascii() or not _UNICODE_SPACE.search(sql):
        return sql
    pieces = []
    position = 0
    for _, start, end, _ in [*spans, (0, len(sql), len(sql), 0)]:
        pieces += [_UNICODE_SPACE.sub(" ", sql[position:start]), sql[start:end]]
        position = end
    return "".join(pieces)

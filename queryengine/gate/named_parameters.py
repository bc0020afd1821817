"""
Rewrites parameters written as `:name` to DuckDB's form `$name`.

DuckDB uses colons for other purposes: in casts (`a::INTEGER`), slices (`a[1:b]`), struct and map literals (`{a:b}`),
aliases before their expression (`SELECT a:b`), lambdas (`lambda a:b`) and named arguments (`f(a := b)`). In all of
these, the colon follows an operand or another sign of the same construct. Therefore a colon directly before a name is a
parameter if an operand is expected. DuckDB's grammar has no colon in such a position, so no statement that DuckDB
accepts is changed.

The colon is replaced by `$`, so all positions in the text stay the same.
"""

from typing import Final

from queryengine.gate.lexer import Kind, Scan, lower

#: Reserved words that an operand may follow. After any other word, a colon belongs to an alias.
_BEFORE_OPERAND: Final = frozenset(
    {
        *("select", "distinct", "all", "from", "where", "group", "having", "qualify", "order", "limit", "offset", "by"),
        *("and", "or", "not", "in", "like", "ilike", "glob", "to", "on", "using", "returning", "for", "placing"),
        *("case", "when", "then", "else", "both", "leading", "trailing", "any", "some"),
    }
)
#: Words that can be names, but are operators after an operand.
_OPERATORS: Final = frozenset({"between", "escape", "zone", "similar"})
_STRING, _IDENTIFIER, _NUMBER, _OPENING, _CLOSING, _PUNCTUATION, _OPERATOR = map(
    int,
    (Kind.STRING, Kind.IDENTIFIER, Kind.NUMBER, Kind.OPENING, Kind.CLOSING, Kind.PUNCTUATION, Kind.OPERATOR),
)
_WORDS: Final = frozenset(map(int, (Kind.BODY, Kind.PREFIX, Kind.WORD)))
_NAMES: Final = _WORDS | {_IDENTIFIER, _STRING}


def with_dollar_names(scan: Scan) -> Scan:
    """Return *scan* with each parameter `:name` replaced by `$name`."""
    text = scan.text
    if ":" not in text:
        return scan
    pieces: list[str] = []
    kept = 0
    brackets: list[str] = []  # around the token; "a[" for a subscript
    for index, (kind, start, _, _) in enumerate(scan.spans):
        if kind == _OPENING:
            is_subscript = text[start] == "[" and _ends_operand(scan, index - 1)
            brackets.append("a[" if is_subscript else text[start])
        elif kind == _CLOSING:
            brackets.pop()
        elif kind == _OPERATOR and text[start] == ":" and _is_parameter(scan, index, brackets[-1] if brackets else ""):
            pieces += (text[kept:start], "$")
            kept = start + 1
    if not pieces:
        return scan
    return Scan("".join((*pieces, text[kept:])), scan.spans, scan.separators)


def _is_parameter(scan: Scan, index: int, bracket: str) -> bool:
    """Return whether the colon at *index* begins a parameter. *bracket* is the innermost enclosing bracket."""
    if index == 0 or index + 1 == scan.size:
        return False
    text, (_, start, end, _) = scan.text, scan.spans[index]
    kind, name_start, name_end, _ = scan.spans[index + 1]
    # A dollar sign on either side would begin a dollar-quoted string.
    if kind not in _WORDS or name_start != end or "$" in text[name_start:name_end] or text[start - 1] in ":$":
        return False
    kind, sign = scan.spans[index - 1][0], _text(scan, index - 1)
    if bracket == "a[":
        # A slice has its own colons, and signs for missing bounds (`a[1:-:2]`), so accept only a sign between operands.
        return kind == _OPERATOR and sign not in "?$#:*" and _text(scan, index - 2) not in {":", "["}
    if kind == _OPERATOR:
        return sign not in "?$#"
    if kind == _PUNCTUATION:
        return sign == "," and not _is_in_lambda(scan, index - 1)
    return kind == _OPENING or _comes_before_operand(scan, index - 1, bracket)


def _comes_before_operand(scan: Scan, index: int, bracket: str) -> bool:
    """Return whether the token at *index* is a keyword that an operand follows. For *bracket*, see `_is_parameter`."""
    word = _word(scan, index)
    if word in _OPERATORS:
        return _ends_operand(scan, index - 1 - (_word(scan, index - 1) == "not"))
    # A struct key can be any word.
    return word in _BEFORE_OPERAND and not (bracket == "{" and _text(scan, index - 1) in {"{", ","})


def _is_in_lambda(scan: Scan, comma: int) -> bool:
    """Return whether the comma at index *comma* follows lambda parameters (as in the invalid `lambda a, :b`)."""
    index = comma
    while index > 0 and (_text(scan, index) == "," or scan.spans[index][0] in _NAMES):
        if _word(scan, index) == "lambda":
            return True
        index -= 1
    return False


def _ends_operand(scan: Scan, index: int) -> bool:
    """Return whether the token at *index* ends an operand, so that `[` after it is a subscript."""
    if index < 0:
        return False
    if scan.spans[index][0] in (_STRING, _IDENTIFIER, _NUMBER, _CLOSING):
        return True
    if scan.spans[index][0] not in _WORDS:
        # A star that is not a multiplication selects columns.
        sign = _text(scan, index)
        return sign == "?" or (sign == "*" and not _ends_operand(scan, index - 1))
    return _word(scan, index) not in _BEFORE_OPERAND | {"array", "lambda"}


def _word(scan: Scan, index: int) -> str:
    """Return the lower-case keyword at *index*; empty if there is none. After a dot, `$` or `:`, any word is a name."""
    if index < 0:
        return ""
    kind, start, end, _ = scan.spans[index]
    if kind not in _WORDS or (index > 0 and scan.text[start - 1] in "$:") or _text(scan, index - 1) == ".":
        return ""
    return lower(scan.text[start:end])


def _text(scan: Scan, index: int) -> str:
    if index < 0:
        return ""
    _, start, end, _ = scan.spans[index]
    return scan.text[start:end]

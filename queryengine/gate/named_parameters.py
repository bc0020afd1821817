"""
Parameters that are written `:name`, which DuckDB writes `$name`.

DuckDB has a colon elsewhere: in casts (`a::INTEGER`), slices (`a[1:b]`), struct and map literals (`{a:b}`), aliases
before their expression (`SELECT a:b`), lambdas (`lambda a:b`) and named arguments (`f(a := b)`). In all of these it
follows an operand or another sign of the same form. So a colon directly before a name is a parameter where an operand
is expected: at such a place DuckDB's grammar has no colon, and no statement that it accepts changes.

The colon becomes `$` in its place, so that every position in the text stays what it was.
"""

from typing import Final

from queryengine.gate.lexer import Kind, Scan, lower

#: Reserved words that an operand may follow. After any other word, a colon is that of an alias.
_BEFORE_OPERAND: Final = frozenset(
    {
        *("select", "distinct", "all", "from", "where", "group", "having", "qualify", "order", "limit", "offset", "by"),
        *("and", "or", "not", "in", "like", "ilike", "glob", "to", "on", "using", "returning", "for", "placing"),
        *("case", "when", "then", "else", "both", "leading", "trailing", "any", "some"),
    }
)
#: Words that may be names, and are operators after an operand.
_OPERATORS: Final = frozenset({"between", "escape", "zone", "similar"})
_STRING, _IDENTIFIER, _NUMBER, _OPENING, _CLOSING, _PUNCTUATION, _OPERATOR = map(
    int,
    (Kind.STRING, Kind.IDENTIFIER, Kind.NUMBER, Kind.OPENING, Kind.CLOSING, Kind.PUNCTUATION, Kind.OPERATOR),
)
_WORDS: Final = frozenset(map(int, (Kind.BODY, Kind.PREFIX, Kind.WORD)))
_NAMES: Final = _WORDS | {_IDENTIFIER, _STRING}


def with_dollar_names(scan: Scan) -> Scan:
    """Return *scan* with each parameter `:name` as `$name`."""
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
    """Say whether the colon at *index* begins a parameter. *bracket* is the innermost one around it."""
    if index == 0 or index + 1 == scan.size:
        return False
    text, (_, start, end, _) = scan.text, scan.spans[index]
    kind, name_start, name_end, _ = scan.spans[index + 1]
    # A dollar sign on either side would begin a text in dollar quotes.
    if kind not in _WORDS or name_start != end or "$" in text[name_start:name_end] or text[start - 1] in ":$":
        return False
    kind, sign = scan.spans[index - 1][0], _text(scan, index - 1)
    if bracket == "a[":
        # A slice has colons of its own, and signs for missing bounds (`a[1:-:2]`): only after a sign between operands.
        return kind == _OPERATOR and sign not in "?$#:*" and _text(scan, index - 2) not in {":", "["}
    if kind == _OPERATOR:
        return sign not in "?$#"
    if kind == _PUNCTUATION:
        return sign == "," and not _is_in_lambda(scan, index - 1)
    return kind == _OPENING or _comes_before_operand(scan, index - 1, bracket)


def _comes_before_operand(scan: Scan, index: int, bracket: str) -> bool:
    """Say whether the token at *index* is a keyword that an operand follows. *bracket* is as in `_is_parameter`."""
    word = _word(scan, index)
    if word in _OPERATORS:
        return _ends_operand(scan, index - 1 - (_word(scan, index - 1) == "not"))
    # The key of a struct may be any word.
    return word in _BEFORE_OPERAND and not (bracket == "{" and _text(scan, index - 1) in {"{", ","})


def _is_in_lambda(scan: Scan, comma: int) -> bool:
    """Say whether the comma at index *comma* follows parameters of a lambda (`lambda a, :b`, with one too many)."""
    index = comma
    while index > 0 and (_text(scan, index) == "," or scan.spans[index][0] in _NAMES):
        if _word(scan, index) == "lambda":
            return True
        index -= 1
    return False


def _ends_operand(scan: Scan, index: int) -> bool:
    """Say whether the token at *index* ends an operand, so that `[` after it is a subscript."""
    if index < 0:
        return False
    if scan.spans[index][0] in (_STRING, _IDENTIFIER, _NUMBER, _CLOSING):
        return True
    if scan.spans[index][0] not in _WORDS:
        # A star that is not a product selects columns.
        sign = _text(scan, index)
        return sign == "?" or (sign == "*" and not _ends_operand(scan, index - 1))
    return _word(scan, index) not in _BEFORE_OPERAND | {"array", "lambda"}


def _word(scan: Scan, index: int) -> str:
    """Return the keyword at *index* in lower case; empty if there is none. After a dot or mark, any word is a name."""
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

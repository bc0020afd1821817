"""
Writes the text that is sent to a cluster, and checks that it has no other elements.

Engines interpret backslashes, doubled quotes and dollar signs differently. The text contains none of them where that
matters, so every engine splits it into the same tokens.
"""

import re
from collections.abc import Callable, Container, Mapping
from typing import Final

from queryengine.errors import SqlSyntaxError, StatementNotAllowedError
from queryengine.gate.lexer import check_number, check_text, lower

#: The delimiter of text that `binding.bound` replaces. Statements with a NUL are refused, so callers cannot write it.
MARK: Final = "\0"

MAX_TOKENS: Final = 50_000
MAX_NESTING: Final = 200

#: Characters written by number: control characters, quotes, backslash, dollar sign, and everything outside ASCII.
_ESCAPED: Final = re.compile(r"[^ !#%&(-\[\]-_a-~]")

#: Unclosed elements extend to the end, so that nothing is read twice.
_TOKEN: Final = re.compile(
    r"""
    ['] (?: [^'\\]++ | \\. )*+ '? | ["] (?: [^"\\]++ | \\. )*+ "? | ` [^`]*+ `? | --[^\n]*+ | /\* (?: .*? \*/ | .* )
    | ([(\[{]) | ([)\]}]) | \w++ | \S
    """,
    re.VERBOSE | re.DOTALL,
)

_GENERATED: Final = re.compile(
    rf"""
    [ ]*+
    (?: (?: [Xx]? ' (?: [ !#%&(-\[\]-_a-~]++ | \\u[0-9A-F]{{4}} | \\U[0-9A-F]{{8}} )*+ ' ) (?!['"`\w])
      | ` [^`\x00-\x1f\x7f]++ ` (?!`)
      | {MARK} [a-z_]+ : (?: [a-z0-9_]+ (?: \. [a-z0-9_]+ )? )? {MARK}
      | (?: [0-9]++ (?: \. [0-9]*+ )? | \. [0-9]++ ) (?: [eE] [+-]? [0-9]++ )? (?!\w)
      | : _ [A-Za-z0-9_]++
      | (?P<word> [A-Za-z_][A-Za-z0-9_]*+ ) (?!['"`\\$])
      | -> | <=> | <> | <= | >= | \|\| | << | >> | (?: - (?!-) ) | (?: / (?!\*) ) | :[ ] | [=<>+*%&|^~!(),.\[\]]
    )
    """,
    re.VERBOSE,
)


def literal(value: str) -> str:
    """Return the literal of a string in single quotes, without quotes or backslashes inside it."""
    return f"'{_ESCAPED.sub(_by_number, value)}'"


def quoted_name(name: str) -> str:
    """
    Return *name* in backticks.

    Raises:
        SqlSyntaxError: The name has characters that not every engine reads literally.
    """
    if not name or "`" in name or "${" in name or any(ord(character) < 32 or character == "\x7f" for character in name):
        raise SqlSyntaxError("A name must not be empty or contain a backtick, ${ or a control character.")
    return f"`{name}`"


def marker(kind: str, name: str = "") -> str:
    """Return the placeholder for text that `binding.bound` fills in."""
    return f"{MARK}{kind}:{name}{MARK}"


def with_markers_replaced(text: str, replace: Callable[[str, str], str]) -> str:
    """Return *text* with each marker replaced by the result of *replace* for its kind and name."""
    pieces = text.split(MARK)
    for index in range(1, len(pieces), 2):
        kind, _, name = pieces[index].partition(":")
        pieces[index] = replace(kind, name)
    return "".join(pieces)


def check_size(sql: str) -> None:
    """
    Check the characters, length and nesting of *sql*, which is possible before parsing.

    Raises:
        SqlSyntaxError: The SQL exceeds a limit or cannot be encoded.
    """
    if MARK in sql:
        raise SqlSyntaxError("The statement contains a NUL character: write chr(0) instead.")
    check_text(sql)
    depth = 0
    for count, match in enumerate(_TOKEN.finditer(sql)):
        if count == MAX_TOKENS:
            raise SqlSyntaxError(
                f"The statement is too long: {MAX_TOKENS:,} words, values and symbols at most. Send a long list of "
                "values as one parameter."
            )
        if group := match.lastindex:
            depth += 1 if group == 1 else -1
            if depth > MAX_NESTING:
                raise SqlSyntaxError(f"The statement is nested too deeply: the limit is {MAX_NESTING} brackets.")
        elif sql[match.start()].isdecimal():
            check_number(match.end() - match.start())


def check_generated(text: str, words: Container[str]) -> None:
    """
    Check that *text* has only literals, quoted names, markers, numbers, operators, and *words* (in lower case).

    Raises:
        StatementNotAllowedError: The text contains something else, which would be a bug in the generator.
    """
    position, end = 0, len(text.rstrip(" "))
    while position < end:
        match = _GENERATED.match(text, position)
        if match is None or ((word := match["word"]) is not None and lower(word) not in words):
            raise StatementNotAllowedError("The statement has a construct that is not allowed here.")
        position = match.end()


def _by_number(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\u{number:04X}" if number < 0x10000 else f"\\U{number:08X}"


#: Text that looks like a path or a URI: a slash before a character that can be part of a name.
_PATH: Final = re.compile(r"[^\s\[\](){},<>;=`'\"]*/[^\s\[\](){},*]+")


def shown(plan: str, names: Mapping[str, str]) -> str:
    """
    Return *plan* with view names replaced by declared names. *names* maps view names to declared names.

    Text that looks like a path is removed, because the cluster's storage is not the caller's.
    """
    plan = _PATH.sub("<path>", plan)
    for view in sorted(names, key=len, reverse=True):  # One name may begin with another.
        plan = plan.replace(view, names[view])
    return plan

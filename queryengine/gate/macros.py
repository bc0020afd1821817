"""
The DataFusion functions that a session defines as macros, from the definitions in `datafusion_macros.sql`.

The gate checks a macro call by its name. Tests pass the bodies through the gate to ensure that they call only functions
that callers may use.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import Final

from msgspec import Struct

from queryengine.gate.lexer import Kind, Token, scan

#: The prefix of names that only macros and rewritten statements use.
INTERNAL: Final = "df_"

#: The DuckDB macros that our macros call, and how often each repeats an argument.
_COPIES: Final[Mapping[str, int]] = {"array_to_string": 2, "array_pop_back": 2, "nullif": 2}


class Macro(Struct, frozen=True):
    """
    A macro, with the `definition` to write after CREATE MACRO.

    `calls` are the macros that it calls. In the engine's plan, an argument of the macro occurs up to `copies` times,
    and the rest has about `size` nodes.
    """

    name: str
    definition: str
    calls: frozenset[str]
    copies: int
    size: int


@cache
def macros() -> Mapping[str, Macro]:
    """Return the macros by name. Each macro comes after those that it calls."""
    found: dict[str, Macro] = {}
    whole = scan(files("queryengine.gate").joinpath("datafusion_macros.sql").read_text(encoding="utf-8"))
    for before, end in pairwise([-1, *whole.separators]):
        tokens = whole.tokens[before + 1 : end]
        copies, size = _weight(tokens, found)
        found[tokens[0].text] = Macro(
            name=tokens[0].text,
            definition=whole.text[tokens[0].start : tokens[-1].end],
            calls=frozenset(token.text for token in tokens[1:]) & found.keys(),
            copies=copies,
            size=size,
        )
    return found


def called_in(*statements: str) -> tuple[Macro, ...]:
    """Return the macros `needed` by *statements*, which the gate has admitted. The result may include unused macros."""
    return needed({token.name for sql in statements for token in scan(sql).tokens if token.name})


def needed(names: Iterable[str]) -> tuple[Macro, ...]:
    """Return the macros among *names* and those that they call. Each macro comes after those that it calls."""
    chosen: set[str] = set()
    for macro in reversed([*macros().values()]):
        if macro.name in names or macro.name in chosen:
            chosen |= {macro.name, *macro.calls}
    return tuple(macro for macro in macros().values() if macro.name in chosen)


def _weight(tokens: tuple[Token, ...], earlier: Mapping[str, Macro]) -> tuple[int, int]:
    """
    Return the maximum `copies` and `size` over all forms of a definition.

    An argument of another macro counts as often as that macro repeats it.
    """
    copies = size = most_size = 1
    arguments, is_list = dict[str, int](), True
    repeats = [1]
    for before, token in pairwise(tokens):
        called = earlier.get(token.text)
        size += called.size if called else 1
        if token.kind is Kind.OPENING:
            if token.depth == 0 and (before is tokens[0] or before.text == ","):
                arguments, is_list, size = {}, True, 1
            called = earlier.get(before.text)
            repeats.append(repeats[-1] * (called.copies if called else _COPIES.get(before.text, 1)))
        elif token.kind is Kind.CLOSING:
            repeats.pop()
            is_list = is_list and token.depth > 0
        elif is_list:
            arguments |= {} if token.text == "," else {token.text: 0}
        elif token.word == "lambda":  # The planner processes the inside twice.
            repeats[-1] *= 2
        elif token.text in arguments:
            arguments[token.text] += repeats[-1]
            copies = max(copies, arguments[token.text])
        most_size = max(most_size, size)
    return copies, most_size

"""
Secret references in configured text: `${ store:name }`.

A text is expanded once: the value of a secret is never expanded again. A text that only looks like a reference is an
error, never a literal.
"""

import re
from collections.abc import Callable

#: The store name that means every store.
ALL_STORES = "secrets"

STORE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
# The name of a secret is one path component and never hidden: no slash, no leading dot.
_REFERENCE = re.compile(rf"\$\{{\s*({STORE_NAME.pattern})\s*:\s*([A-Za-z0-9_][A-Za-z0-9_.-]*)\s*\}}")
# A misspelt reference: `$ {`, `${{`, `$(store:`, `{ store:`, and `secrets:` on its own.
_LOOKS_LIKE_REFERENCE = re.compile(
    r"\$\s*\{ | [{(\[<%]\s*[A-Za-z][\w-]*\s*:\s*[\w.-]+\s*[})\]>%] | \bsecrets\s*: ", re.VERBOSE | re.IGNORECASE
)


class MalformedReferenceError(Exception):
    """A text looks like a reference but is not one. The message holds nothing of the text."""

    def __init__(self) -> None:
        super().__init__("holds a malformed secret reference: write it as ${ secrets:name } or ${ store:name }")


def check(text: str) -> None:
    """Raise MalformedReferenceError if *text* outside its references looks like a reference."""
    literals = _REFERENCE.split(text)[::3]  # each match adds the store and the name between two literals
    if any(map(_LOOKS_LIKE_REFERENCE.search, literals)):
        raise MalformedReferenceError


def expand(text: str, resolve: Callable[[str, str], str]) -> str:
    """Replace each reference by *resolve*(store, name), verbatim. Errors of *resolve* propagate."""
    return _REFERENCE.sub(lambda match: resolve(match[1], match[2]), text)


def holds_reference(text: str) -> bool:
    """Return whether *text* holds at least one well-formed reference."""
    return _REFERENCE.search(text) is not None

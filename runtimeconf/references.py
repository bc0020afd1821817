"""
Secret references in configured text: `${ store:name }`.

A text is parsed once into literal parts and references, and expanded once: the value of a secret is never expanded
again. A text that only looks like a reference is an error, never a literal.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

#: The store name that stands for every store.
ALL_STORES = "secrets"

STORE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
# One path component and never hidden: no slash, no leading dot.
SECRET_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")

_REFERENCE = re.compile(rf"\$\{{\s*({STORE_NAME.pattern})\s*:\s*({SECRET_NAME.pattern})\s*\}}")
# A misspelt reference: `$ {`, `${{`, `$(store:`, `{ store:`, and `secrets:` on its own.
_LOOKS_LIKE_REFERENCE = re.compile(
    r"\$\s*\{ | [{(\[<%]\s*[A-Za-z][\w-]*\s*:\s*[\w.-]+\s*[})\]>%] | \bsecrets\s*: ", re.VERBOSE | re.IGNORECASE
)


class MalformedReferenceError(Exception):
    """A text looks like a reference but is not one. The message holds nothing of the text."""

    def __init__(self) -> None:
        super().__init__("holds a malformed secret reference: write it as ${ secrets:name } or ${ store:name }")


@dataclass(frozen=True, slots=True)
class Reference:
    """One reference: the secret *name* of *store*, or of all stores when that is ALL_STORES."""

    store: str
    name: str


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed text: literal parts (`str`) and references, in order."""

    parts: tuple[str | Reference, ...] = field(repr=False)

    @property
    def references(self) -> tuple[Reference, ...]:
        """The references, in order."""
        return tuple(part for part in self.parts if isinstance(part, Reference))

    def expand(self, resolve: Callable[[Reference], str]) -> str:
        """Replace each reference by its value, verbatim. Errors of *resolve* propagate."""
        return "".join(resolve(part) if isinstance(part, Reference) else part for part in self.parts)


def parse(text: str) -> Template:
    """
    Split *text* into literal parts and references.

    Raises:
        MalformedReferenceError: A literal part looks like a reference.
    """
    parts: list[str | Reference] = []
    position = 0
    for match in _REFERENCE.finditer(text):
        parts += [text[position : match.start()], Reference(match[1], match[2])]
        position = match.end()
    parts.append(text[position:])
    if any(isinstance(part, str) and _LOOKS_LIKE_REFERENCE.search(part) for part in parts):
        raise MalformedReferenceError
    return Template(tuple(part for part in parts if part != ""))


def holds_reference(text: str) -> bool:
    """Return whether *text* holds at least one well-formed reference."""
    return _REFERENCE.search(text) is not None

"""How `from:` names a table of a database: parts between dots, a part in double quotes where it holds a dot."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from runtimeconf.fields import UnfitError

_PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')

_PART_IN_QUOTES = re.compile(r'"(?:[^"]|"")*"')
#: What ends the password before a host, and what begins the value of a parameter.
_CREDENTIALS = re.compile("[=@]")


def table_parts(text: str) -> tuple[str, ...]:
    """
    Give the parts of a name such as `schema.table` or `"My schema"."a.b"`, exactly as written: case is kept.

    Raises:
        UnfitError: It is no such name.
    """
    parts = []
    position = 0
    while match := _PART.match(text, position):
        parts.append(match[1].replace('""', '"') if match[1] else match[2])
        position = match.end()
        if position == len(text):
            return tuple(parts)
        if text[position] != ".":
            break
        position += 1
    raise UnfitError('parts between dots; a part that holds a dot or a quote stands in double quotes: "a.b"')


def table_locator(max_parts: int, where: str) -> Callable[[str, Path], str]:
    """
    Make the `locate` of a connector whose tables have names of at most *max_parts* parts.

    *where* names the parameters that hold what a URL would: such a URL is refused without showing it, since it may
    hold a password.
    """

    def locate(text: str, _directory: Path) -> str:
        if text.startswith("//") or "://" in text:
            raise UnfitError(f"not a URL: {where}")
        if _CREDENTIALS.search(_PART_IN_QUOTES.sub("", text)):
            raise UnfitError(f"not a URL: {where}; a part that holds = or @ stands in double quotes")
        if len(table_parts(text)) > max_parts:
            raise UnfitError(f"at most {max_parts} parts")
        return text

    return locate

"""Database table names in `from:`: parts separated by dots. A part that contains a dot is in double quotes."""

import re
from pathlib import Path

from runtimeconf.fields import InvalidValueError

_PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')

_PART_IN_QUOTES = re.compile(r'"(?:[^"]|"")*"')
#: `@` separates a password from a host, and `=` precedes the value of a parameter.
_CREDENTIALS = re.compile("[=@]")


def table_parts(text: str) -> tuple[str, ...]:
    """
    Return the parts of a name such as `schema.table` or `"My schema"."a.b"`, with their case preserved.

    Raises:
        InvalidValueError: *text* is not such a name.
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
    raise InvalidValueError('parts between dots; put a part with a dot or a quote in double quotes: "a.b"')


def locate_table(max_parts: int, where: str, _name: str, text: str, _directory: Path) -> str:
    """
    Return *text* if it is a table name with at most *max_parts* parts.

    A URL is refused without showing it, because it may contain a password. *where* names the parameters to use instead.
    """
    if text.startswith("//") or "://" in text:
        raise InvalidValueError(f"not a URL: {where}")
    if _CREDENTIALS.search(_PART_IN_QUOTES.sub("", text)):
        raise InvalidValueError(f"not a URL: {where}; put a part with = or @ in double quotes")
    if len(table_parts(text)) > max_parts:
        raise InvalidValueError(f"at most {max_parts} parts")
    return text

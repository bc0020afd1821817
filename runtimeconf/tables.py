"""The names of database tables in `from:`: parts separated by dots, a part with a dot in double quotes."""

import re
from pathlib import Path

from runtimeconf.fields import InvalidValueError

_PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')

_PART_IN_QUOTES = re.compile(r'"(?:[^"]|"")*"')
#: `@` ends the password before a host, and `=` precedes the value of a parameter.
_CREDENTIALS = re.compile("[=@]")


def table_parts(text: str) -> tuple[str, ...]:
    """
    Return the parts of a name such as `schema.table` or `"My schema"."a.b"`, with their case.

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
    raise InvalidValueError('dot-separated parts; put a part that contains a dot or a quote in double quotes: "a.b"')


def locate_table(max_parts: int, where: str, _name: str, text: str, _directory: Path) -> str:
    """
    Return *text*, the name of a table with at most *max_parts* parts.

    A URL is refused without showing it, because it may hold a password. *where* names the parameters to use instead.
    """
    if text.startswith("//") or "://" in text:
        raise InvalidValueError(f"not a URL: {where}")
    if _CREDENTIALS.search(_PART_IN_QUOTES.sub("", text)):
        raise InvalidValueError(f"not a URL: {where}; put a part that contains = or @ in double quotes")
    if len(table_parts(text)) > max_parts:
        raise InvalidValueError(f"at most {max_parts} parts")
    return text

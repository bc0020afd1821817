"""Parse media types and lists in headers (RFC 9110, 8.3.1 and 5.6). Malformed input is ignored, not an error."""

import re

_TCHARS = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_PARAMETER = re.compile(rf"[ \t]*;[ \t]*(?:({_TCHARS})=({_TCHARS}|{_QUOTED}))?", re.DOTALL)
_ITEM = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*"?)+', re.DOTALL)
_MEDIA_TYPE = re.compile(rf"[ \t]*({_TCHARS}/{_TCHARS})")


def parse_media_type(text: str) -> tuple[str, dict[str, str]] | None:
    """
    Return the type and its parameters, with type and names in lower case; None if *text* is not a media type.

    The first of several parameters with one name counts.
    """
    found = _MEDIA_TYPE.match(text)
    if found is None:
        return None
    parameters: dict[str, str] = {}
    position = found.end()
    while parameter := _PARAMETER.match(text, position):
        position = parameter.end()
        name, value = parameter.groups()
        if name:
            if value.startswith('"'):
                value = re.sub(r"\\(.)", r"\1", value[1:-1], flags=re.DOTALL)
            parameters.setdefault(name.lower(), value)
    if text[position:].strip(" \t"):
        return None
    return found[1].lower(), parameters


def split_list(text: str) -> list[str]:
    """Return the items of a comma-separated header; commas within quotes do not separate."""
    return [item[0] for item in _ITEM.finditer(text)]

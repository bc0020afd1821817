"""Adds items to a list in a YAML file. Everything else, including comments, stays as it was written."""

from collections.abc import Sequence
from textwrap import indent
from typing import Any

import yaml


class NotEditableError(Exception):
    """The list cannot be extended in place. `str()` is the reason."""


def append_items(text: str, name: str, items: str) -> str:
    """
    Append to a list at the top level of a document, and return the new text.

    Args:
        text: One YAML document.
        name: The name of the list. Without it, the list is added at the end.
        items: The new items in block style, without indentation; each line ends with a line feed.

    Raises:
        NotEditableError: The text is not YAML, or its structure has no obvious place for the items.
    """
    try:
        # The type annotations of the events lack the marks, which yaml.parse always sets.
        events: list[Any] = list(yaml.parse(text, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError, ValueError) as exc:
        raise NotEditableError("it is not valid YAML") from exc
    if sum(isinstance(event, yaml.DocumentStartEvent) for event in events) > 1:
        raise NotEditableError("it has several documents")
    content = events[2:-2]  # without the events of the stream and of its document
    added = f"{name}:\n{indent(items, '  ')}"
    if not content:  # an empty stream has no document
        return _inserted(text, len(text), added)
    if not isinstance(content[0], yaml.MappingStartEvent) or content[0].flow_style:
        raise NotEditableError("its top level is not a mapping in block style")
    value = _value_of(content, name)
    if not value:
        if events[-2].explicit:
            raise NotEditableError("its end is marked with ...")
        return _inserted(text, len(text), added)
    first, start, end = value[0], value[0].start_mark, value[-1].end_mark
    if isinstance(first, yaml.SequenceStartEvent) and not first.flow_style and first.implicit and not first.anchor:
        return _inserted(text, _end(text, value), indent(items, " " * start.column))
    if isinstance(first, yaml.ScalarEvent) and start.index == end.index:  # nothing after the colon
        return _inserted(text, _end(text, value), indent(items, "  "))
    raise NotEditableError(f"{name} is not a list in block style, with a dash before each item")


def _value_of(content: Sequence[Any], name: str) -> Sequence[Any]:
    """Return the events of the value called *name* in the mapping *content*; none if there is no such name."""
    depth, start, is_key, is_found = 0, 1, True, False
    for index, event in enumerate(content[1:-1], 1):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth:
            continue
        if is_found:
            return content[start : index + 1]
        is_found = is_key and isinstance(event, yaml.ScalarEvent) and event.value == name
        is_key, start = not is_key, index + 1
    return ()


def _end(text: str, value: Sequence[Any]) -> int:
    """Return the position of the line after *value*. The value's own end mark is after later comments."""
    spans = ((event.start_mark, event.end_mark, event) for event in reversed(value))
    mark = next(
        end
        for start, end, event in spans
        if not isinstance(event, yaml.CollectionEndEvent) or end.index > start.index  # the bracket of a flow collection
    )
    if mark.column == 0:  # A block scalar ends at the beginning of a line.
        return int(mark.index)
    return text.find("\n", mark.index) + 1 or len(text)


def _inserted(text: str, at: int, added: str) -> str:
    before, after = text[:at], text[at:]
    if before and not before.endswith("\n"):
        before += "\n"
    result = before + added + after
    # Use the file's line endings: Windows ends lines with two characters.
    return result.replace("\r\n", "\n").replace("\n", "\r\n") if "\r\n" in text else result

"""The nodes of a YAML document: its text and lines, before any value is interpreted."""

from msgspec import Struct

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})


class _Node(Struct, frozen=True):
    """A node, which begins on *line*, counted from 1. Its `repr` shows no text of the file."""

    line: int

    def __repr__(self) -> str:
        return f"{type(self).__name__}(line={self.line})"


class Scalar(_Node, frozen=True):
    """
    The text of one value, with only quotes and escapes resolved.

    `line` counts from 1. `is_plain` distinguishes `true` from `"true"`. `may_be_shown` is false for a value with an
    anchor, because an alias may repeat the value below `auth`. No error shows such a value. If the value has several
    lines that YAML may join, `written` has the lines of the file that contain it; otherwise it is empty.
    """

    text: str
    is_plain: bool
    may_be_shown: bool = True
    written: str = ""

    @property
    def is_null(self) -> bool:
        """Whether the value is missing or is one of YAML's words for null (`~`, `null`)."""
        return self.is_plain and self.text in _NULLS


class Sequence(_Node, frozen=True):
    """A list; `line` counts from 1."""

    items: "tuple[Node, ...]"


class Entry(_Node, frozen=True):
    """One field of a mapping. `line` is the line of its name. See `Scalar.may_be_shown` for `name_may_be_shown`."""

    name: str
    value: "Node"
    name_may_be_shown: bool = True


class Mapping(_Node, frozen=True):
    """A mapping with distinct names, in file order; `line` counts from 1."""

    entries: tuple[Entry, ...]

    def get(self, name: str) -> "Node | None":
        """Return the value of a field; None if it is missing."""
        return next((entry.value for entry in self.entries if entry.name == name), None)

    def line_of(self, name: str) -> int:
        """Return the line of a field, or the line of the mapping if the field is missing."""
        return next((entry.line for entry in self.entries if entry.name == name), self.line)


Node = Scalar | Sequence | Mapping

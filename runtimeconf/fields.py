"""
Shapes: what a value of the configuration may look like, and how its text becomes a value.

A shape reads a node into a typed value. When it cannot, it records a fault and gives None, and reading goes on with
the rest, so that one pass finds everything. Nothing is read from a shape's class name: `expected` is the one text
that faults and the documents show.
"""

from __future__ import annotations

import ipaddress
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Generic, TypeVar

from runtimeconf import references
from runtimeconf.reading import Place, nearest, shown_name
from runtimeconf.yaml_reader import Entry, Mapping, Node, Scalar, Sequence
from system.addresses import Address

T = TypeVar("T")


class Shape(ABC, Generic[T]):
    """What one value may look like."""

    #: What is expected, as a noun phrase: "a duration such as 30s".
    expected: str

    @abstractmethod
    def read(self, node: Node, place: Place) -> T | None:
        """Give the value, or record a fault at *place* and give None."""

    def walk(self, path: str) -> Iterator[tuple[str, Shape[Any]]]:
        """All YAML paths from *path* on, with their shapes; `[]` stands for an item of a list."""
        yield path, self


class UnfitError(Exception):
    """A text is not of the shape; the message is a hint for people, or empty. It never holds the text."""


class ScalarShape(Shape[T]):
    """A single value, made from its source text by `convert`."""

    def read(self, node: Node, place: Place) -> T | None:
        """Convert the text of a scalar that is not null."""
        hint = ""
        if isinstance(node, Scalar) and not node.is_null:
            try:
                return self.convert(node)
            except UnfitError as exc:
                hint = str(exc)
        elif isinstance(node, Scalar):
            place.fault(node.line, f"is empty: it must be {self.expected}, or be left out")
            return None
        elif isinstance(node, Mapping) and any(entry.name.startswith("$") for entry in node.entries):
            hint = 'quote a text that holds ": ", or leave the space out'
        message = f"must be {self.expected}; found {place.found(node)}"
        place.fault(node.line, f"{message} ({hint})" if hint else message)
        return None

    @abstractmethod
    def convert(self, node: Scalar) -> T:
        """
        Give the value of the text.

        Raises:
            UnfitError: The text is not of this shape.
        """


class Boolean(ScalarShape[bool]):
    """`true` or `false`, as YAML 1.2 spells them: not `yes`, not `on`, not in quotes."""

    expected = "true or false"
    _values = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}

    def convert(self, node: Scalar) -> bool:
        """Take the six spellings of YAML 1.2."""
        if node.text not in self._values:
            raise UnfitError
        if not node.is_plain:
            raise UnfitError("without quotes")
        return self._values[node.text]


class Integer(ScalarShape[int]):
    """A whole number within bounds, both included."""

    def __init__(self, minimum: int, maximum: int) -> None:
        self._minimum, self._maximum = minimum, maximum
        self.expected = f"a whole number from {minimum} to {maximum}"

    def convert(self, node: Scalar) -> int:
        """Take decimal digits only: `010`, `1_000` and `0x10` mean different numbers to different YAML readers."""
        if not node.is_plain:
            raise UnfitError("without quotes")
        if re.fullmatch(r"0|[1-9][0-9]{0,17}", node.text) is None:
            raise UnfitError
        value = int(node.text)
        if not self._minimum <= value <= self._maximum:
            raise UnfitError
        return value


class _Quantity:
    """A decimal number with one of several units, as an exact multiple of the smallest."""

    _text = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)")

    def __init__(self, units: dict[str, Decimal]) -> None:
        self._units = units

    def parse(self, text: str) -> Decimal:
        """Give the quantity in the unit whose factor is 1. Raises UnfitError."""
        match = self._text.fullmatch(text)
        if match is None:
            raise UnfitError
        number, unit = match.groups()
        if unit not in self._units:
            names = ", ".join(name for name in self._units if name)
            raise UnfitError(f"the units are {names}" if unit else f"add a unit, one of {names}")
        return Decimal(number) * self._units[unit]


_DURATION = _Quantity(
    {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600), "d": Decimal(86400)}
)
_SIZE = _Quantity(
    {
        "": Decimal(1),
        "B": Decimal(1),
        **{f"{prefix}B": Decimal(1000**power) for power, prefix in enumerate("kMGT", 1)},
        "KB": Decimal(1000),
        **{f"{prefix}iB": Decimal(1024**power) for power, prefix in enumerate("KMGT", 1)},
    }
)


class Duration(ScalarShape[float]):
    """A time span in seconds, written with a unit; bounds included."""

    def __init__(self, minimum: str, maximum: str) -> None:
        self._minimum, self._maximum = _DURATION.parse(minimum), _DURATION.parse(maximum)
        self.expected = f"a duration such as 30s, 500ms, 1.5m, 1h or 1d, from {minimum} to {maximum}"

    def convert(self, node: Scalar) -> float:
        """Give seconds."""
        return self.parse(node.text)

    def parse(self, text: str) -> float:
        """Give the seconds of a text. Raises UnfitError."""
        value = _DURATION.parse(text)
        if not self._minimum <= value <= self._maximum:
            raise UnfitError
        return float(value)


class Size(ScalarShape[int]):
    """A number of bytes, with or without a unit; bounds included."""

    def __init__(self, minimum: str, maximum: str) -> None:
        self._minimum, self._maximum = _SIZE.parse(minimum), _SIZE.parse(maximum)
        self.expected = f"a size in bytes such as 1048576, 128MiB or 1GiB, from {minimum} to {maximum}"

    def convert(self, node: Scalar) -> int:
        """Give bytes; a fraction of a unit is fine when it comes to whole bytes."""
        value = _SIZE.parse(node.text)
        if value != int(value):
            raise UnfitError("not a whole number of bytes")
        if not self._minimum <= value <= self._maximum:
            raise UnfitError
        return int(value)


class Choice(ScalarShape[str]):
    """One of a few words, quoted or not, read as source text (so that `1.10` is not `1.1`)."""

    def __init__(self, *words: str) -> None:
        self._words = words
        self.expected = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"

    def convert(self, node: Scalar) -> str:
        """Give the word."""
        if node.text not in self._words:
            meant = nearest(node.text, self._words)
            raise UnfitError(f"did you mean {meant}?" if meant else "")
        return node.text


class Text(ScalarShape[str]):
    """A text that is not blank, of at most *max_length* characters, in which nothing is expanded."""

    def __init__(self, expected: str, *, max_length: int = 1000, may_have_lines: bool = False) -> None:
        self.expected = expected
        self._max_length = max_length
        self._may_have_lines = may_have_lines

    def convert(self, node: Scalar) -> str:
        """Give the text as it is."""
        if not node.text.strip():
            raise UnfitError("it is blank")
        if len(node.text) > self._max_length:
            raise UnfitError(f"it is longer than {self._max_length:,} characters")
        if not self._may_have_lines and not node.text.isprintable():
            raise UnfitError("it holds a control character")
        if references.holds_reference(node.text):
            raise UnfitError("a secret reference is resolved in API keys and dataset params only")
        return node.text


class FilePath(Text):
    """A path as it is written; a relative one begins beside the YAML."""

    def __init__(self, expected: str) -> None:
        super().__init__(expected, max_length=4096)


_HOST_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")


def parse_host(text: str) -> str:
    """
    Give a host name or IP address in lower case; an IPv6 address without brackets.

    Raises:
        UnfitError: It is neither.
    """
    if ":" in text:
        try:
            return str(ipaddress.IPv6Address(text))
        except ValueError:
            raise UnfitError("not an IPv6 address") from None
    labels = text.removesuffix(".").split(".")
    if labels[-1].isdecimal():  # by the rules of URLs such a host is an IPv4 address, or nothing
        try:
            return str(ipaddress.IPv4Address(text))
        except ValueError:
            raise UnfitError("not an IPv4 address") from None
    if len(text) > 253 or not all(_HOST_LABEL.fullmatch(label) for label in labels):
        raise UnfitError("not a host name")
    return text.lower()


class HostPort(ScalarShape[Address]):
    """`host:port`, an IPv6 host in brackets; port 0 lets the system choose one."""

    expected = "an address such as 127.0.0.1:8090 or [::1]:8090, with a port from 0 to 65535"

    def convert(self, node: Scalar) -> Address:
        """Give the address."""
        match = re.fullmatch(r"(?:\[([^\[\]]*:[^\[\]]*)\]|([^\[\]:]+)):([0-9]{1,5})", node.text, re.ASCII)
        if match is None:
            is_bare_ipv6 = re.fullmatch(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f.]*:[0-9]+", node.text) is not None
            raise UnfitError("put an IPv6 host in brackets" if is_bare_ipv6 else "")
        port = int(match[3])
        if port > 65535:
            raise UnfitError
        return Address(parse_host(match[1] or match[2]), port)


class HostName(ScalarShape[str]):
    """
    A host as a `Host` header names it: lower case, an IPv6 address in brackets.

    With a port it stands for that port only; `*` stands for every host.
    """

    expected = "a host name or IP address, with or without a port, or *"

    def convert(self, node: Scalar) -> str:
        """Give the host as it is compared."""
        if node.text == "*":
            return node.text
        match = re.fullmatch(r"(?:\[([^\[\]]*:[^\[\]]*)\]|([^\[\]:]+))(?::([0-9]{1,5}))?", node.text, re.ASCII)
        if match is None:
            return str(Address(parse_host(node.text), 0)).removesuffix(":0")  # perhaps IPv6 without brackets
        port = f":{int(match[3])}" if match[3] else ""
        if port and not 0 < int(match[3]) <= 65535:
            raise UnfitError("a port is from 1 to 65535")
        host = parse_host(match[1] or match[2]).removesuffix(".")
        return (f"[{host}]" if ":" in host else host) + port


class ListOf(Shape[tuple[T, ...]]):
    """A list of one shape. Items at fault are left out of the value, so that the others are still checked."""

    def __init__(self, item: Shape[T], *, minimum: int = 0) -> None:
        self._item = item
        self._minimum = minimum
        self.expected = "a list"

    def read(self, node: Node, place: Place) -> tuple[T, ...] | None:
        """Read every item."""
        if not isinstance(node, Sequence):
            if isinstance(node, Scalar) and node.is_null:
                place.fault(node.line, "is empty: it must be a list, one item a line after a dash, or be left out")
            else:
                place.fault(node.line, f"must be a list, one item a line after a dash; found {place.found(node)}")
            return None
        if len(node.items) < self._minimum:
            place.fault(node.line, f"is an empty list: give at least {self._minimum}, or leave it out")
        values = (self._item.read(item, place.item(index)) for index, item in enumerate(node.items))
        return tuple(value for value in values if value is not None)

    def walk(self, path: str) -> Iterator[tuple[str, Shape[Any]]]:
        """This list, and the fields of its items when they have some."""
        yield path, self
        inner = list(self._item.walk(f"{path}[]"))
        yield from inner if len(inner) == 1 else inner[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a section: its name in the YAML, and the attribute of the value it becomes."""

    name: str
    shape: Shape[Any]
    attribute: str = ""
    is_required: bool = False
    alias: str = ""


#: Makes the value of a section from what its fields gave; may record faults of its own and give None.
Build = Callable[[dict[str, Any], Mapping, Place], T | None]


class Section(Shape[T]):
    """
    A mapping with known fields. A field that is left out is left out of the values: defaults live in the model.

    Fields are read in the order given here, whatever their order in the file.
    """

    expected = "a mapping"

    def __init__(self, build: Build[T], *fields: Field, may_be_empty: bool = True) -> None:
        self._build = build
        self.fields = fields
        self._may_be_empty = may_be_empty

    def read(self, node: Node, place: Place) -> T | None:
        """Read all fields; give None when the mapping or a required field of it is missing or at fault."""
        if not isinstance(node, Mapping):
            if isinstance(node, Scalar) and node.is_null:
                place.fault(node.line, "is empty: fill it in, or leave it out")
            else:
                place.fault(node.line, f"must be a mapping; found {place.found(node)}")
            return None
        if not node.entries and not self._may_be_empty:
            place.fault(node.line, "is empty: fill it in, or leave it out")
            return None
        entries = self._known_entries(node, place)
        values: dict[str, Any] = {}
        is_complete = True
        for field in self.fields:
            entry = entries.get(field.name)
            value = field.shape.read(entry.value, place.field(entry.name)) if entry is not None else None
            if value is not None:
                values[field.attribute or field.name] = value
            elif field.is_required:
                is_complete = False
                if entry is None:
                    place.fault(node.line, f"lacks the field {field.name}: {field.shape.expected}")
        return self._build(values, node, place) if is_complete else None

    def walk(self, path: str) -> Iterator[tuple[str, Shape[Any]]]:
        """This section, unless it is the root, and all that is in it."""
        if path:
            yield path, self
        for field in self.fields:
            yield from field.shape.walk(f"{path}.{field.name}" if path else field.name)

    def _known_entries(self, node: Mapping, place: Place) -> dict[str, Entry]:
        names = {name: field.name for field in self.fields for name in (field.name, field.alias) if name}
        entries: dict[str, Entry] = {}
        for entry in node.entries:
            name = names.get(entry.name)
            if name is None:
                self.refuse_unknown(entry, names, place)
            elif name in entries:
                first = entries[name]
                message = f"{first.name} on line {first.line} and {entry.name} on line {entry.line} are the same field"
                place.field(name).fault(entry.line, f"{message}: keep one")
            else:
                entries[name] = entry
        return entries

    def refuse_unknown(self, entry: Entry, names: dict[str, str], place: Place) -> None:
        """Name an unknown field. Where it may be a key in the wrong place, only if it is close to a known one."""
        reading = place.reading
        meant = nearest(entry.name, names) if reading.shows_more else None
        elsewhere = reading.paths_of(entry.name)
        is_named = bool(meant or elsewhere) or (entry.name_may_be_shown and not place.is_sensitive)
        if elsewhere == (entry.name,):
            hint = "it belongs at the top level of the file"
        elif elsewhere:
            hint = f"did you mean {' or '.join(elsewhere)}?"
        elif meant:
            hint = f"did you mean {names[meant]}?"
        else:
            known = ", ".join(field.name for field in self.fields)
            hint = f"this runtime has no such part, known here are: {known}"
        where = place.field(shown_name(entry.name)) if is_named else place
        where.fault(entry.line, f"unknown field; {hint}")


def into(model: Callable[..., T]) -> Callable[[dict[str, Any], Mapping, Place], T]:
    """A builder that hands the values to *model* and adds nothing."""

    def build(values: dict[str, Any], node: Mapping, place: Place) -> T:  # noqa: ARG001 (the interface of builders)
        return model(**values)

    return build


def line_of(node: Mapping, name: str) -> int:
    """The line of a field, or of its mapping when it is left out."""
    return next((entry.line for entry in node.entries if entry.name == name), node.line)

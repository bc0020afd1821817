"""
Fields: how the text of one configuration value becomes a typed value.

A field that cannot read its node records an error and returns None. Validation then continues, so one pass finds all
errors. `expected` is the description that error messages and the documentation show.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from runtimeconf.secret_stores import holds_reference
from runtimeconf.validation import YamlPath, nearest, shown_name
from runtimeconf.yaml_nodes import Entry, Mapping, Node, Scalar, Sequence

T = TypeVar("T")

_MAX_SUGGESTED_PATHS = 2


class Field(ABC, Generic[T]):
    """Reads one value."""

    #: A noun phrase that describes valid values: "a duration such as 30s".
    expected: str
    #: Whether an invalid value may contain a secret, so that no error may show it.
    is_hidden: bool = False

    @abstractmethod
    def read(self, node: Node, path: YamlPath) -> T | None:
        """Return the value, or record an error at *path* and return None."""

    def walk(self, path: str) -> "Iterator[tuple[str, Field[Any]]]":
        """Yield this field and all fields below it, with their YAML paths. `[]` means an item of a list."""
        yield path, self

    def refuse(self, node: Node, path: YamlPath, *, expected: str = "", hint: str = "") -> None:
        """Record that *node* is null or has an invalid value. *expected* overrides the description of the field."""
        expected = expected or self.expected
        if isinstance(node, Scalar) and self.is_hidden:
            node = replace(node, may_be_shown=False)
        if isinstance(node, Scalar) and node.is_null:
            path.fault(node.line, f"is empty: it must be {expected}, or be omitted")
        else:
            message = f"must be {expected}; found {path.found(node)}"
            path.fault(node.line, f"{message} ({hint})" if hint else message)


class InvalidValueError(Exception):
    """A text is not a valid value. The message is empty or a hint for people; it never contains the text."""


class ScalarField(Field[T]):
    """A single value, which `convert` creates from its source text."""

    def read(self, node: Node, path: YamlPath) -> T | None:
        """Convert the text of a scalar that is not null."""
        hint = ""
        if isinstance(node, Scalar) and not node.is_null:
            try:
                return self.convert(node)
            except InvalidValueError as exc:
                hint = str(exc)
        elif isinstance(node, Mapping) and any(entry.name.startswith("$") for entry in node.entries):
            hint = 'quote a string that contains ": ", or remove the space'
        self.refuse(node, path, hint=hint)
        return None

    @abstractmethod
    def convert(self, node: Scalar) -> T:
        """
        Return the value of the text.

        Raises:
            InvalidValueError: The text is not a valid value.
        """


class ParsedField(ScalarField[T]):
    """A value that the function *parse* creates from its text. *parse* raises `InvalidValueError` for invalid text."""

    def __init__(self, expected: str, parse: Callable[[str], T], *, is_hidden: bool = False) -> None:
        self.expected = expected
        self.is_hidden = is_hidden
        self._parse = parse

    def convert(self, node: Scalar) -> T:
        """Return the parsed text."""
        return self._parse(node.text)


def matching(form: str) -> Callable[[str], str]:
    """Return a function for `ParsedField` that accepts only text matching the regular expression *form*."""
    pattern = re.compile(form)

    def parse(text: str) -> str:
        if pattern.fullmatch(text) is None:
            raise InvalidValueError
        return text

    return parse


class BooleanField(ScalarField[bool]):
    """`true` or `false` as spelled in YAML 1.2. `yes`, `on` and quoted values are invalid."""

    expected = "true or false"
    _values = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}

    def convert(self, node: Scalar) -> bool:
        """Accept the six spellings of YAML 1.2."""
        if node.text not in self._values:
            raise InvalidValueError
        if not node.is_plain:
            raise InvalidValueError("without quotes")
        return self._values[node.text]


class FlagField(ScalarField[bool]):
    """`true` or `false`, quoted or not, because Spice.ai's parameters are strings."""

    expected = "true or false"

    def convert(self, node: Scalar) -> bool:
        """Accept `true` and `false`."""
        if node.text not in {"true", "false"}:
            raise InvalidValueError
        return node.text == "true"


class IntegerField(ScalarField[int]):
    """A whole number within inclusive bounds."""

    def __init__(self, minimum: int, maximum: int) -> None:
        self._minimum, self._maximum = minimum, maximum
        self.expected = f"a whole number from {minimum} to {maximum}"

    def convert(self, node: Scalar) -> int:
        """Accept only decimal digits, because YAML versions disagree on `010`, `1_000` and `0x10`."""
        if not node.is_plain:
            raise InvalidValueError("without quotes")
        if re.fullmatch(r"0|[1-9][0-9]{0,17}", node.text) is None:
            raise InvalidValueError
        value = int(node.text)
        if not self._minimum <= value <= self._maximum:
            raise InvalidValueError
        return value


_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)")


class _QuantityField(ScalarField[T]):
    """A decimal number with a unit, converted exactly, within inclusive bounds."""

    _example: str
    _units: ClassVar[dict[str, Decimal | int]]

    def __init__(self, minimum: str, maximum: str) -> None:
        self._minimum, self._maximum = self._in_base_unit(minimum), self._in_base_unit(maximum)
        self.expected = f"{self._example}, from {minimum} to {maximum}"

    def _in_base_unit(self, text: str) -> Decimal:
        match = _QUANTITY.fullmatch(text)
        if match is None:
            raise InvalidValueError
        number, unit = match.groups()
        if unit not in self._units:
            names = ", ".join(filter(None, self._units))
            raise InvalidValueError(f"the units are {names}" if unit else f"add a unit: {names}")
        return Decimal(number) * self._units[unit]

    def _within_bounds(self, value: Decimal) -> Decimal:
        if not self._minimum <= value <= self._maximum:
            raise InvalidValueError
        return value


class DurationField(_QuantityField[float]):
    """A duration in seconds, written with a unit, within inclusive bounds."""

    _example = "a duration such as 30s, 500ms, 1.5m, 1h or 1d"
    _units: ClassVar = {"ms": Decimal("0.001"), "s": 1, "m": 60, "h": 3600, "d": 86400}

    def convert(self, node: Scalar) -> float:
        """Return seconds."""
        return self.parse(node.text)

    def parse(self, text: str) -> float:
        """Return *text* in seconds. Raises InvalidValueError."""
        return float(self._within_bounds(self._in_base_unit(text)))


class SizeField(_QuantityField[int]):
    """A size in bytes, with or without a unit, within inclusive bounds."""

    _example = "a size in bytes such as 1048576, 128MiB or 1GiB"
    _units: ClassVar = {
        "": 1,
        "B": 1,
        **{f"{prefix}B": 1000**power for power, prefix in enumerate("kMGT", 1)},
        "KB": 1000,
        **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)},
    }

    def convert(self, node: Scalar) -> int:
        """Return bytes. A fraction of a unit is valid if it equals a whole number of bytes."""
        value = self._in_base_unit(node.text)
        if value != int(value):
            raise InvalidValueError("not a whole number of bytes")
        return int(self._within_bounds(value))


class ChoiceField(ScalarField[str]):
    """One of a few words, quoted or not, read as source text so that `1.10` is not `1.1`."""

    def __init__(self, *words: str) -> None:
        self._words = words
        self.expected = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"

    def convert(self, node: Scalar) -> str:
        """Return the word."""
        if node.text not in self._words:
            meant = nearest(node.text, self._words)
            raise InvalidValueError(f"did you mean {meant}?" if meant else "")
        return node.text


class TextField(ScalarField[str]):
    """A non-blank text of at most *max_length* characters. References in it are refused, not resolved."""

    def __init__(self, expected: str, *, max_length: int = 1000, may_have_lines: bool = False) -> None:
        self.expected = expected
        self._max_length = max_length
        self._may_have_lines = may_have_lines

    def convert(self, node: Scalar) -> str:
        """Return the text unchanged."""
        if not node.text.strip():
            raise InvalidValueError("it is blank")
        if len(node.text) > self._max_length:
            raise InvalidValueError(f"it is longer than {self._max_length:,} characters")
        if not self._may_have_lines and not node.text.isprintable():
            raise InvalidValueError("it contains a control character")
        if holds_reference(node.text):
            raise InvalidValueError(
                "secret references are resolved only in API keys, the params of datasets, snapshots and engine, and "
                "traces.headers"
            )
        return node.text


#: A comment to the end of its line, and before it what may contain two hyphens without being one.
_SQL_COMMENT = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|(--[^\r\n]*)""")
#: Such a comment, or what looks like one.
_TWO_HYPHENS = re.compile(r"(--[^\r\n]*)")
#: What may change where a string or name ends: other quotes, escapes, and comments with an end.
_OTHER_QUOTES = re.compile(r"[`$]|(?<![^\W\d])[eE]'|/\*")


class SqlField(TextField):
    """SQL of at most *max_length* characters. No comment in it may contain lines that YAML has joined to it."""

    def __init__(self, expected: str, *, max_length: int) -> None:
        super().__init__(expected, max_length=max_length, may_have_lines=True)

    def convert(self, node: Scalar) -> str:
        """Return the text unchanged."""
        text = super().convert(node)
        comments = _TWO_HYPHENS if _OTHER_QUOTES.search(text) else _SQL_COMMENT
        for match in comments.finditer(text) if node.written else ():
            if (match[1] or "").rstrip() not in node.written:
                raise InvalidValueError(
                    "YAML joins its lines, so the comment after -- hides the next: write the SQL below |"
                )
        return text


class PathField(TextField):
    """A path as written. Relative paths are relative to the directory of the configuration file."""

    def __init__(self, expected: str) -> None:
        super().__init__(expected, max_length=4096)


class IgnoredField(Field[None]):
    """A mapping or list that has no effect here. The note of its setting says so."""

    is_hidden = True

    def __init__(self, *kinds: type[Mapping] | type[Sequence]) -> None:
        self._kinds = kinds or (Mapping,)
        self.expected = " or ".join("a mapping" if kind is Mapping else "a list" for kind in self._kinds)

    def read(self, node: Node, path: YamlPath) -> None:
        """Refuse any other kind of value."""
        if not isinstance(node, self._kinds):
            self.refuse(node, path)


class TextsField(Field[dict[str, str]]):
    """A mapping of names to strings."""

    expected = "a mapping of names to strings"
    is_hidden = True

    def __init__(self, item: "Field[str]") -> None:
        self._item = item

    def read(self, node: Node, path: YamlPath) -> dict[str, str] | None:
        """Read every string."""
        if not isinstance(node, Mapping):
            self.refuse(node, path)
            return None
        texts = {entry.name: self._item.read(entry.value, path.field(shown_name(entry.name))) for entry in node.entries}
        return {name: text for name, text in texts.items() if text is not None}


class ListField(Field[tuple[T, ...]]):
    """A list whose items have the same type. Invalid items are omitted, so the others are still checked."""

    def __init__(self, item: Field[T], *, minimum: int = 0) -> None:
        self.item = item
        self._minimum = minimum
        self.expected = "a list"

    def read(self, node: Node, path: YamlPath) -> tuple[T, ...] | None:
        """Read every item."""
        if not isinstance(node, Sequence):
            self.refuse(node, path, expected="a list, with one item per line after a dash")
            return None
        if len(node.items) < self._minimum:
            path.fault(node.line, f"is an empty list: list at least {self._minimum}, or omit the field")
        values = (self.item.read(item, path.item(index)) for index, item in enumerate(node.items))
        return tuple(value for value in values if value is not None)

    def walk(self, path: str) -> Iterator[tuple[str, Field[Any]]]:
        """Yield this list, and the fields of its items if there are any."""
        yield path, self
        inner = list(self.item.walk(f"{path}[]"))
        yield from inner if len(inner) == 1 else inner[1:]


class Setting(Struct, frozen=True):
    """
    One setting of a section: its YAML name, its field, and the attribute that receives its value.

    A *note* is a sentence about what the setting means here if that differs from its meaning in Spice.ai.
    """

    name: str
    field: Field[Any]
    attribute: str = ""  # the same as `name` if empty
    is_required: bool = False
    alias: str = ""
    note: str = ""


#: Builds the value of a section from the values of its settings. It can also record errors and return None.
Build = Callable[[dict[str, Any], Mapping, YamlPath], T | None]


class Section(Field[T]):
    """
    A mapping with known settings, read in the order given here.

    A setting that is not configured is absent from the values because `runtimeconf.model` defines the defaults. Without
    *refuses_unknown*, the builder must check for unknown fields. *unavailable* maps unsupported Spice.ai fields to
    sentences that name alternatives.
    """

    expected = "a mapping"
    is_hidden = True  # a text in place of `params` may be a connection string with a password

    def __init__(
        self,
        build: Build[T],
        *settings: Setting,
        may_be_empty: bool = True,
        refuses_unknown: bool = True,
        unavailable: dict[str, str] | None = None,
    ) -> None:
        self._build = build
        self.settings = settings
        self.unavailable = unavailable or {}
        self._may_be_empty = may_be_empty
        self._refuses_unknown = refuses_unknown

    def read(self, node: Node, path: YamlPath) -> T | None:
        """Read all settings; return None if the mapping or a required setting is missing or invalid."""
        is_null = isinstance(node, Scalar) and node.is_null
        if is_null or (isinstance(node, Mapping) and not node.entries and not self._may_be_empty):
            path.fault(node.line, "is empty: fill it in, or omit it")
            return None
        if not isinstance(node, Mapping):
            self.refuse(node, path)
            return None
        entries = self._known_entries(node, path)
        values: dict[str, Any] = {}
        is_complete = True
        for setting in self.settings:
            entry, field = entries.get(setting.name), self.field_in(node, setting)
            value = None
            if entry is not None and setting.is_required and isinstance(entry.value, Scalar) and entry.value.is_null:
                path.field(entry.name).fault(entry.value.line, f"is empty: it must be {field.expected}")
            elif entry is not None:
                value = field.read(entry.value, path.field(entry.name))
            if entry is not None and setting.note:
                path.field(entry.name).note(entry.line, setting.note)
            if value is not None:
                values[setting.attribute or setting.name] = value
            elif setting.is_required:
                is_complete = False
                if entry is None:
                    path.fault(node.line, f"lacks the field {setting.name}: {setting.field.expected}")
        return self._build(values, node, path) if is_complete else None

    def walk(self, path: str) -> Iterator[tuple[str, Field[Any]]]:
        """Yield this section, unless it is the root, and everything below it."""
        if path:
            yield path, self
        for setting in self.settings:
            yield from setting.field.walk(f"{path}.{setting.name}" if path else setting.name)

    def field_in(self, node: Mapping, setting: Setting) -> Field[Any]:
        """Return the field that reads *setting* of *node*. A subclass can choose the field based on another setting."""
        return setting.field

    def field_of(self, name: str) -> Field[Any] | None:
        """Return the field of the setting *name*; None if there is none."""
        return next((setting.field for setting in self.settings if name in (setting.name, setting.alias)), None)

    def _known_entries(self, node: Mapping, path: YamlPath) -> dict[str, Entry]:
        names = {name: setting.name for setting in self.settings for name in (setting.name, setting.alias) if name}
        entries: dict[str, Entry] = {}
        for entry in node.entries:
            name = names.get(entry.name)
            if entry.name in self.unavailable:
                path.field(entry.name).fault(entry.line, f"is not available here: {self.unavailable[entry.name]}")
            elif name is None:
                if self._refuses_unknown:
                    refuse_unknown(entry, names, path)
            elif name in entries:
                first = entries[name]
                message = f"{first.name} on line {first.line} and {entry.name} on line {entry.line} are the same field"
                path.field(name).fault(entry.line, f"{message}: remove one")
            else:
                entries[name] = entry
        return entries


def refuse_unknown(entry: Entry, names: dict[str, str], path: YamlPath) -> None:
    """
    Record an unknown field. If its name might be an API key, show it only if it resembles a known name.

    *names* maps each name that the mapping accepts to the name to suggest.
    """
    meant = nearest(entry.name, names)
    elsewhere = path.validation.known_paths.get(entry.name, ())
    least = min((where.count(".") for where in elsewhere), default=0)
    elsewhere = tuple(where for where in elsewhere if where.count(".") == least)
    elsewhere = elsewhere if len(elsewhere) <= _MAX_SUGGESTED_PATHS else ()
    is_named = bool(meant or elsewhere) or (entry.name_may_be_shown and not path.is_sensitive)
    if elsewhere == (entry.name,):
        hint = "it belongs at the top level of the file"
    elif elsewhere:
        hint = f"did you mean {' or '.join(elsewhere)}?"
    elif meant:
        hint = f"did you mean {names[meant]}?"
    else:
        hint = f"the fields here are: {', '.join(dict.fromkeys(names.values()))}"
    (path.field(shown_name(entry.name)) if is_named else path).fault(entry.line, f"unknown field; {hint}")


def into(model: Callable[..., T]) -> Callable[[dict[str, Any], Mapping, YamlPath], T]:
    """Return a builder that passes the values to *model* unchanged."""
    return lambda values, _node, _path: model(**values)

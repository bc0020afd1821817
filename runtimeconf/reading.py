"""What one pass over a configuration collects: faults, warnings, and the place each of them is about."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runtimeconf.errors import MAX_SHOWN_FAULTS, ConfigFault
from runtimeconf.secret_stores import SecretStores
from runtimeconf.yaml_reader import Node, Scalar, Sequence

#: Below these fields no fault shows a value.
SENSITIVE_NAMES = frozenset({"auth", "secrets"})
#: Warnings with the same sentence that are shown one by one; the rest of them is counted in one line.
MAX_SHOWN_WARNINGS = 20

_MAX_SHOWN_TEXT = 60
_MAX_SUGGESTED_PATHS = 2
_PRINTABLE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,60}")
_NUMBER = re.compile(r"[-+]?[0-9][0-9_.]*")
_BOOLEANS = frozenset({"true", "True", "TRUE", "false", "False", "FALSE"})


@dataclass(slots=True)
class Reading:
    """One pass over one file: what it was given, and what it finds."""

    file: Path
    environ: Mapping[str, str]
    known_paths: Mapping[str, tuple[str, ...]]  # a field's name -> where it may stand
    others_may_read: bool = False
    stores: SecretStores | None = None  # None: the `secrets` section is at fault, references cannot be resolved
    holds_literal_key: bool = False
    faults: list[ConfigFault] = field(default_factory=list)
    _warnings: dict[str, list[str]] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        """Where relative paths of the configuration begin: beside the file."""
        return self.file.parent

    def warn(self, place: str, sentence: str) -> None:
        """Record a warning about *place* (`file:line: path`); the same one twice is one."""
        places = self._warnings.setdefault(sentence, [])
        if place not in places[-1:]:
            places.append(place)

    def warnings(self) -> tuple[str, ...]:
        """One line a warning."""
        lines: list[str] = []
        for sentence, places in self._warnings.items():
            lines += [f"{place}: {sentence}" for place in places[:MAX_SHOWN_WARNINGS]]
            if len(places) > MAX_SHOWN_WARNINGS:
                lines.append(f"{self.file}: {len(places) - MAX_SHOWN_WARNINGS} more like this: {sentence}")
        return tuple(lines)

    def paths_of(self, name: str) -> tuple[str, ...]:
        """Where a field of that name may stand, when that is a place or two worth suggesting."""
        paths = self.known_paths.get(name, ())
        return paths if len(paths) <= _MAX_SUGGESTED_PATHS else ()

    @property
    def shows_more(self) -> bool:
        """Whether another fault would still be shown: past that, no time is spent on suggestions."""
        return len(self.faults) < MAX_SHOWN_FAULTS


@dataclass(frozen=True, slots=True)
class Place:
    """A YAML path of one reading; `is_sensitive` below `auth` and `secrets`."""

    reading: Reading
    path: str = ""
    is_sensitive: bool = False

    def field(self, name: str) -> Place:
        """The place of a field of the mapping here."""
        path = f"{self.path}.{name}" if self.path else name
        return Place(self.reading, path, self.is_sensitive or name in SENSITIVE_NAMES)

    def item(self, index: int) -> Place:
        """The place of an item of the list here; *index* counts from 0."""
        return Place(self.reading, f"{self.path}[{index}]", self.is_sensitive)

    def fault(self, line: int, message: str) -> None:
        """Record what is wrong here."""
        fault = ConfigFault(file=self.reading.file, line=line, yaml_path=self.path, message=message)
        self.reading.faults.append(fault)

    def warn(self, line: int, sentence: str) -> None:
        """Record what works here and is unsafe."""
        self.reading.warn(f"{self.reading.file}:{line}: {self.path}", sentence)

    def found(self, node: Node) -> str:
        """Say what *node* is: its text where that may be shown, otherwise only its type."""
        if isinstance(node, Scalar) and node.may_be_shown and not self.is_sensitive:
            return shown(node.text)
        return type_of(node)


def type_of(node: Node) -> str:
    """The type of a node that is not null, in words."""
    if isinstance(node, Scalar):
        if node.is_plain and node.text in _BOOLEANS:
            return "true or false"
        return "a number" if node.is_plain and _NUMBER.fullmatch(node.text) else "a text"
    return "a list" if isinstance(node, Sequence) else "a mapping"


def shown(text: str) -> str:
    """*text* in quotes on one line of bounded length, control characters escaped."""
    return repr(text if len(text) <= _MAX_SHOWN_TEXT else f"{text[: _MAX_SHOWN_TEXT - 3]}...")


def shown_name(name: str) -> str:
    """A field name as it is when it is harmless, otherwise as `shown`."""
    return name if _PRINTABLE_NAME.fullmatch(name) else shown(name)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that *name* was probably meant to be."""
    if len(name) > _MAX_SHOWN_TEXT:
        return None  # the comparison is quadratic, and nothing known is that long
    folded = {candidate.lower().replace("-", "_"): candidate for candidate in known}
    matches = difflib.get_close_matches(name.lower().replace("-", "_"), folded, n=1, cutoff=0.65)
    return folded[matches[0]] if matches else None

"""One validation pass over a configuration, which collects errors and warnings with their YAML paths."""

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct, field

from runtimeconf.errors import ConfigFault
from runtimeconf.secret_stores import (
    MalformedReferenceError,
    SecretError,
    SecretStores,
    check_references,
    expand_references,
    holds_reference,
)
from runtimeconf.yaml_nodes import Node, Scalar, Sequence

#: Below these fields, no error shows a value.
SENSITIVE_NAMES = frozenset({"auth", "secrets"})
#: The maximum number of warnings with the same sentence that are shown individually. The others are counted in one
#: line.
MAX_SHOWN_WARNINGS = 20

_MAX_SHOWN_TEXT = 60
_PRINTABLE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,60}")
_NUMBER = re.compile(r"[-+]?[0-9][0-9_.]*")
_BOOLEANS = frozenset({"true", "True", "TRUE", "false", "False", "FALSE"})


class Note(Struct, frozen=True):
    """
    A field with a different meaning than in Spice.ai: its location, and a sentence about the difference.

    `is_warned` is true if a separate warning also says so.
    """

    file: Path
    line: int
    yaml_path: str
    sentence: str
    is_warned: bool = False


class Validation(Struct):
    """One pass over one file: its inputs, and the errors, warnings and notes that it finds."""

    file: Path
    directory: Path  # the base of relative paths
    environ: Mapping[str, str]
    known_paths: Mapping[str, tuple[str, ...]]  # a field's name -> the paths where it is valid
    others_may_read: bool = False
    needs_libraries: bool = True  # whether a connector without its library is an error
    reads_in_place: bool = False  # whether a cluster reads the datasets
    shares_snapshots: bool = False  # whether a cluster can read datasets that the runtime has loaded
    reads_sources: bool = True  # if false, the secrets and libraries of the sources are not needed
    stores: SecretStores | None = None  # None if the `secrets` section is invalid: references cannot be resolved
    faults: list[ConfigFault] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    _warnings: dict[str, list[str]] = field(default_factory=dict)

    def warn(self, where: str, sentence: str) -> None:
        """Record a warning. *where* is `file:line: path`. A repetition of the previous warning is ignored."""
        places = self._warnings.setdefault(sentence, [])
        if where not in places[-1:]:
            places.append(where)

    def warnings(self) -> tuple[str, ...]:
        """Return one line for each warning and one line for all notes."""
        lines: list[str] = []
        if count := sum(not note.is_warned for note in self.notes):
            what = "field differs in meaning" if count == 1 else "fields differ in meaning"
            lines.append(f"{self.file}: {count} {what} from Spice: `querykeep check` lists them")
        for sentence, places in self._warnings.items():
            lines += [f"{where}: {sentence}" for where in places[:MAX_SHOWN_WARNINGS]]
            if len(places) > MAX_SHOWN_WARNINGS:
                lines.append(f"{self.file}: {len(places) - MAX_SHOWN_WARNINGS} more like this: {sentence}")
        return tuple(lines)


class YamlPath(Struct, frozen=True):
    """A path such as `runtime.http.bind`; `is_sensitive` is true below `auth` and `secrets`."""

    validation: Validation
    text: str = ""
    is_sensitive: bool = False

    def field(self, name: str) -> "YamlPath":
        """Return the path of a field of this mapping."""
        text = f"{self.text}.{name}" if self.text else name
        return YamlPath(self.validation, text, self.is_sensitive or name in SENSITIVE_NAMES)

    def item(self, index: int) -> "YamlPath":
        """Return the path of an item of this list; *index* counts from 0."""
        return YamlPath(self.validation, f"{self.text}[{index}]", self.is_sensitive)

    def fault(self, line: int, message: str) -> None:
        """Record an error at this path."""
        fault = ConfigFault(file=self.validation.file, line=line, yaml_path=self.text, message=message)
        self.validation.faults.append(fault)

    def warn(self, line: int, sentence: str) -> None:
        """Record a warning about a value that is valid but unsafe or without effect."""
        self.validation.warn(f"{self.validation.file}:{line}: {self.text}", sentence)

    def note(self, line: int, sentence: str, *, is_warned: bool = False) -> None:
        """Record that the field at this path has a different meaning than in Spice.ai."""
        self.validation.notes.append(Note(self.validation.file, line, self.text, sentence, is_warned))

    def resolve(self, node: Scalar) -> str | None:
        """Return the text of *node* with its references resolved, or record an error and return None."""
        stores = self.validation.stores
        try:
            check_references(node.text)
            if stores is None:  # the `secrets` section has its own errors
                return None if holds_reference(node.text) else node.text
            return expand_references(node.text, stores.resolve)
        except (MalformedReferenceError, SecretError) as exc:
            self.fault(node.line, str(exc))
            return None

    def found(self, node: Node) -> str:
        """Describe *node* by its text if that may be shown, otherwise by its type."""
        if not isinstance(node, Scalar):
            return "a list" if isinstance(node, Sequence) else "a mapping"
        if node.may_be_shown and not self.is_sensitive:
            return shown(node.text)
        if node.is_plain and node.text in _BOOLEANS:
            return "true or false"
        return "a number" if node.is_plain and _NUMBER.fullmatch(node.text) else "a string"


def shown(text: str) -> str:
    """Return *text* in quotes, on one line of bounded length, with control characters escaped."""
    return repr(text if len(text) <= _MAX_SHOWN_TEXT else f"{text[: _MAX_SHOWN_TEXT - 3]}...")


def shown_name(name: str) -> str:
    """Return a harmless field name unchanged, and any other name as `shown` does."""
    return name if _PRINTABLE_NAME.fullmatch(name) else shown(name)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name of which *name* is probably a misspelling; None if there is none."""
    if len(name) > _MAX_SHOWN_TEXT:
        return None  # the comparison is quadratic, and no known name is that long
    folded = {candidate.lower().replace("-", "_"): candidate for candidate in known}
    matches = difflib.get_close_matches(name.lower().replace("-", "_"), folded, n=1, cutoff=0.65)
    return folded[matches[0]] if matches else None

"""
Reads YAML as source text: a tree of nodes that keep their text and line.

PyYAML scans and parses, but it resolves and constructs nothing, so `0123` stays `0123` and no tag runs code. Ambiguous
documents (duplicate fields, merge keys, tags) are refused. The tree is built from parse events on an explicit stack, so
nesting does not use up the Python stack, and every limit is checked before the next event is read.

No message contains text from the file or PyYAML's snippets, because any line may contain a key or a password.
"""

import re
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import yaml
from msgspec import Struct, field

from runtimeconf.errors import ConfigFault
from runtimeconf.yaml_nodes import Entry, Mapping, Node, Scalar, Sequence
from system.files import MissingFileError, UnreadableFileError, read_regular_file

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 32
#: The maximum number of nodes with every alias expanded. 10,000 named keys with all fields and five datasets each take
#: 250,000 nodes.
MAX_NODES = 300_000
MAX_ALIASES = 100

# Characters that YAML forbids, and line breaks of YAML 1.1 that editors do not show (NEL, LS, PS). The
# complement of the allowed characters would take five milliseconds to compile at each start.
_FORBIDDEN_CHARACTER = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")

_QUOTE_REFERENCE = (
    'a secret reference that contains ": " or is inside [...] or {...} must be quoted, as in "${ secrets:name }"'
)
# The start of PyYAML's `problem`, with our message for it. The full `problem` may quote the file.
_SYNTAX_PROBLEMS = (
    ("found character '\\t'", "indented with a tab: use spaces"),
    ("found character", "a string cannot begin with this character: quote it"),
    (
        "mapping values are not allowed",
        "unexpected colon: quote the string or fix the indentation",
    ),
    ("could not find expected ':'", "a field name lacks a colon, or a multi-line string is not indented"),
    ("expected ',' or", "a comma or closing bracket is missing in a list or mapping"),
    ("expected <block end>", "the indentation does not match the lines before it"),
    ("found unexpected end of stream", "a quoted string that begins here is never closed"),
    ("found unknown escape character", "a double-quoted string contains an unknown escape: write \\\\ for a backslash"),
    ("found unexpected ':'", "a colon inside [...] or {...} needs a space after it, or quotes around the string"),
)


class Document(Struct, frozen=True, kw_only=True):
    """
    The content of one file. `root` is None if there is no tree; `faults` then contains the reasons.

    A document can have both a tree and errors, so that the caller can report all errors at once.
    """

    root: Mapping | None
    faults: tuple[ConfigFault, ...]
    others_may_read: bool = False


def read_document(file: Path, known_names: frozenset[str]) -> Document:
    """
    Read the single YAML document in *file*. Errors are returned, not raised.

    Args:
        file: A regular UTF-8 file of at most MAX_FILE_BYTES.
        known_names: Field names that errors may show. Any other name may be a misplaced API key.
    """
    try:
        content = read_regular_file(file, MAX_FILE_BYTES)
    except MissingFileError:
        return _refused(file, 0, "no such file: set RUNTIME_CONFIG or --config to the configuration file")
    except UnreadableFileError as exc:
        return _refused(file, 0, f"cannot be read: {exc}")
    if content.data.startswith(_UTF16_MARKS):
        return _refused(file, 1, "is UTF-16, not UTF-8: save it as UTF-8")
    try:
        text = content.data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = content.data.count(b"\n", 0, exc.start) + 1
        return _refused(file, line, "is not UTF-8: save it as UTF-8")
    if (forbidden := _FORBIDDEN_CHARACTER.search(text)) is not None:
        line = text.count("\n", 0, forbidden.start()) + 1
        character = "a NUL" if forbidden.group() == "\0" else f"the control character U+{ord(forbidden.group()):04X}"
        return _refused(file, line, f"contains {character}, which YAML does not allow: remove it")
    # The C parser takes a third of the time, but its errors are less precise, and some builds lack it.
    builder = _TreeBuilder(file, text, known_names, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    root = builder.build()
    if builder.is_invalid:
        builder = _TreeBuilder(file, text, known_names, yaml.SafeLoader)
        root = builder.build()
    return Document(root=root, faults=tuple(builder.faults), others_may_read=content.others_may_read)


def _refused(file: Path, line: int, message: str) -> Document:
    return Document(root=None, faults=(ConfigFault(file=file, line=line, yaml_path="", message=message),))


class _StopReading(Exception):  # noqa: N818 (not an error: the fault is already recorded)
    """Ends the reading of the file."""


class _Frame(Struct):
    """A list or mapping that is still being read."""

    line: int
    is_mapping: bool
    anchor: str | None
    size_before: int
    is_anchored: bool
    children: list[Node] = field(default_factory=list)
    entries: dict[str, Entry] = field(default_factory=dict)
    name: Scalar | None = None  # the field whose value is read next
    has_bad_name: bool = False  # the next value belongs to a refused name


class _TreeBuilder:
    """Builds the tree of one text and collects its errors. `is_invalid` is true if *loader* cannot parse the text."""

    def __init__(self, file: Path, text: str, known_names: frozenset[str], loader: Any) -> None:
        self._file = file
        self._text = text
        self._loader = loader
        self.is_invalid = False
        self._known_names = known_names
        self._stack: list[_Frame] = []
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._aliases = 0
        self._size = 0
        self._root: Node | None = None
        self.faults: list[ConfigFault] = []

    @cached_property
    def _lines(self) -> list[str]:
        return self._text.splitlines()

    def build(self) -> Mapping | None:
        """Parse the text. Return the root if it is a mapping and the whole text could be read."""
        try:
            self._read_events()
        except _StopReading:
            return None
        except yaml.MarkedYAMLError as exc:
            self.is_invalid = True
            self._add_syntax_fault(exc)
            return None
        except (ValueError, OverflowError):
            self.is_invalid = True
            # PyYAML converts numbers in escapes and %YAML directives without checking their size.
            self._fault(0, "is not valid YAML: an escape or directive contains an out-of-range number")
            return None
        if isinstance(self._root, Mapping):
            return self._root
        if self._root is None or (isinstance(self._root, Scalar) and self._root.is_null):
            self._fault(0, "is empty: it contains only comments or white space")
        else:
            kind = "a list" if isinstance(self._root, Sequence) else "a single value"
            self._fault(self._root.line, f"must be a mapping such as `version: v1`; found {kind}")
        return None

    def _read_events(self) -> None:
        documents = 0
        for event in yaml.parse(self._text, Loader=self._loader):
            line = event.start_mark.line + 1 if event.start_mark is not None else 0
            if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag is not None:
                message = "YAML tags (! or !!) are not supported: remove the tag, or quote a string that begins with !"
                self._fault(line, message)
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._stop(line, "a second document begins here: a file can contain only one document")
            elif isinstance(event, yaml.ScalarEvent):
                self._add_scalar(event, line)
            elif isinstance(event, yaml.AliasEvent):
                self._add_alias(event, line)
            elif isinstance(event, yaml.CollectionStartEvent):
                self._open(event, line)
            elif isinstance(event, yaml.CollectionEndEvent):
                self._close()

    def _add_scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        if "\0" in event.value or any("\ud800" <= character <= "\udfff" for character in event.value):
            self._fault(line, "a quoted string contains an escape for a NUL or a lone surrogate: remove it")
        is_anchored = event.anchor is not None or self._is_anchored()
        written = ""
        if event.style != "|" and event.end_mark is not None and event.end_mark.line >= line:
            written = "\n".join(self._lines[line - 1 : event.end_mark.line + 1])
        node = Scalar(line, event.value, is_plain=not event.style, may_be_shown=not is_anchored, written=written)
        self._grow(1, line)
        if event.anchor is not None:
            self._anchors[event.anchor] = (node, 1)
        self._attach(node)

    def _add_alias(self, event: yaml.AliasEvent, line: int) -> None:
        self._aliases += 1
        if self._aliases > MAX_ALIASES:
            self._stop(line, f"there are more than {MAX_ALIASES} aliases (*name): write out the values")
        target = self._anchors.get(event.anchor or "")
        if target is None:
            self._stop(line, "an alias (*name) refers to an anchor (&name) that is not complete at that point")
        node, size = target
        self._grow(size, line)
        self._attach(node)

    def _open(self, event: yaml.CollectionStartEvent, line: int) -> None:
        if len(self._stack) == MAX_DEPTH:
            self._stack.clear()  # a path that long would not help in the error
            self._stop(line, f"lists and mappings are nested more than {MAX_DEPTH} levels deep")
        self._grow(1, line)
        self._stack.append(
            _Frame(
                line=line,
                is_mapping=isinstance(event, yaml.MappingStartEvent),
                anchor=event.anchor,
                size_before=self._size - 1,
                is_anchored=event.anchor is not None or self._is_anchored(),
            )
        )

    def _close(self) -> None:
        frame = self._stack.pop()
        node: Node
        if frame.is_mapping:
            node = Mapping(frame.line, tuple(frame.entries.values()))
        else:
            node = Sequence(frame.line, tuple(frame.children))
        if frame.anchor is not None:
            self._anchors[frame.anchor] = (node, self._size - frame.size_before)
        self._attach(node)

    def _attach(self, node: Node) -> None:
        if not self._stack:
            self._root = node
            return
        frame = self._stack[-1]
        if not frame.is_mapping:
            frame.children.append(node)
        elif frame.has_bad_name:
            frame.has_bad_name = False
        elif frame.name is None:
            self._take_name(frame, node)
        else:
            name = frame.name
            frame.entries[name.text] = Entry(name.line, name.text, node, name.may_be_shown)
            frame.name = None

    def _take_name(self, frame: _Frame, node: Node) -> None:
        frame.has_bad_name = True
        if not isinstance(node, Scalar):
            self._fault(
                node.line, "a field name must be a string, not a list or mapping; quote a string that contains brackets"
            )
        elif node.is_plain and node.text == "<<":
            self._fault(node.line, "merge keys (<<) are not supported: write out the fields")
        elif (first := frame.entries.get(node.text)) is not None:
            shown = node.text in self._known_names
            path = self._path(node.text) if shown else self._path()
            self._fault(node.line, f"duplicate field: first on line {first.line}, again on line {node.line}", path)
        else:
            frame.has_bad_name = False
            frame.name = node

    def _is_anchored(self) -> bool:
        return bool(self._stack) and self._stack[-1].is_anchored

    def _grow(self, size: int, line: int) -> None:
        self._size += size
        if self._size > MAX_NODES:
            self._stop(line, f"there are more than {MAX_NODES:,} values after aliases are expanded")

    def _path(self, *last: str) -> str:
        """Return the path of the value being read, with `?` for names that must not be shown."""
        path = ""
        for frame in self._stack:
            if not frame.is_mapping:
                path += f"[{len(frame.children)}]"
            elif frame.name is not None:
                name = frame.name.text if frame.name.text in self._known_names else "?"
                path += f".{name}" if path else name
        return ".".join([*filter(None, [path]), *last])

    def _fault(self, line: int, message: str, path: str | None = None) -> None:
        yaml_path = self._path() if path is None else path
        self.faults.append(ConfigFault(file=self._file, line=line, yaml_path=yaml_path, message=message))

    def _stop(self, line: int, message: str) -> NoReturn:
        self._fault(line, message)
        raise _StopReading

    def _add_syntax_fault(self, error: yaml.MarkedYAMLError) -> None:
        problem = error.problem or ""
        mark = error.problem_mark
        if problem.startswith("found unexpected end of stream"):
            # where the unfinished token starts; the problem mark is at the end of the file
            mark = error.context_mark or mark
        message = next((text for start, text in _SYNTAX_PROBLEMS if problem.startswith(start)), "it cannot be parsed")
        if mark is not None and self._breaks_reference(mark.index):
            message = _QUOTE_REFERENCE
        # The parser reads ahead of the tree, so a path would name the wrong field.
        self._fault(mark.line + 1 if mark is not None else 0, f"is not valid YAML: {message}", path="")

    def _breaks_reference(self, index: int) -> bool:
        """Return True if the syntax error at *index* is inside a `${ ... }` on its line."""
        before = self._text[self._text.rfind("\n", 0, index) + 1 : index]
        at_brace = self._text[index : index + 1] == "{" and before.rstrip().endswith("$")
        return at_brace or before.rfind("${") > before.rfind("}")

"""The compatibility report: whether each field of a Spicepod is supported, and with which meaning."""

import re
from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct

from runtimeconf.fields import Field, ListField, Section
from runtimeconf.loader import Examination
from runtimeconf.schema import ROOT
from runtimeconf.validation import YamlPath
from runtimeconf.yaml_nodes import Mapping as YamlMapping
from runtimeconf.yaml_nodes import Node, Scalar, Sequence

Verdict = Literal["supported", "supported, different meaning", "unsupported"]


_UNKNOWN_SOURCE = "belongs to a source that is not supported: see from"


class Use(Struct, frozen=True):
    """
    A field of the report: its lines, its path with `[]` for list items, its outcome, and a remark.

    The path of a field in a dependency is preceded by the file of the dependency.
    """

    lines: tuple[int, ...]
    path: str
    verdict: Verdict
    remark: str


def survey(examination: Examination) -> tuple[Use, ...]:
    """
    Return the outcome of each field of a Spicepod, in file order.

    Fields with the same path, verdict and remark are merged. Below `auth` and `secrets`, only the names of known fields
    are listed, because other names may be keys. For dependencies, only fields that are not simply supported are listed.
    For a file that is not a Spicepod, only fields with a different meaning are listed.
    """
    root, validation = examination.document.root, examination.validation
    if root is None:
        return ()
    found: dict[tuple[str, Verdict, str], list[int]] = {}
    remarks: dict[str, list[tuple[int, Verdict, str]]] = {}
    for fault in validation.faults:
        remarks.setdefault(fault.yaml_path, []).append((fault.line, "unsupported", fault.message))
    for note in validation.notes:
        remarks.setdefault(note.yaml_path, []).append((note.line, "supported, different meaning", note.sentence))
    refused = {fault.yaml_path for fault in validation.faults}
    for line, name in _fields(root, ROOT, YamlPath(validation)):
        source, is_param, _ = name.partition(".params.")
        if is_param and f"{source}.from" in refused:
            remarks.setdefault(name, [(line, "unsupported", _UNKNOWN_SOURCE)])
        for where, verdict, remark in remarks.pop(name, [(line, "supported", "")]):
            found.setdefault((_general(name), verdict, remark), []).append(where)
    files = {one.yaml_path: one.file for one in validation.faults}
    files |= {one.yaml_path: one.file for one in validation.notes}
    # Remarks about missing fields, about fields that must not be named, and from other files.
    for name, left in remarks.items():
        file, shown = files[name], _general(name)
        if file != validation.file:
            shown = f"{file.relative_to(validation.directory)}: {shown.partition('.')[2]}"
        for where, verdict, remark in left:
            found.setdefault((shown, verdict, remark), []).append(where)
    uses = (Use(tuple(dict.fromkeys(lines)), name, verdict, remark) for (name, verdict, remark), lines in found.items())
    is_spicepod = isinstance(kind := root.get("kind"), Scalar) and kind.text == "Spicepod"
    return tuple(use for use in uses if is_spicepod or use.verdict == "supported, different meaning")


def _general(path: str) -> str:
    return re.sub(r"\[\d+\]", "[]", path)


def _fields(node: Node, field: Field[Any] | None, path: YamlPath) -> Iterator[tuple[int, str]]:
    """Yield the line and path of each leaf setting and of each unknown field."""
    if isinstance(field, ListField) and isinstance(node, Sequence):
        for index, item in enumerate(node.items):
            yield from _fields(item, field.item, path.item(index))
    elif isinstance(field, Section) and isinstance(node, YamlMapping):
        for entry in node.entries:
            below = field.field_of(entry.name)
            inner = below.item if isinstance(below, ListField) else below
            may_be_shown = below is not None or (entry.name_may_be_shown and not path.is_sensitive)
            if may_be_shown and not isinstance(inner, Section):
                yield entry.line, path.field(entry.name).text
            yield from _fields(entry.value, below, path.field(entry.name))

"""
The schema of `dependencies`: other Spicepods, whose datasets and views the runtime also serves.

As in Spice.ai, `- org/name` is the file `spicepods/org/name/spicepod.yaml` next to the configuration file. Only its
datasets and views count. Secrets, the runtime and its keys are set only in the main configuration.
"""

import os
import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Final

from runtimeconf.dataset_schema import DATASET, VIEW
from runtimeconf.fields import ChoiceField, Field, IgnoredField, ListField, Section, Setting, TextField
from runtimeconf.model import DatasetConfig, ViewConfig
from runtimeconf.validation import YamlPath
from runtimeconf.yaml_reader import Mapping, Node, Scalar, Sequence, read_document

#: The directory of the dependencies, relative to the directory of the configuration file.
DIRECTORY: Final = "spicepods"
_NAME: Final = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)?", re.ASCII)

#: Spicepod sections that the runtime does not support, with alternatives.
NOT_HERE: Final = {
    "catalogs": "Name each table in datasets.",
    "embeddings": "Remove it: there is no search by meaning.",
    "evals": "Remove it: there are no models.",
    "extensions": "Remove it.",
    "functions": "Remove it: SQL has the functions of the engine, and no others.",
    "management": "Remove it.",
    "memory": "Remove it: there are no models.",
    "models": "Remove it, and let your application call the model: there are none here.",
    "snapshots": "Use runtime.snapshots, through which several nodes share what they serve.",
    "tools": "Remove it: there are no models.",
    "workers": "Remove it: there are no models.",
}


@dataclass(frozen=True, slots=True)
class Declared:
    """The declarations in one file: its tree, the path of the tree, and the datasets and views that could be read."""

    root: Mapping
    path: YamlPath
    tables: tuple[DatasetConfig | ViewConfig, ...]


def _build(values: dict[str, Any], node: Mapping, path: YamlPath) -> Declared:
    return Declared(node, path, (*values.get("datasets", ()), *values.get("views", ())))


_SPICEPOD: Final = Section[Declared](
    _build,
    Setting("version", ChoiceField("v1", "v2", "v1beta1")),
    Setting("kind", ChoiceField("Spicepod")),
    Setting("name", TextField("a name", max_length=100)),
    Setting("metadata", IgnoredField(), note="It has no effect: nobody is shown it."),
    Setting(
        "secrets", IgnoredField(Sequence, Mapping), note="It has no effect: the stores are those of the configuration."
    ),
    Setting("datasets", ListField(DATASET)),
    Setting("views", ListField(VIEW)),
    unavailable={
        **NOT_HERE,
        "dependencies": "Name it in the dependencies of the configuration, where all of them are.",
        "runtime": "Move it to the configuration: a dependency brings datasets and views only.",
    },
)


class _DependencyField(Field[Declared]):
    """A name such as `spiceai/quickstart`. Errors in its Spicepod have the file and line of that Spicepod."""

    expected = "the name of a Spicepod, such as spiceai/quickstart"

    def read(self, node: Node, path: YamlPath) -> Declared | None:
        if not isinstance(node, Scalar) or _NAME.fullmatch(node.text) is None:
            self.refuse(node, path)
            return None
        validation = path.validation
        directory = validation.directory / DIRECTORY / node.text
        files = [directory / name for name in ("spicepod.yaml", "spicepod.yml")]
        file = next((one for one in files if os.path.exists(one)), None)  # noqa: PTH110 (it never raises)
        if file is None:
            where = PurePosixPath(DIRECTORY, node.text, "spicepod.yaml")
            path.fault(node.line, f"is missing: put the Spicepod into {where}, next to this file")
            return None
        document = read_document(file, frozenset(validation.known_paths))
        validation.faults += document.faults
        if document.root is None:
            return None
        # Errors and warnings go into the same lists. As in Spice.ai, relative paths are relative to the main
        # configuration.
        inner = replace(validation, file=file, others_may_read=document.others_may_read)
        return _SPICEPOD.read(document.root, YamlPath(inner, path.text))


class _DependenciesField(ListField[Declared]):
    def read(self, node: Node, path: YamlPath) -> tuple[Declared, ...] | None:
        """Read every dependency, or none of them if one is listed twice."""
        names: set[str] = set()
        is_valid = True
        for index, item in enumerate(node.items if isinstance(node, Sequence) else ()):
            if isinstance(item, Scalar) and item.text in names:
                path.item(index).fault(item.line, "is listed twice: keep one")
                is_valid = False
            elif isinstance(item, Scalar):
                names.add(item.text)
        return super().read(node, path) if is_valid else None


DEPENDENCIES: Final = _DependenciesField(_DependencyField())

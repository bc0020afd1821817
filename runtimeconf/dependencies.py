"""
The schema of `dependencies`: other Spicepods, whose datasets and views the runtime also serves.

As in Spice.ai, `- org/name` is the file `spicepods/org/name/spicepod.yaml` next to the configuration file. Only its
datasets and views count. Secrets, the runtime and its keys are set only in the main configuration.
"""

import os
import re
from pathlib import PurePosixPath
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from runtimeconf.dataset_schema import DATASET, VIEW
from runtimeconf.fields import ChoiceField, Field, IgnoredField, ListField, Section, Setting, TextField
from runtimeconf.model import DatasetConfig, ViewConfig
from runtimeconf.validation import YamlPath
from runtimeconf.yaml_nodes import Mapping, Node, Scalar, Sequence
from runtimeconf.yaml_reader import read_document

#: The directory of the dependencies, relative to the directory of the configuration file.
DIRECTORY: Final = "spicepods"
_NAME: Final = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)?", re.ASCII)

#: Spicepod sections that the runtime does not support, with alternatives.
NOT_HERE: Final = {
    "catalogs": "List each table in datasets.",
    "embeddings": "Remove it: semantic search is not supported.",
    "evals": "Remove it: models are not supported.",
    "extensions": "Remove it.",
    "functions": "Remove it: only the engine's own SQL functions are supported.",
    "management": "Remove it.",
    "memory": "Remove it: models are not supported.",
    "models": "Remove it and call the model from your application: models are not supported.",
    "snapshots": "Use runtime.snapshots to share data between nodes.",
    "tools": "Remove it: models are not supported.",
    "workers": "Remove it: models are not supported.",
}


class Declared(Struct, frozen=True):
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
    Setting("metadata", IgnoredField(), note="It has no effect: it is not shown anywhere."),
    Setting(
        "secrets",
        IgnoredField(Sequence, Mapping),
        note="It has no effect: only the main configuration defines secret stores.",
    ),
    Setting("datasets", ListField(DATASET)),
    Setting("views", ListField(VIEW)),
    unavailable={
        **NOT_HERE,
        "dependencies": "List it in the dependencies of the main configuration.",
        "runtime": "Move it to the main configuration: a dependency can only provide datasets and views.",
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
            path.fault(node.line, f"is missing: put the Spicepod in {where}, next to this file")
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
                path.item(index).fault(item.line, "is listed twice: remove one")
                is_valid = False
            elif isinstance(item, Scalar):
                names.add(item.text)
        return super().read(node, path) if is_valid else None


DEPENDENCIES: Final = _DependenciesField(_DependencyField())

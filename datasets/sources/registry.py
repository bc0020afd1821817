"""
Which class reads the datasets of which connector.

A connector's module is imported when it is first used: several need a library that is installed for them alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from datasets.sources.source import Source
from runtimeconf.model import DatasetConfig

#: For each connector of `runtimeconf.connectors`, the module and the class, which is called with the dataset.
CLASSES: Mapping[str, tuple[str, str]] = {
    "file": ("datasets.sources.files", "FileSource"),
}


def source_of(dataset: DatasetConfig) -> Source:
    """Return the source that `from:` names."""
    module, name = CLASSES[dataset.connector]
    source: Source = getattr(import_module(module), name)(dataset)
    return source

"""Configurations as text, tables of invalid ones with their faults, and the types of the fixtures that load them."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

import pytest

from runtimeconf.errors import ConfigFault
from runtimeconf.model import DatasetConfig, RuntimeConfig

#: A long random key that causes no warning.
KEY = "Zk3vT9qLm2XwR7bN4cYh8dPf"

NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


class Load(Protocol):
    """Writes a text to `runtime.yaml` and loads it."""

    def __call__(
        self, text: str | bytes, environ: Mapping[str, str] = NO_VARIABLES, mode: int = 0o600
    ) -> RuntimeConfig: ...


class Faults(Protocol):
    """Writes a text to `runtime.yaml`, which must have faults, and returns them."""

    def __call__(self, text: str | bytes, environ: Mapping[str, str] = NO_VARIABLES) -> tuple[ConfigFault, ...]: ...


class Fault(Protocol):
    """Writes a text to `runtime.yaml`, which must have one fault, and returns it as `line: path: message`."""

    def __call__(self, text: str | bytes, environ: Mapping[str, str] = NO_VARIABLES) -> str: ...


def with_keys(items: str, *, enabled: str = "true") -> str:
    """Return a configuration with the `keys` *items*, one per line, beginning on line 6."""
    listed = "".join(f"        {line}\n" for line in items.splitlines())
    return f"runtime:\n  auth:\n    api-key:\n      enabled: {enabled}\n      keys:\n{listed}"


def fault_cases(table: str) -> list[Any]:
    """
    Return parameters (text, faults) from a table.

    A case is a line `# id`, the YAML, and one line `=> line: path: message` for each fault.
    """
    found = []
    for case in table.strip().removeprefix("# ").split("\n# "):
        name, *lines = case.splitlines()
        text = "".join(f"{line}\n" for line in lines if not line.startswith("=> "))
        found.append(pytest.param(text, [line[3:] for line in lines if line.startswith("=> ")], id=name))
    return found


#: The value of every secret in `dataset_text`.
SECRET = "canary-3bZ"


def dataset_text(source: str, params: Mapping[str, str]) -> str:
    """Return a configuration with one dataset."""
    return json.dumps({"datasets": [{"from": source, "name": "d"} | ({"params": dict(params)} if params else {})]})


def load_dataset(
    load_text: Load, source: str, params: Mapping[str, str] = NO_VARIABLES, /, **more: str
) -> DatasetConfig:
    """Load a configuration with one dataset; `${ env:TOKEN }` is SECRET."""
    (dataset,) = load_text(dataset_text(source, {**params, **more}), {"TOKEN": SECRET}).datasets
    return dataset

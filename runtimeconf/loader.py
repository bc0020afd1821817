"""From a YAML file and an environment to a `RuntimeConfig`, or to every fault at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from runtimeconf.errors import ConfigError, ConfigFault
from runtimeconf.model import RuntimeConfig
from runtimeconf.reading import Place, Reading
from runtimeconf.schema import ROOT, paths_by_name
from runtimeconf.secret_stores import EnvStore, SecretStores
from runtimeconf.yaml_reader import read_document


def load(path: Path, environ: Mapping[str, str]) -> RuntimeConfig:
    """
    Read, check and resolve the configuration in *path*.

    Args:
        path: The YAML file. Relative paths in it begin in its directory.
        environ: What the `env` secret store asks first.

    Raises:
        ConfigError: Something is wrong; it names every fault by file, line and YAML path, and shows no secret.
    """
    file = path.absolute()
    paths = paths_by_name()
    document = read_document(file, frozenset(paths))
    reading = Reading(file=file, environ=environ, known_paths=paths, others_may_read=document.others_may_read)
    default_store = EnvStore("env", environ, file.parent, lambda place, text: reading.warn(str(place), text))
    reading.stores = SecretStores([default_store])
    config = ROOT.read(document.root, Place(reading)) if document.root is not None else None
    faults = _in_order([*document.faults, *reading.faults])
    if faults or config is None:
        raise ConfigError(faults)
    return replace(config, warnings=reading.warnings())


def _in_order(faults: list[ConfigFault]) -> tuple[ConfigFault, ...]:
    """By line, each once: a value that stands behind an alias may be at fault twice."""
    return tuple(sorted(dict.fromkeys(faults), key=lambda fault: fault.line))

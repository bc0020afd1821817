"""Loads a YAML file into a `RuntimeConfig`, or reports all its faults at once."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from runtimeconf.errors import ConfigError
from runtimeconf.model import RuntimeConfig
from runtimeconf.schema import ROOT, paths_by_name
from runtimeconf.secret_stores import EnvStore, SecretStores
from runtimeconf.validation import Validation, YamlPath
from runtimeconf.yaml_reader import read_document


def load(path: Path, environ: Mapping[str, str]) -> RuntimeConfig:
    """
    Read, check and resolve the configuration in *path*.

    Args:
        path: The YAML file. Relative paths in it are relative to its directory.
        environ: The environment variables for the `env` secret store.

    Raises:
        ConfigError: It lists every fault by file, line and YAML path, and shows no secret.
    """
    file = path.absolute()
    paths = paths_by_name()
    document = read_document(file, frozenset(paths))
    validation = Validation(file=file, environ=environ, known_paths=paths, others_may_read=document.others_may_read)
    validation.stores = SecretStores([EnvStore("env", environ, file.parent, validation.warn)])
    config = ROOT.read(document.root, YamlPath(validation)) if document.root is not None else None
    faults = dict.fromkeys([*document.faults, *validation.faults])  # an aliased value is read more than once
    if faults or config is None:
        raise ConfigError(tuple(sorted(faults, key=lambda fault: fault.line)))
    return replace(config, warnings=validation.warnings())

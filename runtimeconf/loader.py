"""Loads a configuration file into a `RuntimeConfig`, or reports all its errors at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from runtimeconf.errors import ConfigError
from runtimeconf.model import DEFAULT_STATE_DIR, RuntimeConfig
from runtimeconf.schema import ROOT, paths_by_name, state_dir_in
from runtimeconf.secret_stores import EnvStore, SecretStores
from runtimeconf.validation import Validation, YamlPath
from runtimeconf.yaml_nodes import Mapping as YamlMapping
from runtimeconf.yaml_nodes import Node, Scalar
from runtimeconf.yaml_reader import Document, read_document


def state_dir_of(path: Path) -> Path:
    """
    Return the state directory configured in *path*, even if other parts of the configuration are invalid.

    Raises:
        ConfigError: The file cannot be read as YAML.
    """
    file = path.absolute()
    document = read_document(file, frozenset(paths_by_name()))
    if document.root is None:
        raise ConfigError(tuple(document.faults))
    named: Node | None = document.root
    for name in ("runtime", "state_dir"):
        named = named.get(name) if isinstance(named, YamlMapping) else None
    return state_dir_in(file.parent, named.text if isinstance(named, Scalar) else DEFAULT_STATE_DIR)


def load(path: Path, environ: Mapping[str, str], *, needs_libraries: bool = True) -> RuntimeConfig:
    """
    Read, check and resolve the configuration in *path*.

    Args:
        path: The configuration file. Relative paths in it are relative to its directory.
        environ: The environment variables for the `env` secret store.
        needs_libraries: Whether the libraries of the configured connectors must be installed.

    Raises:
        ConfigError: The configuration is invalid. The error lists all problems by file, line and YAML path, without
            secrets.
    """
    return examine(path, environ, needs_libraries=needs_libraries).config()


@dataclass(frozen=True, slots=True, repr=False)  # it contains secrets
class Examination:
    """The result of reading a file. `value` can be None after an error."""

    document: Document
    validation: Validation
    value: RuntimeConfig | None

    def config(self) -> RuntimeConfig:
        """Return the configuration if it has no errors, or raise ConfigError. See `load`."""
        # Aliased values are read more than once, so drop repeated errors.
        faults = dict.fromkeys([*self.document.faults, *self.validation.faults])
        if faults or self.value is None:
            raise ConfigError(
                tuple(sorted(faults, key=lambda fault: (fault.file != self.validation.file, fault.file, fault.line)))
            )
        return replace(self.value, warnings=self.validation.warnings())


def examine(path: Path, environ: Mapping[str, str], *, needs_libraries: bool = True) -> Examination:
    """Read *path* as `load` does, and return the result with its errors and warnings."""
    file = path.absolute()
    paths = paths_by_name()
    document = read_document(file, frozenset(paths))
    validation = Validation(
        file=file,
        directory=file.parent,
        environ=environ,
        known_paths=paths,
        others_may_read=document.others_may_read,
        needs_libraries=needs_libraries,
    )
    validation.stores = SecretStores([EnvStore("env", environ, file.parent, validation.warn)])
    value = None if document.root is None else ROOT.read(document.root, YamlPath(validation))
    return Examination(document, validation, value)

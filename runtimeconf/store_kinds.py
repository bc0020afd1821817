"""Kinds of secret stores, which `from:` of a store may name: their declaration, and those of the core."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from runtimeconf.connector import Package
from runtimeconf.fields import Field, PathField, TextField
from runtimeconf.secret_stores import EnvStore, FileStore, KeyringStore, SecretStore
from runtimeconf.validation import YamlPath
from runtimeconf.yaml_reader import Mapping as YamlMapping


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """One item of `secrets`: its *name*, the *location* after the colon of `from`, and its *params*."""

    name: str
    location: str
    params: Mapping[str, Any]
    node: YamlMapping
    path: YamlPath

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment variables of the process."""
        return self.path.validation.environ

    def file(self, name: str, default: str = "") -> Path | None:
        """Return the absolute path that the parameter *name* has; None if neither it nor *default* is set."""
        written = self.params.get(name, default)
        return self.path.validation.directory / written if written else None

    def fault(self, message: str, *names: str) -> None:
        """Record a fault of the field *names* of this item, such as "params", "directory"."""
        where = self.path
        for name in names:
            where = where.field(name)
        where.fault(self.node.line_of(names[0]), message)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreKind:
    """
    A kind of secret store.

    Args:
        make: Makes a store, or records faults and returns None. Every process that reads a configuration imports its
            module: import there no library that is slow to import.
        params: How each of its parameters is written, by name.
        location: The form of what follows its name and a colon in `from:`; None if nothing does.
        placeholder: That in one word, for faults and the documentation.
        example: One of them.
        upstream_name: What Spice.ai calls the kind, if that is another name.
    """

    make: Callable[[StoreEntry], SecretStore | None]
    params: Mapping[str, Field[Any]] = field(default_factory=dict)
    location: re.Pattern[str] | None = None
    placeholder: str = "NAME"
    example: str = ""
    upstream_name: str | None = None


def _make_env(entry: StoreEntry) -> SecretStore:
    validation = entry.path.validation
    return EnvStore(entry.name, validation.environ, validation.directory, validation.warn)


def _make_file(entry: StoreEntry) -> SecretStore | None:
    directory = entry.file("directory")
    if directory is None:
        entry.fault("lacks the field directory: set it to the directory with the secret files", "params")
        return None
    if os.path.exists(directory) and not os.path.isdir(directory):  # noqa: PTH110, PTH112 (they never raise)
        entry.fault("is not a directory", "params", "directory")
    return FileStore(entry.name, directory)


_KEYRING: Final = Package("keyring", "keyring~=25.7")


def _make_keyring(entry: StoreEntry) -> SecretStore:
    if not _KEYRING.is_installed:
        entry.fault(f"the keyring store needs the keyring package: {_KEYRING.install_command}", "from")
    return KeyringStore(entry.name, entry.params.get("service", "runtime"))


#: A parameter that several kinds have.
DIRECTORY: Final = PathField("a directory")

ENV: Final = StoreKind(make=_make_env)
FILE: Final = StoreKind(make=_make_file, params={"directory": DIRECTORY})
KEYRING: Final = StoreKind(make=_make_keyring, params={"service": TextField("the service name of the keyring entries")})

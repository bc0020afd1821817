"""Kinds of secret stores, which `from:` names: how a kind is declared, and the built-in kinds."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

from runtimeconf.connector import Package
from runtimeconf.fields import Field, PathField, TextField
from runtimeconf.secret_stores import EnvStore, FileStore, KeyringStore, SecretStore
from runtimeconf.validation import YamlPath
from runtimeconf.yaml_nodes import Mapping as YamlMapping


class StoreEntry(Struct, frozen=True):
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
        """Return the parameter *name* as an absolute path; None if neither the parameter nor *default* is set."""
        written = self.params.get(name, default)
        return self.path.validation.directory / written if written else None

    def fault(self, message: str, *names: str) -> None:
        """Record an error in a field of this item; *names* are the path of the field, such as "params", "directory"."""
        where = self.path
        for name in names:
            where = where.field(name)
        where.fault(self.node.line_of(names[0]), message)


class StoreKind(Struct, frozen=True, kw_only=True):
    """
    A kind of secret store.

    Args:
        make: Creates a store, or records errors and returns None. Every process that reads a configuration imports the
            module, so its imports must be fast.
        params: The syntax of each parameter, by name.
        location: The pattern of the text that follows `name:` in `from:`; None if there is no such text.
        placeholder: One word for that text, for error messages and the documentation.
        example: An example of that text.
        upstream_name: Spice.ai's name for the kind, if it differs.
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


#: A parameter of several kinds.
DIRECTORY: Final = PathField("a directory")

ENV: Final = StoreKind(make=_make_env)
FILE: Final = StoreKind(make=_make_file, params={"directory": DIRECTORY})
KEYRING: Final = StoreKind(make=_make_keyring, params={"service": TextField("the service name of the keyring entries")})

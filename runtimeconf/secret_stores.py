"""
Secret stores: the environment, a directory of files, and the keyring of the operating system.

A store returns the value, or None if it does not have the secret, or raises an error if it has the secret but cannot
use it. After an error no other store is tried, because the operator meant that one.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from dotenv import dotenv_values

from runtimeconf.references import ALL_STORES, Reference
from system.files import FileContent, MissingFileError, UnreadableFileError, read_regular_file

MAX_SECRET_BYTES = 64 * 1024
MAX_DOTENV_BYTES = 1024 * 1024
#: Searched in this order after the process environment; both are beside the YAML.
DOTENV_NAMES = (".env.local", ".env")
DEFAULT_KEYRING_SERVICE = "runtime"


class SecretError(Exception):
    """A secret cannot be used. The message names the secret and the stores asked, never a value."""


class SecretStore(Protocol):
    """One configured store."""

    @property
    def name(self) -> str:
        """The name of the store in references."""

    def get(self, name: str) -> str | None:
        """
        Return the value of a secret, or None if this store does not have it.

        Raises:
            SecretError: The store has or may have it, but cannot read it. The message fits after "in store X: ".
        """


class EnvStore:
    """
    Environment variables: of the process, then of `.env.local`, then of `.env`.

    Each is searched for the name as written, then in upper case. *warn* receives a file and a sentence about it.
    """

    def __init__(
        self, name: str, environ: Mapping[str, str], directory: Path, warn: Callable[[Path, str], None]
    ) -> None:
        self.name = name
        self._environ = environ
        self._directory = directory
        self._warn = warn
        self._files: dict[str, tuple[Mapping[str, str | None], bool]] = {}

    def get(self, name: str) -> str | None:
        """Return the first value found; an empty one counts as found."""
        if (value := _variable(self._environ, name)) is not None:
            return value
        for file_name in DOTENV_NAMES:
            variables, others_may_read = self._read(file_name)
            if (value := _variable(variables, name)) is not None:
                if others_may_read:
                    self._warn(self._directory / file_name, "holds a secret in use and other users can read it")
                return value
        return None

    def _read(self, file_name: str) -> tuple[Mapping[str, str | None], bool]:
        if file_name not in self._files:
            try:
                content = read_regular_file(self._directory / file_name, MAX_DOTENV_BYTES)
                text = _decode(content)
            except MissingFileError:
                self._files[file_name] = ({}, False)
            except UnreadableFileError as exc:
                raise SecretError(f"{file_name} cannot be read: {exc}") from None
            else:
                # No interpolation: values are used verbatim.
                variables = dotenv_values(stream=io.StringIO(text), interpolate=False)
                self._files[file_name] = (variables, content.others_may_read)
        return self._files[file_name]


def _variable(variables: Mapping[str, str | None] | Mapping[str, str], name: str) -> str | None:
    value = variables.get(name)
    return variables.get(name.upper()) if value is None else value


class FileStore:
    """One file per secret in one directory, as Docker, Kubernetes and systemd mount them."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self._directory = directory

    def get(self, name: str) -> str | None:
        """Return the text of the file without one trailing newline."""
        try:
            text = _decode(read_regular_file(self._directory / name, MAX_SECRET_BYTES))
        except MissingFileError:
            return None
        except UnreadableFileError as exc:
            raise SecretError(f"its file cannot be read: {exc}") from None
        return text.removesuffix("\r\n") if text.endswith("\r\n") else text.removesuffix("\n")


def _decode(content: FileContent) -> str:
    try:
        text = content.data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        # Raise outside the handler: a UnicodeDecodeError holds the bytes, and would become the context.
        raise UnreadableFileError("it is binary, not UTF-8 text")
    return text


class KeyringStore:
    """The keyring of the operating system, through the optional `keyring` package."""

    def __init__(self, name: str, service: str) -> None:
        self.name = name
        self._service = service

    @staticmethod
    def is_installed() -> bool:
        """Return whether the `keyring` package is installed."""
        return importlib.util.find_spec("keyring") is not None

    def get(self, name: str) -> str | None:
        """Return the password for the service and *name*."""
        try:
            keyring = importlib.import_module("keyring")
            value: str | None = keyring.get_password(self._service, name)
        except Exception as exc:  # noqa: BLE001 (each backend raises its own errors)
            problem = type(exc).__name__
        else:
            return value
        raise SecretError(f"the keyring does not answer ({problem}); is a backend installed and unlocked?")


class SecretStores:
    """All configured stores, in the order of the YAML."""

    def __init__(self, stores: Sequence[SecretStore]) -> None:
        self._stores = tuple(stores)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the stores, in the order of the YAML."""
        return tuple(store.name for store in self._stores)

    def resolve(self, reference: Reference) -> str:
        """
        Return the value of *reference*, which is never empty.

        Raises:
            SecretError: The store is unknown, or the secret is missing, empty or unusable.
        """
        if reference.store == ALL_STORES:
            asked = self._stores[::-1]  # the last one defined wins
        else:
            asked = tuple(store for store in self._stores if store.name == reference.store)
            if not asked:
                known = ", ".join((ALL_STORES, *self.names))
                raise SecretError(f"refers to a secret store that is not configured; the stores are: {known}")
        for store in asked:
            try:
                value = store.get(reference.name)
            except SecretError as exc:
                raise SecretError(f"secret '{reference.name}' in store {store.name}: {exc}") from None
            if value == "":
                raise SecretError(f"secret '{reference.name}' in store {store.name} is empty")
            if value is not None:
                return value
        names = ", ".join(store.name for store in asked) or "none"
        raise SecretError(f"secret '{reference.name}' was not found; stores asked: {names}")

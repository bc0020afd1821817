"""
Secret references, and the local stores: the environment, files and the keyring. Other stores are plug-ins.

The `get` method of a store returns the value, or None if the store does not have the secret. It raises `SecretError` if
the store has or may have the secret but cannot return it. The message fits after "in store X: ". After an error no
other store is tried, because the operator meant that store.
"""

import importlib
import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from dotenv import dotenv_values
from msgspec import Struct

from system.files import FileContent, MissingFileError, UnreadableFileError, read_regular_file

#: The store name that means all stores.
ALL_STORES = "secrets"

STORE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
# A secret name is a single path component and never hidden: it has no slash and no leading dot.
_REFERENCE = re.compile(rf"\$\{{\s*({STORE_NAME.pattern})\s*:\s*([A-Za-z0-9_][A-Za-z0-9_.-]*)\s*\}}")
# A misspelt reference: `$ {`, `${{`, `$(store:`, `{ store:`, and `secrets:` on its own.
_LOOKS_LIKE_REFERENCE = re.compile(
    r"\$\s*\{ | [{(\[<%]\s*[A-Za-z][\w-]*\s*:\s*[\w.-]+\s*[})\]>%] | \bsecrets\s*: ", re.VERBOSE | re.IGNORECASE
)


class MalformedReferenceError(Exception):
    """A text looks like a reference but is not valid. The message shows no part of the text."""

    def __init__(self) -> None:
        super().__init__("contains a malformed secret reference: write it as ${ secrets:name } or ${ store:name }")


def check_references(text: str) -> None:
    """Raise MalformedReferenceError if *text* contains a malformed reference."""
    literals = _REFERENCE.split(text)[::3]  # each match adds the store and the name between two literals
    if any(map(_LOOKS_LIKE_REFERENCE.search, literals)):
        raise MalformedReferenceError


def expand_references(text: str, resolve: Callable[[str, str], str]) -> str:
    """
    Replace each reference by *resolve*(store, name).

    The result is not expanded again. Errors from *resolve* propagate.
    """
    return _REFERENCE.sub(lambda match: resolve(match[1], match[2]), text)


def holds_reference(text: str) -> bool:
    """Return True if *text* contains at least one well-formed reference."""
    return _REFERENCE.search(text) is not None


# --- stores -----------------------------------------------------------------------------------------------------------

MAX_SECRET_BYTES = 64 * 1024
MAX_DOTENV_BYTES = 1024 * 1024
#: Searched in this order after the process environment. Both files are in the directory of the configuration file.
DOTENV_NAMES = (".env.local", ".env")
#: The prefix of Spice.ai's environment variables.
SPICE_PREFIX = "SPICE_"


class SecretError(Exception):
    """A secret cannot be used. The message names the secret and the stores asked, never a value."""


@dataclass(frozen=True, slots=True, repr=False)  # it contains secret values
class EnvStore:
    """
    Environment variables from the process, then from `.env.local`, then from `.env`.

    Each source is searched for the name as written, then in upper case. If no source has the name, all are searched
    again for the name with Spice.ai's prefix `SPICE_`. *warn* receives a file and a sentence about it.
    """

    name: str
    environ: Mapping[str, str]
    directory: Path
    warn: Callable[[str, str], None]
    _files: dict[str, tuple[Mapping[str, str | None], bool]] = field(default_factory=dict, init=False)

    def get(self, name: str) -> str | None:
        """Return the first value found. An empty value counts as found."""
        found = self._find(name)
        if found is None:
            return None
        variable, file_name = found
        if not file_name:
            return self.environ[variable]
        variables, others_may_read = self._read(file_name)
        if others_may_read:
            self.warn(str(self.directory / file_name), "contains a secret in use, but other users can read it")
        return variables[variable]

    def looked_at(self, name: str) -> str:
        """Return the variables, the environment and the files."""
        if (found := self._find(name)) is not None:
            return f"the variable {found[0]} in {self.directory / found[1] if found[1] else 'the environment'}"
        files = [self.directory / file_name for file_name in DOTENV_NAMES]
        shown = [f"{file}{'' if os.path.lexists(file) else ' (no such file)'}" for file in files]
        *variables, last = dict.fromkeys(one for names in _names(name) for one in names)
        return f"the variables {', '.join(variables)} and {last} in the environment, {' and '.join(shown)}"

    def _find(self, name: str) -> tuple[str, str] | None:
        """Return the variable to use and the name of its file, which is empty for the process environment."""
        for names in _names(name):
            for file_name in ("", *DOTENV_NAMES):
                variables = self._read(file_name)[0] if file_name else self.environ
                for variable in names:
                    if variables.get(variable) is not None:
                        return variable, file_name
        return None

    def _read(self, file_name: str) -> tuple[Mapping[str, str | None], bool]:
        if file_name not in self._files:
            try:
                content = read_regular_file(self.directory / file_name, MAX_DOTENV_BYTES)
                text = _decode(content)
            except MissingFileError:
                self._files[file_name] = ({}, False)
            except UnreadableFileError as exc:
                raise SecretError(f"{file_name} cannot be read: {exc}") from None
            else:
                # Use values verbatim, without interpolation.
                variables = dotenv_values(stream=io.StringIO(text), interpolate=False)
                self._files[file_name] = (variables, content.others_may_read)
        return self._files[file_name]


def _names(name: str) -> tuple[tuple[str, str], ...]:
    """Return the variables for the secret *name*: first the names without the prefix, then with it."""
    return (name, name.upper()), (f"{SPICE_PREFIX}{name}", f"{SPICE_PREFIX}{name.upper()}")


class FileStore(Struct, frozen=True):
    """One file per secret in one directory, as Docker, Kubernetes and systemd mount them."""

    name: str
    directory: Path

    def get(self, name: str) -> str | None:
        """Return the text of the file without one trailing newline."""
        try:
            text = _decode(read_regular_file(self.directory / name, MAX_SECRET_BYTES))
        except MissingFileError:
            return None
        except UnreadableFileError as exc:
            raise SecretError(f"its file cannot be read: {exc}") from None
        return without_newline(text)

    def looked_at(self, name: str) -> str:
        """Return the file."""
        missing = "" if os.path.lexists(self.directory) else " (no such directory)"
        return f"the file {self.directory / name}{missing}"


def without_newline(text: str) -> str:
    """Return *text* without a single trailing newline, which an editor or `echo` adds."""
    return text.removesuffix("\r\n") if text.endswith("\r\n") else text.removesuffix("\n")


def _decode(content: FileContent) -> str:
    try:
        text = content.data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        # Raise outside the handler, because a UnicodeDecodeError contains the bytes and would become the context.
        raise UnreadableFileError("it is binary, not UTF-8 text")
    return text


class KeyringStore(Struct, frozen=True):
    """The keyring of the operating system, through the optional `keyring` package."""

    name: str
    service: str

    def get(self, name: str) -> str | None:
        """Return the password for the service and *name*."""
        try:
            keyring = importlib.import_module("keyring")
            value = keyring.get_password(self.service, name)
        except Exception as exc:  # noqa: BLE001 (each backend raises its own errors)
            problem = type(exc).__name__
        else:
            if value is None or isinstance(value, str):
                return value
            raise SecretError("the backend of the keyring returned something other than text")
        raise SecretError(f"the keyring does not respond ({problem}); is a backend installed and unlocked?")

    def looked_at(self, name: str) -> str:
        """Return the entry."""
        return f"the entry {name} of the service {self.service} in the keyring"


class SecretStore(Protocol):
    """A configured secret store."""

    @property
    def name(self) -> str:
        """The name that references use."""

    def get(self, name: str) -> str | None:
        """Return the secret *name*, as described in the module docstring."""

    def looked_at(self, name: str) -> str:
        """Describe for people where `get` found the secret *name*, or where it searched without success."""


class SecretStores(Struct, frozen=True):
    """All configured stores, in file order."""

    stores: Sequence[SecretStore]

    def resolve(self, store_name: str, name: str) -> str:
        """
        Return the non-empty value of the secret *name* from one store, or from any store with ALL_STORES.

        Raises:
            SecretError: The store is unknown, or the secret is missing, empty or unusable.
        """
        if store_name == ALL_STORES:
            asked = self.stores[::-1]  # the last one defined wins
        else:
            asked = [store for store in self.stores if store.name == store_name]
            if not asked:
                known = ", ".join((ALL_STORES, *(store.name for store in self.stores)))
                raise SecretError(f"refers to a secret store that is not configured; the stores are: {known}")
        for store in asked:
            try:
                value = store.get(name)
            except SecretError as exc:
                raise SecretError(f"secret '{name}' in store {store.name}: {exc}") from None
            if value == "":
                raise SecretError(f"secret '{name}' in store {store.name} is empty (tried: {store.looked_at(name)})")
            if value is not None:
                return value
        names = ", ".join(store.name for store in asked) or "none"
        places = "; ".join(store.looked_at(name) for store in asked)
        where = f" (tried: {places})" if places else ""
        raise SecretError(f"secret '{name}' was not found; stores searched: {names}{where}")

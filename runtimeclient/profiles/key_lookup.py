"""Find the API key: an option, a file, the environment, a profile, or none."""

import getpass
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from runtimeclient.errors import UsageError
from runtimeclient.http.api_key import check_api_key
from runtimeclient.profiles.config import Profile

KEY_VARIABLE = "RUNTIME_API_KEY"
ENDPOINT_VARIABLE = "RUNTIME_HTTP_ENDPOINT"
STANDARD_INPUT = "-"
#: The file in which `init` stores a key, and the line for a shell that makes this key known to the client.
KEY_FILE = "api_key"
KEY_FILE_HINT = f'export {KEY_VARIABLE}="$(cat {KEY_FILE})"'

# Far longer than any real key, and short enough to read even from an endless device.
_MAX_KEY_BYTES = 8192


class Credential(NamedTuple):
    """An API key, or None for an anonymous call, and a warning about its source if there is one."""

    api_key: str | None
    warning: str | None = None

    def __repr__(self) -> str:
        return f"Credential(api_key={'<secret>' if self.api_key else None}, warning={self.warning!r})"


def find_credential(
    flag: str | None, file: str | None, environ: Mapping[str, str], profile: Profile | None = None
) -> Credential:
    """
    Take the key from the flag, else the file (`-` is standard input), else `RUNTIME_API_KEY`, else the *profile*.

    One trailing line break of a file is not part of the key. An empty variable counts as absent; an empty flag or file
    is an error, because the call would silently be anonymous.

    Raises:
        UsageError: The flag or file is empty, the file cannot be read, or a header cannot carry the key. The message
            contains no part of the key.
    """
    if flag is not None:
        if not flag:
            raise UsageError("--api-key is empty: give a key, or omit the option to call without one.")
        return Credential(check_api_key(flag, "given by --api-key"))
    if file == STANDARD_INPUT:
        return Credential(check_api_key(_key_from_standard_input(), "on standard input"))
    if file is not None:
        return _credential_in_file(file)
    if variable := environ.get(KEY_VARIABLE):
        return Credential(check_api_key(variable, f"in {KEY_VARIABLE}"))
    return Credential(None) if profile is None else _credential_of_profile(profile, environ)


def _credential_of_profile(profile: Profile, environ: Mapping[str, str]) -> Credential:
    where = f"of the profile {profile.name}"
    if profile.api_key is not None:
        return Credential(check_api_key(profile.api_key, where))
    if profile.api_key_file is not None:
        return _credential_in_file(str(profile.api_key_file))
    if (name := profile.api_key_variable) is not None:
        if not environ.get(name):
            raise UsageError(f"The variable {name}, which holds the API key {where}, is not set.")
        return Credential(check_api_key(environ[name], f"in {name}"))
    if profile.api_key_keyring:
        from runtimeclient.profiles.keyrings import read_key  # noqa: PLC0415 (an extra)

        return Credential(check_api_key(read_key(profile), f"{where} in the keyring"))
    return Credential(None)


def _key_from_standard_input() -> str:
    if sys.stdin is None:
        raise UsageError("The API key cannot be read: there is no standard input.")
    if sys.stdin.isatty():
        return getpass.getpass("API key: ")
    return _decode(sys.stdin.buffer.read(_MAX_KEY_BYTES + 1), "on standard input")


def _credential_in_file(file: str) -> Credential:
    try:
        with Path(file).open("rb") as stream:
            content = stream.read(_MAX_KEY_BYTES + 1)
            mode = os.fstat(stream.fileno()).st_mode
    except OSError as exc:
        raise UsageError(f"The API key file {file} cannot be read: {exc.strerror}.") from exc
    warning = None
    if stat.S_ISREG(mode) and mode & (stat.S_IRGRP | stat.S_IROTH):
        warning = f"{file} can be read by others (mode {stat.S_IMODE(mode):04o}): chmod 600 it."
    return Credential(check_api_key(_decode(content, f"in {file}"), f"in {file}"), warning)


def _decode(content: bytes, where: str) -> str:
    if len(content) > _MAX_KEY_BYTES:
        raise UsageError(f"The API key {where} is longer than {_MAX_KEY_BYTES} bytes.")
    # Latin-1 decodes every byte; check_api_key rejects non-ASCII with a better message than a decoder.
    return content.removesuffix(b"\n").removesuffix(b"\r").decode("latin-1")

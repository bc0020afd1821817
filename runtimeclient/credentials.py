"""Where the API key comes from: a flag, a file, the environment, or nowhere."""

from __future__ import annotations

import getpass
import json
import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from runtimeclient.errors import UsageError
from runtimeclient.profiles import Profile

KEY_VARIABLE = "RUNTIME_API_KEY"
ENDPOINT_VARIABLE = "RUNTIME_HTTP_ENDPOINT"
STANDARD_INPUT = "-"

# Far over any real key, and small enough to read from anything that calls itself a file.
_LONGEST_KEY_BYTES = 8192


@dataclass(frozen=True, slots=True)
class Credential:
    """An API key, or None for an anonymous call, with a warning about its source when there is one to give."""

    api_key: str | None
    warning: str | None = None

    def __repr__(self) -> str:
        return f"Credential(api_key={'<secret>' if self.api_key else None}, warning={self.warning!r})"


def find_credential(
    flag: str | None, file: str | None, environ: Mapping[str, str], profile: Profile | None = None
) -> Credential:
    """
    Take the key from the flag, else the file (`-` is standard input), else `RUNTIME_API_KEY`, else the *profile*.

    One line break at the end of a file is not part of the key. An empty variable counts as absent; an empty flag or
    file is a mistake, because the call would go out anonymous without anybody meaning it to.

    Raises:
        UsageError: The flag or file is empty, the file cannot be read, or the key cannot be sent in a header. The
            message never holds any part of the key.
    """
    if flag is not None:
        if not flag:
            raise UsageError("--api-key is empty: give a key, or leave the option out to call without one.")
        return Credential(check_api_key(flag, "given by --api-key"))
    if file is not None:
        if file == STANDARD_INPUT:
            return Credential(check_api_key(_key_from_standard_input(), "on standard input"))
        text, warning = _key_from_file(file)
        return Credential(check_api_key(text, f"in {file}"), warning)
    if variable := environ.get(KEY_VARIABLE):
        return Credential(check_api_key(variable, f"in {KEY_VARIABLE}"))
    return Credential(None) if profile is None else _credential_of(profile, environ)


def _credential_of(profile: Profile, environ: Mapping[str, str]) -> Credential:
    where = f"of the profile {profile.name}"
    if profile.api_key is not None:
        return Credential(check_api_key(profile.api_key, where))
    if profile.api_key_file is not None:
        file = str(profile.api_key_file)
        text, warning = _key_from_file(file)
        return Credential(check_api_key(text, f"in {file}"), warning)
    if (name := profile.api_key_variable) is not None:
        if not environ.get(name):
            raise UsageError(f"The key {where} should be in the variable {name}, which is not set.")
        return Credential(check_api_key(environ[name], f"in {name}"))
    if profile.api_key_keyring:
        from runtimeclient.keyrings import read_key  # noqa: PLC0415 (an extra)

        return Credential(check_api_key(read_key(profile), f"{where} in the keyring"))
    return Credential(None)


def check_api_key(key: str, where: str) -> str:
    """
    Give back a key that a header can carry as it is.

    Args:
        key: The key.
        where: Where it comes from, for the message.

    Raises:
        UsageError: The key is empty, or would arrive changed or not at all. The message holds no part of it.
    """
    if not key:
        raise UsageError(f"The API key {where} is empty.")
    if key != key.strip():
        raise UsageError(f"The API key {where} has white space around it.")
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"The API key {where} has characters that cannot be sent in a header: use printable ASCII.")
    return key


def masked(text: str, api_key: str | None) -> str:
    """Give *text* without the key: a server may echo it, as it is, as JSON writes it, or percent-encoded."""
    if api_key is not None:
        for form in (api_key, json.dumps(api_key)[1:-1], quote(api_key, safe="")):
            text = text.replace(form, "<secret>")
    return text


def _key_from_standard_input() -> str:
    if sys.stdin is None:
        raise UsageError("There is no standard input to read the API key from.")
    if sys.stdin.isatty():
        return getpass.getpass("API key: ")
    return _decode(sys.stdin.buffer.read(_LONGEST_KEY_BYTES + 1), "on standard input")


def _key_from_file(file: str) -> tuple[str, str | None]:
    try:
        with Path(file).open("rb") as stream:
            content = stream.read(_LONGEST_KEY_BYTES + 1)
            mode = os.fstat(stream.fileno()).st_mode
    except OSError as exc:
        raise UsageError(f"The API key file {file} cannot be read: {exc.strerror}.") from exc
    warning = None
    if stat.S_ISREG(mode) and mode & (stat.S_IRGRP | stat.S_IROTH):
        warning = f"{file} can be read by others (mode {stat.S_IMODE(mode):04o}): chmod 600 it."
    return _decode(content, f"in {file}"), warning


def _decode(content: bytes, where: str) -> str:
    if len(content) > _LONGEST_KEY_BYTES:
        raise UsageError(f"The API key {where} is longer than {_LONGEST_KEY_BYTES} bytes.")
    # Latin-1 takes every byte; what is not ASCII is refused with a better sentence than a decoder has.
    return content.removesuffix(b"\n").removesuffix(b"\r").decode("latin-1")

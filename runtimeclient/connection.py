"""Determines a command's runtime and API key from options, environment and profile."""

import argparse
import getpass
import math
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from runtimeclient.errors import UsageError
from runtimeclient.http.api_keys import check_api_key
from runtimeclient.http.timeouts import DEFAULT_TIMEOUTS, Timeouts
from runtimeclient.profiles import PROFILE_VARIABLE, Profile, find_profile, read_from_keyring

if TYPE_CHECKING:
    from runtimeclient.client import RuntimeClient

DEFAULT_ENDPOINT = "http://127.0.0.1:8090"
KEY_VARIABLE = "RUNTIME_API_KEY"
ENDPOINT_VARIABLE = "RUNTIME_HTTP_ENDPOINT"
STANDARD_INPUT = "-"
#: The file in which `init` stores a key, and the shell line that sets this key for the client.
KEY_FILE = "api_key"
KEY_FILE_HINT = f'export {KEY_VARIABLE}="$(cat {KEY_FILE})"'

# The system counts the milliseconds of a wait in 31 bits. A longer wait may end at once.
_MAX_WAIT_S = 2_000_000.0
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
    Return the key from the option, the file (`-` is standard input), `RUNTIME_API_KEY` or the *profile*, in this order.

    One trailing line break in a file is not part of the key. An empty variable counts as absent. An empty option or
    file is an error, because the call would silently be anonymous.

    Raises:
        UsageError: The option or file is empty, the file cannot be read, or a header cannot carry the key. The message
            contains no part of the key.
    """
    if flag is not None:
        if not flag:
            raise UsageError("--api-key is empty: specify a key, or omit the option to send no key.")
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
            raise UsageError(f"The variable {name}, which contains the API key {where}, is not set.")
        return Credential(check_api_key(environ[name], f"in {name}"))
    if profile.api_key_keyring:
        return Credential(check_api_key(read_from_keyring(profile), f"{where} in the keyring"))
    return Credential(None)


def _key_from_standard_input() -> str:
    if sys.stdin is None:
        raise UsageError("The API key cannot be read: there is no standard input.")
    if sys.stdin.isatty():
        return ask_key("API key: ")
    return _decode(sys.stdin.buffer.read(_MAX_KEY_BYTES + 1), "on standard input")


def ask_key(prompt: str) -> str:
    """Ask for a key at the terminal, without echo. Raises UsageError if the user presses Ctrl-D instead."""
    try:
        return getpass.getpass(prompt)
    except EOFError as exc:
        sys.stderr.write("\n")  # The cursor is still behind the prompt.
        raise UsageError("No API key was typed.") from exc


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
    # Latin-1 decodes every byte, and check_api_key rejects non-ASCII text with a better message than a decoder.
    return content.removesuffix(b"\n").removesuffix(b"\r").decode("latin-1")


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that connects to a runtime."""
    group = parser.add_argument_group("connection")
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help="the API key; other users can briefly see it in the process list, so prefer a file",
    )
    group.add_argument(
        "--api-key-file",
        metavar="FILE",
        help=f"file with the API key, - for standard input (default: {KEY_VARIABLE} from the environment, else the key"
        " of the profile, else none)",
    )
    group.add_argument(
        "--http-endpoint",
        metavar="URL",
        help=f"URL of the runtime (default: {ENDPOINT_VARIABLE} from the environment, else the endpoint of the"
        f" profile, else {DEFAULT_ENDPOINT})",
    )
    group.add_argument(
        "--profile",
        metavar="NAME",
        help=f"take endpoint and key from this profile of the configuration file (default: {PROFILE_VARIABLE} from the"
        " environment, else the profile named default if it exists)",
    )
    group.add_argument(
        "--tls-root-certificate-file",
        metavar="FILE",
        type=Path,
        help="PEM file with the root certificates to trust instead of the default ones (for https)",
    )
    group.add_argument(
        "--connect-timeout",
        metavar="SECONDS",
        type=seconds,
        default=DEFAULT_TIMEOUTS.connect_s,
        help="time limit to connect, and for the whole response to any request except a query (default %(default)g)",
    )
    group.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        default=DEFAULT_TIMEOUTS.silence_s,
        help="time limit until the response to a query begins, and how long it may then stay below 100 bytes per second"
        " (default %(default)g)",
    )


def connect(options: argparse.Namespace, environ: Mapping[str, str]) -> "tuple[RuntimeClient, str | None]":
    """
    Create a client, and return it with any warning about the source of its key.

    An option wins over the environment, and the environment over the profile. The key of a profile is only sent to the
    endpoint of that profile. If the endpoint comes from elsewhere, a named profile is an error, and the default profile
    is ignored.

    Raises:
        UsageError: An option, a variable or the profile cannot be used.
    """
    from runtimeclient.client import RuntimeClient  # noqa: PLC0415 (httpx is slow to import)
    from runtimeclient.http.endpoint import parse_endpoint  # noqa: PLC0415 (httpx is slow to import)

    profile = _profile(options, environ)
    endpoint = options.http_endpoint
    if endpoint is None:
        endpoint = environ.get(ENDPOINT_VARIABLE) or (profile.endpoint.url if profile else DEFAULT_ENDPOINT)
    if profile is not None and parse_endpoint(endpoint).origin != profile.endpoint.origin:
        if profile.is_named:
            raise UsageError(
                f"The profile {profile.name} is for {profile.endpoint.url}, but --http-endpoint or {ENDPOINT_VARIABLE}"
                f" names another runtime: the profile's key is not sent there."
            )
        profile = None
    roots = options.tls_root_certificate_file or (profile.tls_root_certificate_file if profile else None)
    key, warning = find_credential(options.api_key, options.api_key_file, environ, profile)
    return RuntimeClient(endpoint, key, tls_root_certificate_file=roots, timeouts=timeouts(options)), warning


def timeouts(options: argparse.Namespace) -> Timeouts:
    """Return the time limits that the connection options set."""
    return Timeouts(connect_s=options.connect_timeout, silence_s=options.timeout)


def seconds(text: str) -> float:
    """Parse a number of seconds. A wait of more than 23 days is one of 23 days."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError("must be a number of seconds greater than 0")
    return min(value, _MAX_WAIT_S)


def _profile(options: argparse.Namespace, environ: Mapping[str, str]) -> Profile | None:
    """Return the profile, unless all values that it could supply are given."""
    has_key = options.api_key is not None or options.api_key_file is not None or environ.get(KEY_VARIABLE)
    has_endpoint = options.http_endpoint is not None or environ.get(ENDPOINT_VARIABLE)
    is_named = options.profile is not None or environ.get(PROFILE_VARIABLE)
    return None if has_key and has_endpoint and not is_named else find_profile(options.profile, environ)

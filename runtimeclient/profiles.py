"""
Profiles: named endpoints and their keys, in `querykeep/config.toml` in the user's configuration directory.

::

    [profiles.production]
    endpoint = "https://runtime.example:8090"
    tls_root_certificate_file = "root.pem"
    api_key_file = "production.key"

A profile's key is set with one of `api_key_file`, `api_key_variable` (an environment variable), `api_key_keyring =
true` and `api_key`. It is only sent to the endpoint of its profile.
"""

import importlib
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtimeclient.distribution import install_command
from runtimeclient.errors import UsageError
from runtimeclient.files import parse_path, xdg_directory

if TYPE_CHECKING:
    from runtimeclient.http.endpoint import Endpoint

PROFILE_VARIABLE = "QUERYKEEP_PROFILE"
#: The profile that is used by default, if it exists.
DEFAULT_PROFILE = "default"

_MAX_CONFIG_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
#: The fields that set a key. A profile has at most one of them.
KEY_SOURCES = ("api_key", "api_key_file", "api_key_variable", "api_key_keyring")
#: The fields of a profile and their types.
FIELDS: Mapping[str, type] = {
    **dict.fromkeys(("endpoint", "tls_root_certificate_file", *KEY_SOURCES), str),
    "api_key_keyring": bool,
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Profile:
    """A named endpoint and the location of its key."""

    name: str
    endpoint: "Endpoint"
    tls_root_certificate_file: Path | None = None  # PEM, the only roots to trust; None trusts the default ones
    api_key: str | None = None  # the key itself, if it is in the configuration file
    api_key_file: Path | None = None
    api_key_variable: str | None = None
    api_key_keyring: bool = False
    is_named: bool = True  # whether the user named this profile, instead of getting it by default

    def __repr__(self) -> str:
        return f"Profile(name={self.name!r}, endpoint={self.endpoint.url!r})"

    @property
    def keyring_user(self) -> str:
        """The user name of the keyring entry. It includes the endpoint, so that the key is sent only to it."""
        return f"{self.name}@{self.endpoint.origin}"


def config_directory(environ: Mapping[str, str]) -> Path:
    """Return the configuration directory. Raises UsageError if the home directory is unknown."""
    return xdg_directory(environ, "XDG_CONFIG_HOME", "~/.config")


def check_profile_name(name: str) -> str:
    """Return *name* if it is valid as a profile name and a file name. Raises UsageError."""
    if not _NAME.fullmatch(name):
        raise UsageError("A profile name consists of at most 64 letters, digits, hyphens, underscores and dots.")
    return name


def find_profile(named: str | None, environ: Mapping[str, str]) -> Profile | None:
    """
    Return the profile *named*, else the one in QUERYKEEP_PROFILE, else `default` if it exists, else None.

    Raises:
        UsageError: There is no such profile, or the file cannot be used.
    """
    name = environ.get(PROFILE_VARIABLE) or None if named is None else named
    try:
        directory = config_directory(environ)
    except UsageError:
        # A user without a home directory has no profiles, which is an error only if a profile is named.
        if name is None:
            return None
        raise
    profiles = read_config(directory / "config.toml")
    if name is None:
        table = profiles.get(DEFAULT_PROFILE)
        return None if table is None else _profile(DEFAULT_PROFILE, table, directory, is_named=False)
    check_profile_name(name)
    if name not in profiles:
        known = f" The profiles are {', '.join(sorted(profiles))}." if profiles else ""
        raise UsageError(f"There is no profile {name} in {directory / 'config.toml'}.{known}")
    return _profile(name, profiles[name], directory, is_named=True)


def read_config(file: Path) -> Mapping[str, Mapping[str, Any]]:
    """
    Read the profiles of a configuration file; none if the file does not exist.

    Raises:
        UsageError: The file cannot be read or is invalid, or contains a key and can be read by others.
    """
    try:
        with file.open("rb") as stream:
            content = stream.read(_MAX_CONFIG_BYTES + 1)
            mode = os.fstat(stream.fileno()).st_mode
    except (FileNotFoundError, NotADirectoryError):  # NotADirectoryError occurs with XDG_CONFIG_HOME=/dev/null.
        return {}
    except OSError as exc:
        raise UsageError(f"{file} cannot be read: {exc.strerror}.") from exc
    import tomllib  # noqa: PLC0415 (slow to import, and many users have no such file)

    if len(content) > _MAX_CONFIG_BYTES:
        raise UsageError(f"{file} is longer than {_MAX_CONFIG_BYTES} bytes.")
    try:
        config = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as exc:
        # Do not show the parser's message, because it may quote a key.
        where = re.search(r"\(at line \d+, column \d+\)", str(exc))
        raise UsageError(f"{file} is not valid TOML{' ' + where[0] if where else ''}.") from exc
    _check_fields(config, {"profiles": dict}, str(file))
    profiles: dict[str, Mapping[str, Any]] = config.get("profiles", {})
    for name, profile in profiles.items():
        if not isinstance(profile, dict):
            raise UsageError(f"{file}: profiles.{name} must be a table.")
        _check_fields(profile, FIELDS, f"{file}: profiles.{name}")
        if "api_key" in profile and mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UsageError(
                f"{file} contains a key and is accessible to others (mode {stat.S_IMODE(mode):04o}): chmod 600 it."
            )
    return profiles


def _check_fields(table: Mapping[str, Any], fields: Mapping[str, type], where: str) -> None:
    for name, value in table.items():
        if name not in fields:
            nearest = get_close_matches(name, fields, 1)
            hint = f": did you mean {nearest[0]}?" if nearest else "."
            raise UsageError(f"{where}: unknown field {name}{hint}")
        if not isinstance(value, fields[name]):
            kind = {str: "a string", bool: "true or false", dict: "a table"}[fields[name]]
            raise UsageError(f"{where}: {name} must be {kind}.")


def _profile(name: str, table: Mapping[str, Any], directory: Path, *, is_named: bool) -> Profile:
    from runtimeclient.http.endpoint import parse_endpoint  # noqa: PLC0415 (httpx is slow to import)

    if "endpoint" not in table:
        raise UsageError(f"The profile {name} has no endpoint.")
    if len(sources := [source for source in KEY_SOURCES if table.get(source)]) > 1:
        raise UsageError(f"The profile {name} has {' and '.join(sources)}: set only one of them.")
    try:
        endpoint = parse_endpoint(table["endpoint"])
    except UsageError as exc:
        raise UsageError(f"The profile {name}: {exc}") from exc
    return Profile(
        name=name,
        endpoint=endpoint,
        tls_root_certificate_file=_path(table, "tls_root_certificate_file", directory),
        api_key=table.get("api_key"),
        api_key_file=_path(table, "api_key_file", directory),
        api_key_variable=table.get("api_key_variable"),
        api_key_keyring=table.get("api_key_keyring", False),
        is_named=is_named,
    )


def _path(table: Mapping[str, Any], name: str, directory: Path) -> Path | None:
    return directory / parse_path(table[name]) if name in table else None


_SERVICE = "querykeep"


def has_keyring() -> bool:
    """Return whether there is a usable keyring."""
    try:
        keyring = importlib.import_module("keyring")
        # keyring.backends.fail has priority 0, and null, which stores nothing, has -1.
        return bool(keyring.get_keyring().priority > 0)
    except Exception:  # noqa: BLE001 (a backend may raise anything)
        return False


def read_from_keyring(profile: Profile) -> str:
    """Return the key of *profile*. Raises UsageError if the keyring has none or cannot be used."""
    if (key := _call_keyring("get_password", profile)) is None:
        raise UsageError(f"The keyring has no key for the profile {profile.name}: run querykeep login.")
    return str(key)


def store_in_keyring(profile: Profile, key: str) -> None:
    """Store the key of *profile*. Raises UsageError if the keyring cannot be used."""
    _call_keyring("set_password", profile, key)


def remove_from_keyring(profile: Profile) -> None:
    """Delete the key of *profile*, if there is one. Raises UsageError if the keyring cannot be used."""
    if _call_keyring("get_password", profile) is not None:
        _call_keyring("delete_password", profile)


def _call_keyring(function: str, profile: Profile, *arguments: str) -> Any:
    try:
        keyring = importlib.import_module("keyring")
    except ImportError as exc:
        raise UsageError(f"The keyring needs the package keyring: {install_command('keyring')}") from exc
    try:
        return getattr(keyring, function)(_SERVICE, profile.keyring_user, *arguments)
    except Exception as exc:
        # A backend may raise anything, and its message may contain the key.
        raise UsageError(f"The keyring cannot be used ({type(exc).__name__}).") from exc

"""`login` and `logout`: store the key of a runtime in a profile, and delete it."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from runtimeclient.commands.base import Command, Invocation
from runtimeclient.connection import DEFAULT_ENDPOINT, ENDPOINT_VARIABLE, ask_key, find_credential, timeouts
from runtimeclient.errors import NotAuthorisedError, UsageError
from runtimeclient.files import check_replaceable, replace_file
from runtimeclient.http.api_keys import check_api_key
from runtimeclient.profiles import (
    DEFAULT_PROFILE,
    KEY_SOURCES,
    PROFILE_VARIABLE,
    Profile,
    check_profile_name,
    config_directory,
    find_profile,
    has_keyring,
    read_config,
    remove_from_keyring,
    store_in_keyring,
)


def profile_name(named: str | None, environ: Mapping[str, str]) -> str:
    """Return the name of the profile to change: *named*, else the one in the environment, else `default`."""
    return check_profile_name(environ.get(PROFILE_VARIABLE) or DEFAULT_PROFILE if named is None else named)


class ProfileStore:
    """
    The profiles of a user. Changes keep the rest of the configuration file, including comments.

    Every method raises UsageError if the file is invalid, and OutputError if it cannot be written.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._directory = config_directory(environ)
        self._config = self._directory / "config.toml"

    def find(self, name: str) -> Profile | None:
        """Return the profile with this name, if there is one."""
        return find_profile(name, self._environ) if name in read_config(self._config) else None

    def save(self, profile: Profile, key: str, store: Literal["keyring", "file"]) -> str:
        """Store a profile and its key. Return the location of the key, for people."""
        before = self.find(profile.name)
        # Check first: a key stored without its profile would be lost.
        check_replaceable(self._config)
        fields: dict[str, Any] = {"endpoint": profile.endpoint.url}
        if profile.tls_root_certificate_file is not None:
            fields["tls_root_certificate_file"] = str(profile.tls_root_certificate_file.absolute())
        if store == "keyring":
            store_in_keyring(profile, key)
            fields["api_key_keyring"] = True
            where = "the keyring"
        else:
            file = self._key_file(profile.name)
            replace_file(file, f"{key}\n".encode())
            fields["api_key_file"] = str(file.relative_to(self._directory))
            where = str(file)
        self._change(profile.name, fields)
        # Remove an older key last: the profile worked with it until now.
        if before is not None:
            self._remove_key(before, kept=profile.keyring_user if store == "keyring" else self._key_file(profile.name))
        return where

    def delete_key(self, profile: Profile) -> None:
        """Delete the key of a profile, and the keyring entry or file that `login` created for it."""
        self._change(profile.name, {})
        self._remove_key(profile, kept=None)

    def _remove_key(self, profile: Profile, kept: str | Path | None) -> None:
        """Delete the keyring entry or own file of a profile, unless it is *kept*."""
        if profile.api_key_keyring and profile.keyring_user != kept:
            remove_from_keyring(profile)
        own = self._key_file(profile.name)
        if profile.api_key_file == own != kept:
            own.unlink(missing_ok=True)

    def _key_file(self, name: str) -> Path:
        return self._directory / "keys" / name

    def _change(self, name: str, fields: Mapping[str, Any]) -> None:
        """Set *fields* of a profile, and remove other key fields."""
        import tomlkit  # noqa: PLC0415 (slow to import)
        from tomlkit.exceptions import TOMLKitError  # noqa: PLC0415

        try:
            text = self._config.read_text(encoding="utf-8")
        except FileNotFoundError:
            text = "# Profiles of querykeep: endpoints, and where to find their API keys.\n"
        try:
            document = tomlkit.parse(text)
        except TOMLKitError as exc:
            raise UsageError(f"{self._config} is not valid TOML.") from exc
        if "profiles" not in document:
            document.add("profiles", tomlkit.table(is_super_table=True))
        profiles: Any = document["profiles"]
        if name not in profiles:
            profiles.add(name, tomlkit.table())
        for field in KEY_SOURCES:
            if field not in fields:
                profiles[name].pop(field, None)
        profiles[name].update(fields)
        replace_file(self._config, tomlkit.dumps(document).encode())


def _login(invocation: Invocation) -> None:
    from runtimeclient.http.endpoint import parse_endpoint  # noqa: PLC0415 (httpx is slow to import)

    options, environ, console = invocation.options, invocation.environ, invocation.console
    name = profile_name(options.profile, environ)
    store = ProfileStore(environ)
    before = store.find(name)
    url = options.http_endpoint
    if url is None:
        url = environ.get(ENDPOINT_VARIABLE) or (before.endpoint.url if before else DEFAULT_ENDPOINT)
    roots = options.tls_root_certificate_file or (before.tls_root_certificate_file if before else None)
    profile = Profile(name=name, endpoint=parse_endpoint(url), tls_root_certificate_file=roots)
    key = _ask_key(invocation, profile)
    console.api_key = key
    _check_key(invocation, profile, key)
    where = store.save(profile, key, options.store or ("keyring" if has_keyring() else "file"))
    console.write_line(f"The key of {profile.endpoint.url} is in {where}; its profile is {name}.")


def _ask_key(invocation: Invocation, profile: Profile) -> str:
    options, console = invocation.options, invocation.console
    key, warning = find_credential(options.api_key, options.api_key_file, {})
    if warning:
        console.warn(warning)
    if key is not None:
        return key
    if console.stdin is None or not console.stdin.isatty():
        raise UsageError("The key cannot be typed without a terminal: use --api-key-file FILE, or - for a pipe.")
    return check_api_key(ask_key(f"API key of {profile.endpoint.url}: "), "that was typed")


def _check_key(invocation: Invocation, profile: Profile, key: str) -> None:
    """Raise an error if the runtime refuses the key. Warn if it would accept any key."""
    endpoint, console, limits = profile.endpoint, invocation.console, timeouts(invocation.options)
    roots = profile.tls_root_certificate_file
    from runtimeclient.client import RuntimeClient  # noqa: PLC0415 (httpx is slow to import)

    with RuntimeClient(endpoint.url, key, tls_root_certificate_file=roots, timeouts=limits) as client:
        client.status()
    anonymous = RuntimeClient(endpoint.url, tls_root_certificate_file=roots, timeouts=limits)
    with suppress(NotAuthorisedError), anonymous:
        anonymous.status()
        console.warn(f"{endpoint.url} does not require a key at present: this one was not checked.")
    if not (endpoint.is_tls or endpoint.is_loopback):
        console.warn(f"{endpoint.url} does not use https: the key is sent unencrypted.")


_LOGIN = Command(
    name="login",
    description=(
        "Ask for the API key of a runtime, check it with the runtime, and store endpoint\n"
        "and key in a profile. The key goes to the system keyring, or to a file that only\n"
        "you can read. RUNTIME_API_KEY is ignored."
    ),
    examples=(
        ("--http-endpoint https://runtime.example:8090", "the default profile"),
        ("--profile test --api-key-file key", "another profile, with a key from a file"),
    ),
    add_arguments=lambda parser: parser.add_argument(
        "--store",
        choices=("keyring", "file"),
        help="where to store the key (default: the keyring if there is one, else a file)",
    ),
    call=_login,
)


def _logout(invocation: Invocation) -> None:
    name = profile_name(invocation.options.profile, invocation.environ)
    store = ProfileStore(invocation.environ)
    profile = store.find(name)
    if profile is None:
        raise UsageError(f"There is no profile {name}.")
    store.delete_key(profile)
    invocation.console.write_line(f"The profile {name} no longer has a key.")
    kept = profile.api_key_variable or profile.api_key_file
    if profile.api_key_variable or (profile.api_key_file and profile.api_key_file.exists()):
        invocation.console.write_line(f"{kept} still holds the key: login did not create it.")


_LOGOUT = Command(
    name="logout",
    description=(
        "Delete the key of a profile, and the keyring entry or file that login created\n"
        "for it. The endpoint stays. The runtime still accepts the key until its operator\n"
        "revokes it."
    ),
    examples=(("", "the default profile"), ("--profile test", "another profile")),
    add_arguments=lambda parser: parser.add_argument(
        "--profile", metavar="NAME", help=f"the profile (default: {PROFILE_VARIABLE}, else {DEFAULT_PROFILE})"
    ),
    call=_logout,
    has_connection=False,
)

COMMANDS = {"login": _LOGIN, "logout": _LOGOUT}

"""Change the configuration file and the stored keys, for `login` and `logout`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import tomlkit
from tomlkit.exceptions import TOMLKitError

from runtimeclient.errors import UsageError
from runtimeclient.files import check_replaceable, replace_file
from runtimeclient.profiles import keyrings
from runtimeclient.profiles.config import (
    DEFAULT_PROFILE,
    KEY_SOURCES,
    PROFILE_VARIABLE,
    Profile,
    check_profile_name,
    config_directory,
    find_profile,
    read_config,
)


def profile_name(named: str | None, environ: Mapping[str, str]) -> str:
    """Return the name of the profile to change: *named*, else that of the environment, else `default`."""
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
        """Return the profile of that name, if there is one."""
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
            keyrings.store_key(profile, key)
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
        """Delete the keyring entry or own file of a profile, unless it is the one to be kept."""
        if profile.api_key_keyring and profile.keyring_user != kept:
            keyrings.remove_key(profile)
        own = self._key_file(profile.name)
        if profile.api_key_file == own != kept:
            own.unlink(missing_ok=True)

    def _key_file(self, name: str) -> Path:
        return self._directory / "keys" / name

    def _change(self, name: str, fields: Mapping[str, Any]) -> None:
        """Set *fields* of a profile, and remove other key fields."""
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

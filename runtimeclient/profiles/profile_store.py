"""Change the configuration file and the stored keys, for `login` and `logout`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import tomlkit
from tomlkit.exceptions import TOMLKitError

from runtimeclient.errors import UsageError
from runtimeclient.files import check_replaceable, replace_file
from runtimeclient.profiles import keyrings
from runtimeclient.profiles.config import Profile, config_directory, find_profile, read_config

KeyStore: TypeAlias = Literal["keyring", "file"]

_KEY_FIELDS = ("api_key", "api_key_file", "api_key_variable", "api_key_keyring")


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

    def save(self, profile: Profile, key: str, store: KeyStore) -> str:
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
        self._remove_key(before, kept=(store, profile.keyring_user))
        return where

    def delete_key(self, profile: Profile) -> None:
        """Delete the key of a profile, and the keyring entry or file that `login` created for it."""
        self._change(profile.name, {})
        self._remove_key(profile, kept=None)

    def _remove_key(self, profile: Profile | None, kept: tuple[KeyStore, str] | None) -> None:
        if profile is None:
            return
        if profile.api_key_keyring and kept != ("keyring", profile.keyring_user):
            keyrings.remove_key(profile)
        own = self._key_file(profile.name)
        if profile.api_key_file == own and (kept is None or kept[0] != "file"):
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
        for field in _KEY_FIELDS:
            if field not in fields:
                profiles[name].pop(field, None)
        profiles[name].update(fields)
        replace_file(self._config, tomlkit.dumps(document).encode())

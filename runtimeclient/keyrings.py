"""Keys in the keyring of the operating system, by way of the package keyring, an extra."""

from __future__ import annotations

import importlib
from typing import Any

from runtimeclient.distribution import install_command
from runtimeclient.errors import UsageError
from runtimeclient.profiles import KEYRING_SERVICE, Profile


def has_keyring() -> bool:
    """Tell whether there is a keyring that keeps what it is given."""
    try:
        keyring = importlib.import_module("keyring")
        # keyring.backends.fail has priority 0, and null keeps nothing at -1; neither can be used.
        return bool(keyring.get_keyring().priority > 0)
    except Exception:  # noqa: BLE001 (whatever a backend raises: there is none to be used)
        return False


def read_key(profile: Profile) -> str:
    """Give the key of *profile*. Raises UsageError when the keyring has none, or cannot be used."""
    key: str | None = _call("get_password", profile)
    if key is None:
        raise UsageError(f"The keyring has no key for the profile {profile.name}: querykeep login stores one.")
    return key


def store_key(profile: Profile, key: str) -> None:
    """Keep the key of *profile*. Raises UsageError when the keyring cannot be used."""
    _call("set_password", profile, key)


def remove_key(profile: Profile) -> None:
    """Forget the key of *profile*, if there is one. Raises UsageError when the keyring cannot be used."""
    if _call("get_password", profile) is not None:
        _call("delete_password", profile)


def _call(function: str, profile: Profile, *arguments: str) -> Any:
    try:
        keyring = importlib.import_module("keyring")
    except ImportError as exc:
        raise UsageError(f"The keyring needs the package keyring: {install_command('keyring')}") from exc
    try:
        return getattr(keyring, function)(KEYRING_SERVICE, profile.keyring_user, *arguments)
    except Exception as exc:
        # A backend raises what it likes, and its words may hold what it was given.
        raise UsageError(f"The keyring cannot be used ({type(exc).__name__}).") from exc

"""Keys in the operating system's keyring, through the package keyring, an extra."""

import importlib
from typing import Any

from runtimeclient.distribution import install_command
from runtimeclient.errors import UsageError
from runtimeclient.profiles.config import Profile

_SERVICE = "querykeep"


def has_keyring() -> bool:
    """Return whether there is a usable keyring."""
    try:
        keyring = importlib.import_module("keyring")
        # keyring.backends.fail has priority 0, and null, which stores nothing, has -1.
        return bool(keyring.get_keyring().priority > 0)
    except Exception:  # noqa: BLE001 (a backend may raise anything)
        return False


def read_key(profile: Profile) -> str:
    """Return the key of *profile*. Raises UsageError if the keyring has none or cannot be used."""
    if (key := _call("get_password", profile)) is None:
        raise UsageError(f"The keyring has no key for the profile {profile.name}: run querykeep login.")
    return str(key)


def store_key(profile: Profile, key: str) -> None:
    """Store the key of *profile*. Raises UsageError if the keyring cannot be used."""
    _call("set_password", profile, key)


def remove_key(profile: Profile) -> None:
    """Delete the key of *profile*, if there is one. Raises UsageError if the keyring cannot be used."""
    if _call("get_password", profile) is not None:
        _call("delete_password", profile)


def _call(function: str, profile: Profile, *arguments: str) -> Any:
    try:
        keyring = importlib.import_module("keyring")
    except ImportError as exc:
        raise UsageError(f"The keyring needs the package keyring: {install_command('keyring')}") from exc
    try:
        return getattr(keyring, function)(_SERVICE, profile.keyring_user, *arguments)
    except Exception as exc:
        # A backend may raise anything, and its message may contain the key.
        raise UsageError(f"The keyring cannot be used ({type(exc).__name__}).") from exc

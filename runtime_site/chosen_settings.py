"""Checks that `DJANGO_SETTINGS_MODULE` names settings that suit this runtime."""

import os
from typing import Any

VARIABLE = "DJANGO_SETTINGS_MODULE"
OURS = "runtime_site.settings"

#: The apps that a user's own project needs in INSTALLED_APPS.
APPS = ("runtime_site", "rest_framework", "runtimeconf", "authkeys", "sqlapi", "runtimeclient")


def settings_fault() -> str | None:
    """Return a sentence if the settings lack our apps or cannot be loaded; None if they are usable."""
    name = os.environ.setdefault(VARIABLE, OURS)
    if name == OURS:
        return None
    from django.conf import settings  # noqa: PLC0415 (as below)

    remedy = f"Unset {VARIABLE}, or set it to settings that begin with `from {OURS} import *`."
    try:
        installed = {app.partition(".apps.")[0] for app in settings.INSTALLED_APPS}
    except Exception as error:  # noqa: BLE001 (importing a user's module may raise anything)
        return f"{unloadable(VARIABLE, error)} {remedy}"
    missing = ", ".join(app for app in APPS if app not in installed)
    if missing:
        return f"{VARIABLE} names {name}, whose INSTALLED_APPS lacks {missing}. {remedy}"
    return None


def is_ours() -> bool:
    """Return whether the settings of this process are ours, and not those of a user's project."""
    return os.environ.get(VARIABLE, OURS) == OURS


def logging_settings() -> dict[str, Any]:
    """Return the setting `LOGGING`."""
    if is_ours():
        from runtime_site.settings import LOGGING  # noqa: PLC0415 (a user's project may not need our settings)

        return LOGGING
    # Imported here, because it takes 8 MB, and most processes of a runtime do not need Django.
    from django.conf import settings  # noqa: PLC0415

    logging: dict[str, Any] = settings.LOGGING
    return logging


def unloadable(origin: str, error: Exception) -> str:
    """Return a sentence about settings that cannot be loaded. *origin* is the option or variable that names them."""
    return f"{origin} names {os.environ[VARIABLE]}, which cannot be loaded ({type(error).__name__}: {error})."

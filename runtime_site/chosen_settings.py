"""Checks that `DJANGO_SETTINGS_MODULE` names settings that suit this runtime."""

import os

VARIABLE = "DJANGO_SETTINGS_MODULE"
OURS = "runtime_site.settings"

#: The apps that a user's own project needs in INSTALLED_APPS.
APPS = ("runtime_site", "rest_framework", "runtimeconf", "authkeys", "sqlapi", "runtimeclient")


def settings_fault() -> str | None:
    """Return a sentence if the settings lack our apps or cannot be loaded; None if they are usable."""
    name = os.environ.setdefault(VARIABLE, OURS)
    if name == OURS:
        return None
    from django.conf import settings  # noqa: PLC0415 (slow to import, and client commands do not need it)

    remedy = f"Unset {VARIABLE}, or set it to settings that begin with `from {OURS} import *`."
    try:
        installed = {app.partition(".apps.")[0] for app in settings.INSTALLED_APPS}
    except Exception as error:  # noqa: BLE001 (importing a user's module may raise anything)
        return f"{unloadable(VARIABLE, error)} {remedy}"
    missing = ", ".join(app for app in APPS if app not in installed)
    if missing:
        return f"{VARIABLE} names {name}, whose INSTALLED_APPS lacks {missing}. {remedy}"
    return None


def unloadable(origin: str, error: Exception) -> str:
    """Return a sentence about settings that cannot be loaded. *origin* is the option or variable that names them."""
    return f"{origin} names {os.environ[VARIABLE]}, which cannot be loaded ({type(error).__name__}: {error})."

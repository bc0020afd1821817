"""The Django app: builds the key set at start."""

from __future__ import annotations

from django.apps import AppConfig

from authkeys import state
from authkeys.access import build_from_what_is_there
from authkeys.errors import SaltError
from runtimeconf.errors import ConfigError
from runtimeconf.state import get_config


class AuthKeysConfig(AppConfig):
    """Builds the key set from the runtime YAML when Django starts."""

    name = "authkeys"

    def ready(self) -> None:
        """
        Build the key set once, if that changes nothing on disk.

        Django starts for `check` and `help` too, where no YAML may be and no state directory may appear. Whatever
        stops it here leaves access unbuilt, so nobody may call; a server calls `state.ensure_built` before it binds
        a port, which makes what is missing or says what is wrong. In a process that was forked from such a server the
        key set is there already, and the keys are not.
        """
        if state.is_built():
            return
        try:
            access = build_from_what_is_there(get_config())
        except (ConfigError, SaltError):
            return
        if access is not None:
            state.set_access(access)

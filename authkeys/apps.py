"""The Django app: builds the key set at start."""

from __future__ import annotations

from django.apps import AppConfig

from authkeys import state
from runtimeconf import handover


class AuthKeysConfig(AppConfig):
    """Builds the key set when Django starts, from what the supervisor handed over or from the runtime YAML."""

    name = "authkeys"

    def ready(self) -> None:
        """
        Build the key set, or have it built when the first server or request of this process asks for it.

        What a supervisor handed over is at hand. The YAML is not read yet: Django starts for `check`, `help` and the
        client commands too, where no YAML may be and no state directory may appear. A server asks before it binds a
        port, and stops when the key set cannot be built; until it is built, nobody may call.
        """
        if handover.received() is None:
            state.build_on_demand()
        else:
            state.ensure_built()

"""The Django app: makes the key set available when Django starts."""

from django.apps import AppConfig

from authkeys import state
from runtimeconf import handover


class AuthKeysConfig(AppConfig):
    """Builds the key set from the supervisor's handover at once, or from the YAML on first use."""

    name = "authkeys"

    def ready(self) -> None:
        """
        Build the key set if the supervisor handed it over; otherwise defer it to the first server or request.

        Django also starts for `check`, `help` and the client commands, which must work without a YAML and must not
        create a state directory. A server builds the key set before it binds a port, and exits if that fails. Nobody
        may call until the key set is built.
        """
        if handover.received() is None:
            state.build_on_demand()
        else:
            state.ensure_built()

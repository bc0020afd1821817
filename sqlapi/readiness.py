"""The readiness of the runtime, as `/v1/ready` reports it."""

from typing import Literal

from datasources.errors import DatasetsUnavailableError
from datasources.state import get_datasets
from queryengine.errors import EngineUnavailableError
from queryengine.state import get_engine
from runtimeconf.state import get_config
from system.lock import FLIGHT_LOCK_NAME, StateLock


def is_ready() -> bool:
    """Return whether the engine is alive, no dataset holds up readiness, and Flight SQL, if enabled, takes calls."""
    try:
        return get_engine().is_alive() and get_datasets().is_loaded() and flight_status() in {"Ready", "Disabled"}
    except (EngineUnavailableError, DatasetsUnavailableError):
        return False


def flight_status() -> Literal["Ready", "Disabled", "Error"]:
    """
    Return the status of the Flight SQL process, which holds a lock while it takes calls.

    A runtime in one process has no Flight SQL; one whose engine is not connected yet counts as such.
    """
    config = get_config()
    try:
        is_single = get_engine().status() is None
    except EngineUnavailableError:
        is_single = True
    if is_single or not config.flight.enabled:
        return "Disabled"
    return "Ready" if StateLock(config.state_dir, FLIGHT_LOCK_NAME).is_taken() else "Error"

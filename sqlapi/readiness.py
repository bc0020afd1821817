"""Whether this process answers statements, as `/v1/ready` tells everybody."""

from __future__ import annotations

from typing import Literal

from datasources.errors import DatasetsUnavailableError
from datasources.state import get_datasets
from queryengine.errors import EngineUnavailableError
from queryengine.state import get_engine
from runtimeconf.state import get_config
from system.lock import FLIGHT_LOCK_NAME, StateLock


def is_ready() -> bool:
    """Say whether the engine takes statements, there is data of every dataset, and Flight SQL takes calls."""
    try:
        return get_engine().is_alive() and get_datasets().is_loaded() and flight_status() in {"Ready", "Disabled"}
    except (EngineUnavailableError, DatasetsUnavailableError):
        return False


def flight_status() -> Literal["Ready", "Disabled", "Error"]:
    """
    Say how the endpoint of Flight SQL is, which is a process of its own: it holds a lock for as long as it takes calls.

    A runtime in one process has none: it is one that starts, or has its engine in itself.
    """
    config = get_config()
    try:
        is_single = get_engine().status() is None
    except EngineUnavailableError:
        is_single = True
    if is_single or not config.flight.enabled:
        return "Disabled"
    return "Ready" if StateLock(config.state_dir, FLIGHT_LOCK_NAME).is_taken() else "Error"

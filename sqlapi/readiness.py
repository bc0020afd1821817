"""Whether this process answers statements, as `/v1/ready` tells everybody."""

from __future__ import annotations

from datasets.errors import DatasetsUnavailableError
from datasets.state import get_datasets
from queryengine.errors import EngineUnavailableError
from queryengine.state import get_engine


def is_ready() -> bool:
    """Say whether the engine takes statements and every dataset was loaded at least once."""
    try:
        return get_engine().is_alive() and get_datasets().is_loaded()
    except (EngineUnavailableError, DatasetsUnavailableError):
        return False

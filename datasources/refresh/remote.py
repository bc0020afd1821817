"""The datasets of a process that never refreshes: web under `manage.py serve`."""

from __future__ import annotations

from datasources.control import Loaded
from datasources.refresh.control_socket import ControlClient
from runtimeconf.model import RuntimeConfig


class RemoteDatasets(ControlClient):
    """A `DatasetControl` that asks the process that holds the lock, and never takes over from it."""

    def __init__(self, config: RuntimeConfig) -> None:
        # A refresh_sql waits for an engine worker as any statement does, under the same time limit.
        super().__init__(config.state_dir, judging_s=config.query.queue_timeout_s + config.query.timeout_s)
        self._loaded = Loaded(config.state_dir, super().is_loaded)

    def is_loaded(self) -> bool:
        """As `DatasetControl.is_loaded`."""
        return self._loaded.check()

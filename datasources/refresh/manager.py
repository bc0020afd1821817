"""What keeps the data of a configuration fresh: a refresher, or a node of several, which a plug-in provides."""

from collections.abc import Sequence
from typing import Protocol

from datasources.control import DatasetControl
from datasources.refresh.refresher import Refresher
from datasources.snapshots.snapshot import Builder
from runtimeconf.model import RuntimeConfig
from runtimeconf.plugins import SNAPSHOT_STORES, imported


class DatasetManager(DatasetControl, Protocol):
    """
    The `DatasetControl` of the process that holds the lock of the state directory.

    Making one raises the errors of `manager_of`.
    """

    @property
    def generation(self) -> int:
        """The number of the configuration."""

    def start(self) -> None:
        """Begin to load, each dataset as soon as possible. What is published has been verified already."""

    def stop(self, timeout_s: float) -> bool:
        """Interrupt what runs; return False if a load still runs after *timeout_s* seconds."""

    def replace(self, config: RuntimeConfig, builders: Sequence[Builder], timeout_s: float) -> "DatasetManager":
        """
        Return what goes by another configuration from now on; it has been started.

        Loads that run have *timeout_s* seconds to finish. Requests are passed on. Until `commit`, data that only the
        previous configuration declares stays published.

        Raises:
            DatasetError: A load does not end.
        """

    def commit(self) -> None:
        """Withdraw the data that the configuration does not declare, after `replace`."""


def manager_of(config: RuntimeConfig, builders: Sequence[Builder]) -> DatasetManager:
    """
    Return what loads by *config*, with *builders*; without any, this process does the loading itself.

    Raises:
        StateDirectoryError: The state directory cannot be written.
        DatasetError: The settings of `runtime.snapshots` cannot be used.
    """
    if config.snapshots is None:
        return Refresher(config, builders=builders)
    # Its library is imported only by processes that need it.
    node = imported(SNAPSHOT_STORES[config.snapshots.store].node)
    manager: DatasetManager = node(config, config.snapshots, builders)
    return manager

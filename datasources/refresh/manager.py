"""The manager that keeps a configuration's data fresh: a refresher, or a node (provided by a plug-in)."""

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

    The constructor raises the same errors as `manager_of`.
    """

    @property
    def generation(self) -> int:
        """The generation number of the configuration."""

    def start(self) -> None:
        """Start loading each dataset as soon as possible. Published data has already been verified."""

    def stop(self, timeout_s: float) -> bool:
        """Interrupt running loads. Return False if a load is still running after *timeout_s* seconds."""

    def replace(self, config: RuntimeConfig, builders: Sequence[Builder], timeout_s: float) -> "DatasetManager":
        """
        Return a started manager that uses another configuration from now on.

        Running loads have *timeout_s* seconds to finish. Requests are passed on. Until `commit`, data that only the
        previous configuration declares stays published.

        Raises:
            DatasetError: A load has not ended.
        """

    def commit(self) -> None:
        """After `replace`, withdraw the data that the configuration does not declare."""


def manager_of(config: RuntimeConfig, builders: Sequence[Builder]) -> DatasetManager:
    """
    Return a manager for *config* that loads with *builders*. Without builders, this process loads the data itself.

    Raises:
        StateDirectoryError: The state directory cannot be written.
        DatasetError: The settings of `runtime.snapshots` cannot be used.
    """
    if config.snapshots is None:
        return Refresher(config, builders=builders)
    # The library is imported only by processes that need it.
    node = imported(SNAPSHOT_STORES[config.snapshots.store].node)
    manager: DatasetManager = node(config, config.snapshots, builders)
    return manager

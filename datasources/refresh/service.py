"""
Provides the datasets to one process.

Of all processes that share a state directory, the lock holder refreshes the data and serves the others over the
control socket. The others are followers: they send their calls to the holder, and try to take over when it is gone.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Unpack

from datasources.control import (
    AdmittedSql,
    DatasetControl,
    DatasetState,
    Loaded,
    RefreshOptions,
    RefreshRun,
    SharingState,
)
from datasources.errors import DatasetError, DatasetsUnavailableError, UnknownDatasetError
from datasources.refresh.control_socket import ControlClient, ControlServer
from datasources.refresh.manager import DatasetManager, manager_of
from datasources.refresh.refresher import Refresher
from datasources.snapshots.snapshot import Builder
from runtimeconf.model import RuntimeConfig
from system.errors import StateDirectoryError
from system.lock import StateLock
from system.state_directory import file_id, prepare_state_dir

logger = logging.getLogger(__name__)

#: Seconds that startup waits for a predecessor to end, or for the holder's first response.
_START_WAIT_S = 5.0

#: Seconds between checks whether this process still holds the state directory, or can take over.
_POLL_S = 1.0


def _acquire(lock: StateLock, remedy: str) -> None:
    if not lock.acquire(_START_WAIT_S):
        raise StateDirectoryError(f"The state directory is in use by {lock.holder()}: {remedy}")


def load_once(
    config: RuntimeConfig,
    names: Collection[str],
    builders: Sequence[Builder],
    check: Callable[[], None] = lambda: None,
) -> tuple[tuple[str, RefreshRun], ...]:
    """
    Load the datasets *names*. If *names* is empty, load all datasets whose sources have changed.

    The state directory is locked during the load. *check* is called several times a second. If it raises, unfinished
    runs are marked as failed (`interrupted`).

    Returns:
        The declared name and the run of each dataset.

    Raises:
        UnknownDatasetError: A name is unknown. Nothing was loaded.
        DatasetError: The data is shared with other nodes.
        StateDirectoryError: The state directory cannot be created or written, or a runtime uses it.
    """
    if config.snapshots is not None:
        raise DatasetError("With runtime.snapshots, only running nodes load data: run `refresh` against one of them.")
    declared = {dataset.name.lower(): dataset.name for dataset in config.loaded_datasets}
    for name in names:
        if name.lower() not in declared:
            raise UnknownDatasetError(name)
    prepare_state_dir(config.state_dir)
    lock = StateLock(config.state_dir)
    _acquire(lock, "use the command `refresh` on that runtime, or stop it first.")
    refresher = None
    try:
        refresher = Refresher(config, builders=builders)
        return refresher.load_once(names or declared.values(), skip_unchanged=not names, check=check)
    finally:
        # A load that is still writing keeps the lock. Both end with this process.
        if refresher is None or refresher.stop(config.shutdown_timeout_s):
            lock.release()


class DatasetService:
    """
    A `DatasetControl` that refreshes the datasets, or follows the process that does.

    Args:
        config: The runtime's configuration.
        exclusive: Whether this process must be the refreshing process.
        builders: The builders to load with. Without builders, this process loads the data itself.
    """

    def __init__(self, config: RuntimeConfig, *, exclusive: bool, builders: Sequence[Builder] = ()) -> None:
        self._config = config
        self._exclusive = exclusive
        self._builders = builders
        self._lock = StateLock(config.state_dir)
        self._client = ControlClient(config.state_dir)
        self._stopping = threading.Event()
        self._manager: DatasetManager | None = None
        self._server: ControlServer | None = None
        self._directory: tuple[int, int] | None = None
        self._last_warning = ""
        self._watcher = threading.Thread(target=self._watch, name="datasets-watcher", daemon=True)
        self._loaded = Loaded(
            config.state_dir, lambda: not self.waiting_for(), gets_stale=config.query.max_staleness_s is not None
        )

    def start(self) -> None:
        """
        Start refreshing or following. The snapshots in the manifest have been verified when this returns.

        Raises:
            StateDirectoryError: The state directory cannot be created or written, or (exclusive) it is in use.
        """
        prepare_state_dir(self._config.state_dir)
        if self._exclusive:
            _acquire(self._lock, "stop that runtime first, or set another state_dir.")
            self._hold()
        else:
            end = time.monotonic() + _START_WAIT_S
            while not self._take_over() and not self._holder_answers() and time.monotonic() < end:
                time.sleep(0.05)
        self._watcher.start()

    def stop(self, timeout_s: float) -> None:
        """Interrupt the running loads, and release the state directory within *timeout_s* seconds."""
        self._stopping.set()
        end = time.monotonic() + timeout_s
        if self._watcher.ident is not None:
            self._watcher.join(timeout_s)
        if self._server is not None:
            self._server.close()
        if self._manager is not None and not self._manager.stop(max(0.0, end - time.monotonic())):
            # Keep the lock while a load is still writing. Both end with the process.
            logger.warning("A load did not end in time")
            return
        self._lock.release()

    def waiting_for(self) -> tuple[str, ...]:
        """See `DatasetControl.waiting_for`."""
        return self._control().waiting_for()

    def replace(self, config: RuntimeConfig, builders: Sequence[Builder]) -> None:
        """
        Refresh with another configuration. Running loads have the shutdown timeout to finish.

        Until `commit`, data that only the previous configuration declares stays published. Only for the refreshing
        process.

        Raises:
            DatasetError: A load has not ended, or the state directory or the shared storage has been lost.
        """
        former, server = self._manager, self._server
        if former is None or server is None:
            raise DatasetsUnavailableError
        self._manager = server.control = former.replace(config, builders, self._config.shutdown_timeout_s)
        self._config, self._builders = config, builders

    def commit(self) -> None:
        """After `replace`, withdraw the data that the configuration does not declare."""
        if self._manager is not None:
            self._manager.commit()

    def is_loaded(self) -> bool:
        """See `DatasetControl.is_loaded`."""
        return self._loaded.check()

    def sharing(self) -> SharingState | None:
        """See `DatasetControl.sharing`."""
        return self._control().sharing()

    def datasets(self) -> tuple[DatasetState, ...]:
        """See `DatasetControl.datasets`. Also raises `DatasetsUnavailableError`."""
        return self._control().datasets()

    def request_refresh(
        self, name: str, sql: AdmittedSql | None = None, **options: Unpack[RefreshOptions]
    ) -> RefreshRun:
        """See `DatasetControl.request_refresh`."""
        return self._control().request_refresh(name, sql, **options)

    def history(self, name: str) -> tuple[RefreshRun, ...]:
        """See `DatasetControl.history`."""
        return self._control().history(name)

    def _control(self) -> DatasetControl:
        if self._stopping.is_set():
            raise DatasetsUnavailableError
        return self._manager or self._client

    def _hold(self) -> None:
        """Become the refreshing process. This process already has the lock."""
        try:
            manager = manager_of(self._config, self._builders)
            self._server = ControlServer(self._config.state_dir, manager)
        except BaseException:
            self._lock.release()
            raise
        self._directory = file_id(self._config.state_dir)
        manager.start()
        self._manager = manager

    def _take_over(self) -> bool:
        if is_free := self._lock.acquire():
            self._hold()
        return is_free

    def _holder_answers(self) -> bool:
        with suppress(DatasetError):
            self._client.datasets()
            return True
        return False

    def _watch(self) -> None:
        while not self._stopping.wait(_POLL_S):
            try:
                if self._manager is None:
                    if file_id(self._config.state_dir) is None:
                        prepare_state_dir(self._config.state_dir)
                    if self._take_over():
                        logger.info("This process now refreshes the data")
                elif file_id(self._config.state_dir) != self._directory or not self._lock.keep():
                    logger.error(
                        "The state directory is gone or in use by another process: data is no longer refreshed"
                    )
                    self._release(self._manager)
            except (DatasetError, StateDirectoryError) as exc:
                if str(exc) != self._last_warning:
                    logger.warning("This process cannot refresh the data: %s", exc)
                self._last_warning = str(exc)

    def _release(self, manager: DatasetManager) -> None:
        """Stop refreshing until the directory exists and is free again."""
        if self._server is not None:
            self._server.close()
        self._manager, self._server = None, None
        while not manager.stop(_POLL_S) and not self._stopping.is_set():
            logger.warning("A load has not ended")
        self._lock.release()

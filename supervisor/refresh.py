"""The refresh process, which loads the data. No other process writes the data."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import telemetry.state
from datasources.errors import SharedStorageError, SnapshotError, UnknownDatasetError
from datasources.refresh.control_socket import ControlClient
from datasources.refresh.loader import LoaderProcess
from datasources.refresh.refresher import MAX_LOADS
from datasources.refresh.service import DatasetService, load_once
from datasources.snapshots.snapshot import SnapshotBuilder
from runtimeconf import handover
from runtimeconf.handover import Handover
from runtimeconf.model import RuntimeConfig
from supervisor import tracing
from supervisor.errors import StartError
from supervisor.hot_reload import DONE, report, tell
from supervisor.part_process import StopSignal, heartbeat
from system.heartbeat import waits_for_disk
from system.process_limits import give_memory_back

logger = logging.getLogger(__name__)

#: Seconds between checks for a stop and for a new configuration.
_POLL_S = 0.1
#: Seconds until a configuration that could not take effect is tried again.
_RETRY_S = 1.0
#: Seconds between two heartbeats.
_BEAT_S = 1.0

#: If a signal interrupts a load, the exit code is this value plus the signal number, as in shells.
_SIGNALLED = 128

#: The niceness of loads. It is higher than the niceness of statements, which take precedence.
_NICENESS = 10


def serve(config: RuntimeConfig, extra: dict[str, Any]) -> None:
    """Load the datasets and refresh them until SIGTERM. With `--once`, load the given datasets and exit."""
    # This process neither parses nor runs SQL: it has access to the data sources and must survive any statement.
    # Loader processes, which may be killed, run it.
    loaders = [LoaderProcess(SnapshotBuilder.of(config)) for _ in range(MAX_LOADS)]
    try:
        if "once" in extra:
            sys.exit(_load_once(config, extra["once"], loaders))
        _refresh(config, extra, loaders)
    finally:
        for loader in loaders:
            loader.close()


def _load_once(config: RuntimeConfig, names: list[str], loaders: list[LoaderProcess]) -> int:
    """Load the datasets with these *names*, print the results, and return the exit code."""
    stop = StopSignal()

    def check() -> None:
        if number := stop.wait(0):
            sys.exit(_SIGNALLED + number)

    _give_way()
    try:
        outcome = load_once(config, names, loaders, check)
    except UnknownDatasetError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for name, run in outcome:
        if run.error is not None:
            sys.stderr.write(f"{name}: failed: {run.error}\n")
        else:
            took = "unchanged" if run.unchanged else f"loaded in {(run.duration_ms or 0) / 1000:.1f} s"
            sys.stdout.write(f"{name}: {took}, {run.rows} rows\n")
    return int(any(run.error is not None for _, run in outcome))


def _beat(beat: Callable[[], None], control: ControlClient, stop: threading.Event) -> None:
    """Call *beat* while this process responds on the control socket, or would do so once the disk catches up."""
    while not stop.wait(_BEAT_S):
        if control.is_answered() or waits_for_disk():
            beat()


def _refresh(config: RuntimeConfig, extra: dict[str, Any], loaders: list[LoaderProcess]) -> None:
    os.environ.update(extra.get("environ", {}))  # variables from a reload after this part's first start
    stopped = threading.Event()
    beating = threading.Thread(
        target=_beat, args=[heartbeat(extra), ControlClient(config.state_dir), stopped], name="heartbeat", daemon=True
    )
    beating.start()
    # The first loader starts while the data is being verified, the others when needed. An idle loader exits after a
    # while.
    if config.snapshots is None:  # Otherwise it is not yet known whether this node loads data.
        loaders[0].start()
    tell(config)
    tracing.connect(config, extra)
    service = DatasetService(config, exclusive=True, builders=loaders)
    service.start()
    if "verified" in extra:
        os.eventfd_write(extra["verified"], 1)
    _give_way()
    give_memory_back()
    stop = StopSignal()
    live, number, committed = handover.live(), config.generation, 0
    if live is None:
        stop.wait()
    else:
        while not stop.wait(_POLL_S):
            in_force, offered = live.numbers()
            try:
                if (offered or in_force) != number:
                    number = offered or in_force
                    config, outcome = _change(live, number, service, loaders, config)
                    if offered == number:
                        report(extra["reports"], number, outcome)
                    else:
                        committed = 0  # What an offer that was withdrawn has left behind has to go.
                elif in_force == number != committed and _commit(service):
                    committed = number
                    report(extra["reports"], number)
            except LookupError:
                continue  # It has been replaced already.
            except StartError as error:
                # A part that cannot start would end the runtime. This process is restarted instead, and continues.
                logger.error("The data cannot be loaded by another configuration: %s", error)  # noqa: TRY400
                sys.exit(1)
    service.stop(config.shutdown_timeout_s)
    telemetry.state.disconnect()
    stopped.set()
    beating.join(_BEAT_S)


def _change(
    live: Handover, number: int, service: DatasetService, loaders: list[LoaderProcess], former: RuntimeConfig
) -> tuple[RuntimeConfig, str]:
    """Load with configuration *number* from now on. Return it and `DONE`, or *former* and why it cannot be used."""
    config, extra = live.read(number)
    os.environ.update(extra["environ"])
    new = [LoaderProcess(SnapshotBuilder.of(config)) for _ in range(MAX_LOADS)]
    try:
        service.replace(config, list(new))
    except SharedStorageError as error:
        return former, str(error)
    tell(config)
    for loader in loaders:
        loader.close()
    loaders[:] = new
    return config, DONE


def _commit(service: DatasetService) -> bool:
    """Serve what is staged. Return False if it has to be tried again, for example because the disk is full."""
    try:
        service.commit()
    except SnapshotError as error:
        logger.error("The data of the new configuration cannot be served yet: %s", error)  # noqa: TRY400
        time.sleep(_RETRY_S)
        return False
    return True


def _give_way() -> None:
    """Lower the priority of this process after startup."""
    niceness = os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS  # The system limits it to 19.
    # Linux keeps niceness per thread, and new threads and processes inherit it.
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), niceness)

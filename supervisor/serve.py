"""`serve`: the production runtime, with all parts under one supervisor."""

import logging
import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import authkeys.state
import runtimeconf.state
from runtimeconf.exposure import check_listener
from runtimeconf.model import RuntimeConfig
from supervisor import preparation, startup
from supervisor.handovers import Checked, Handovers
from supervisor.process_tree import Supervisor
from supervisor.reload import Reloads, Report
from system.addresses import activated, bound_address, listen, wait_until_bindable
from system.errors import StateDirectoryError
from system.lock import PREDECESSOR_WAIT_S, SUPERVISOR_LOCK_NAME, StateLock
from system.process_limits import give_memory_back
from system.service_manager import ServiceManager

logger = logging.getLogger(__name__)

#: Statements finish first, then their results are sent, then loads stop. The process that counts all of this stops
#: last.
STOP_ORDER = ("reload", "engine", "flight", "web", "refresh", "watch")
#: The order if the next runtime inherits the socket. Web leaves pending connections to that runtime and refuses none.
_STOP_ORDER_ACTIVATED = ("reload", "web", "flight", "engine", "refresh", "watch")

#: Seconds between two attempts to acquire the lock.
_KEEP_S = 1.0


def inherited() -> dict[str, Any]:
    """
    Return the descriptors and the address that this process passes to itself when it is executed again.

    Raises:
        ConfigError: Other machines can reach the socket that systemd passed, and the configuration does not allow it.
    """
    environment = preparation.keep_environment()
    os.set_inheritable(environment, True)
    listener = activated(os.environ)
    if listener is not None and (address := bound_address(listener)) is not None:
        config = runtimeconf.state.get_config()
        check_listener(address, config.auth, config.file)
    return {"environment": environment, "listener": listener, "notify": os.environ.get("NOTIFY_SOCKET", "")}


def serve(config: RuntimeConfig, extra: dict[str, Any]) -> None:
    """Supervise the parts. Exit with 0 after SIGTERM, and with 1 if a part cannot start or after a second SIGTERM."""
    deadline = time.monotonic() + PREDECESSOR_WAIT_S
    # A reload requested from now on is not lost, because the supervisor handles the signal later.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    lock = _take_state_dir(config, deadline)
    # Replace an earlier runtime's report. Its times are from a different clock: of another machine, or before a reboot.
    Report(state="done", began=0.0).write(config.state_dir)
    listener = extra["listener"]
    stop_order: tuple[str, ...] = _STOP_ORDER_ACTIVATED
    if listener is None:
        stop_order = STOP_ORDER
        listener = listen(config.http.bind, "runtime.http.bind", deadline).detach()
    for descriptor in (extra["environment"], listener):
        os.set_inheritable(descriptor, False)
    if config.traces is not None:  # This process exports the spans of the other processes until they end.
        stop_order = (*stop_order, "traces")
    if config.flight.enabled:
        wait_until_bindable(config.flight.bind, "runtime.flight.bind", deadline)
    if config.metrics.enabled:
        wait_until_bindable(config.metrics.bind, "runtime.metrics.bind", deadline)
    checked = Checked(config, authkeys.state.ensure_built(), dict(os.environ))
    handovers = Handovers(checked, listener)
    supervisor = Supervisor(
        handovers.commands(checked), stop_order=stop_order, shutdown_timeout_s=config.shutdown_timeout_s
    )
    reloads = Reloads(supervisor, handovers, checked, extra["environment"])
    _announce(config)
    give_memory_back()
    manager = ServiceManager(extra["notify"])
    manager.report_ready()
    code = supervisor.run(_Served(reloads, lock, manager, extra))
    reloads.close()
    lock.release()
    sys.exit(code)


class _Served:
    """The `Runtime` of a supervisor."""

    def __init__(self, reloads: Reloads, lock: StateLock, manager: ServiceManager, extra: dict[str, Any]) -> None:
        self._reloads = reloads
        self._lock = lock
        self._began: float = extra["began"]
        self._ready_message: str = extra["ready_message"]
        self.is_ready = reloads.handovers.are_ready
        self.ask_reload = reloads.ask
        self.report_alive = manager.report_alive
        self.report_stopping = manager.report_stopping

    def report_ready(self) -> None:
        more = [self._ready_message] if self._ready_message else []
        _print(f"Ready     after {time.monotonic() - self._began:.1f} s", *more)

    def remind(self) -> None:
        startup.log_expiring_keys(self._reloads.in_force.who)

    def advance(self) -> float:
        # `reload` finds the supervisor by the lock, which a clean-up might remove.
        return min(self._reloads.advance(), math.inf if self._lock.keep() else _KEEP_S)


def _announce(config: RuntimeConfig) -> None:
    scheme = "https" if config.tls.enabled else "http"
    names = ", ".join(dataset.name for dataset in config.datasets) or "none"
    _print(
        f"HTTP      {scheme}://{config.http.bind}",
        f"Flight    {'grpc+tls' if config.tls.enabled else 'grpc'}://{config.flight.bind}"
        if config.flight.enabled
        else "Flight    off",
        f"Metrics   http://{config.metrics.bind}/metrics" if config.metrics.enabled else "Metrics   off",
        f"Keys      {startup.describe_keys()}",
        f"Datasets  {names}",
    )
    startup.log_warnings(config)


def _print(*lines: str) -> None:
    """Print *lines* if possible. The runtime does not depend on standard output."""
    try:
        for line in lines:
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except OSError as error:
        logger.warning("cannot write to standard output: %s", error.strerror)
        # Python would try to flush the buffer again at exit, and fail.
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _take_state_dir(config: RuntimeConfig, deadline: float) -> StateLock:
    """
    Wait until no other runtime uses the state directory, then lock it for this runtime and return the lock.

    The refresh process acquires the data lock itself.

    Raises:
        StateDirectoryError: Another runtime still uses it at *deadline*, a `time.monotonic()` value.
    """
    ours, data = StateLock(config.state_dir, SUPERVISOR_LOCK_NAME), StateLock(config.state_dir)
    for lock in (ours, data):
        if not lock.acquire(max(0.0, deadline - time.monotonic())):
            raise StateDirectoryError(
                f"The state directory {config.state_dir} is in use by {lock.holder()}: stop that runtime first, or "
                "set another state_dir."
            )
    data.release()
    return ours

"""
Start and stop the runtime in one process: key set, engine, datasets.

Every server calls `checked_config` before it binds a port. The WSGI application calls `start_once` when it is loaded,
in the process that serves requests.
"""

import atexit
import logging
import sys
import threading
import time
from contextlib import ExitStack, closing

import authkeys.state
import datasources.state
import queryengine.state
import runtimeconf.state
import telemetry.state
from authkeys.access import Access
from runtimeconf.errors import ConfigError, ConfigFault
from runtimeconf.exposure import check_this_process
from runtimeconf.model import MIB, WARNING_PERIOD, RuntimeConfig
from supervisor import tracing
from supervisor.errors import StartError
from system.memory import memory_bytes
from system.process_limits import descriptors_for, hard_limit, raise_soft_limit
from system.state_directory import prepare_state_dir
from system.tmpdir import ensure_temporary_directory
from system.wallclock import utc_at

logger = logging.getLogger(__name__)

_start_lock = threading.Lock()
_runtime: "Runtime | None" = None
_checked: RuntimeConfig | None = None

MAX_SHOWN_FINGERPRINTS = 4

#: Seconds between checks for whether every dataset is loaded.
_POLL_S = 0.02

#: The exit code after which gunicorn does not start another worker.
WORKER_BOOT_ERROR = 3


def checked_config() -> RuntimeConfig:
    """
    Return the configuration of this process, checked as far as possible without reading data.

    This builds the key set and discards the keys. This process and its forks keep only digests, and do not read the
    configuration file again.

    Raises:
        ConfigError: The configuration file, a view or a `refresh_sql` is invalid. Lists all errors.
        StateDirectoryError: The state directory cannot be used.
        SaltError: The salt of the key digests can neither be read nor created.
    """
    global _checked  # noqa: PLW0603 (a process has one configuration)
    config = runtimeconf.state.get_config()
    if config is _checked:
        return config
    config = with_checked_statements(config)
    prepare_state_dir(config.state_dir)
    ensure_temporary_directory(config.state_dir)
    runtimeconf.state.set_config(config)
    authkeys.state.ensure_built()
    _checked = runtimeconf.state.get_config()
    return _checked


def checked_config_of_one_process() -> RuntimeConfig:
    """
    Return the `checked_config` of a runtime in one process.

    Raises:
        ConfigError: The configuration needs more than one process.
        RuntimeConfError, AuthKeysError, StateDirectoryError: See `checked_config`.
    """
    config = checked_config()
    if config.engine is not None:
        message = "needs the command serve, whose engine ends the statements that its workers leave on the cluster"
        raise ConfigError((ConfigFault(file=config.file, line=1, yaml_path="runtime.engine", message=message),))
    return config


def with_checked_statements(config: RuntimeConfig) -> RuntimeConfig:
    """
    Check the configured SQL (views, `refresh_sql` and rules of keys), and return *config* with the SQL to run.

    Raises:
        ConfigError: Lists all errors.
    """
    # Imported here, because parts without an engine use this module too.
    from datasources.refresh import declarations  # noqa: PLC0415
    from datasources.snapshots.snapshot import with_fingerprints  # noqa: PLC0415
    from queryengine.backends import gate_of  # noqa: PLC0415
    from queryengine.execution import rule_gate  # noqa: PLC0415
    from queryengine.execution.views import with_materialized_views  # noqa: PLC0415
    from queryengine.gate.gate import Gate  # noqa: PLC0415

    with ExitStack() as gates:
        gate = gates.enter_context(closing(gate_of(config)))
        # Loads always run in DuckDB.
        gate_of_loads = gate if isinstance(gate, Gate) else Gate(datafusion_sql=config.query.datafusion_sql)
        gates.enter_context(closing(gate_of_loads))
        faults = [*declarations.faults(config, gate_of_loads), *rule_gate.faults(config, gate)]
        try:
            config = with_materialized_views(config, gate)
        except ConfigError as error:
            faults.extend(error.faults)
        if faults:
            raise ConfigError(tuple(sorted(faults, key=lambda fault: (fault.file != config.file, fault.line))))
        return with_fingerprints(declarations.with_admitted_sql(config, gate_of_loads))


def describe_keys() -> str:
    """Summarise the key set: the number of keys and the fingerprints of a few."""
    key_set = authkeys.state.get_access().key_set
    if key_set is None:
        return "off: anyone who can connect can send requests"
    shown = ", ".join(key_set.fingerprints()[:MAX_SHOWN_FINGERPRINTS])
    more = ", ..." if len(key_set) > MAX_SHOWN_FINGERPRINTS else ""
    return f"{len(key_set)} API {'key' if len(key_set) == 1 else 'keys'} loaded ({shown}{more})"


def log_expiring_keys(access: Access) -> None:
    """Log a warning for each named key that has expired or will expire within `WARNING_PERIOD`."""
    for caller in access.key_set.principals() if access.key_set is not None else ():
        if caller.expires_at is not None and caller.expires_at <= time.time() + WARNING_PERIOD.total_seconds():
            fields = {"key": caller.name, "expires": utc_at(caller.expires_at)}
            logger.warning("A key expires soon or has expired", extra={"fields": fields})


def log_warnings(config: RuntimeConfig) -> None:
    """Log a warning for each setting that works but is unsafe."""
    for warning in (*config.warnings, *machine_warnings(config)):
        logger.warning(warning)


def machine_warnings(config: RuntimeConfig) -> list[str]:
    """Return a sentence for each resource that *config* may need but the machine or its limits may not provide."""
    found = []
    limits = config.query
    needed, available = limits.workers * limits.memory_limit_bytes, memory_bytes()
    if needed > available:
        found.append(
            f"runtime.query: workers ({limits.workers}) times memory_limit is {needed // MIB:,} MiB, but the machine "
            f"has {available // MIB:,} MiB: statements may be killed for lack of memory. Lower one of the two"
        )
    needed, available = descriptors_for(len(config.datasets)), hard_limit()
    if needed > available:
        found.append(
            f"{len(config.datasets)} datasets take up to {needed} file descriptors in a process, and the system allows "
            f"{available} (ulimit -Hn): new data may not be readable"
        )
    return found


class Runtime:
    """The running engine and datasets of this process, registered with the state accessors."""

    def __init__(self, config: RuntimeConfig) -> None:
        from datasources.refresh.service import DatasetService  # noqa: PLC0415 (as above)
        from queryengine.cache.cached_engine import remembering  # noqa: PLC0415
        from queryengine.pool.inprocess import InProcessEngine  # noqa: PLC0415

        raise_soft_limit()  # Each snapshot needs a descriptor, and more than one while a session replaces another.
        self._shutdown_timeout_s = config.shutdown_timeout_s
        if config.metrics.enabled:
            logger.warning("runtime.metrics: a single process has no metrics endpoint: use the command `serve`")
        self._stop_lock = threading.Lock()
        self._stopped = False
        if config.history.enabled:
            from telemetry.memory import Memory  # noqa: PLC0415

            memory = Memory(config.history)
            telemetry.state.deliver_to(memory.put, memory.answer, keeps_sql=config.history.keeps_sql)
        self._end_traces = tracing.export_here(config)
        self._datasets = DatasetService(config, exclusive=False)
        # Start the datasets first, because that verifies every snapshot that the engine may open.
        self._datasets.start()
        try:
            key_set = authkeys.state.get_access().key_set
            several_keys = key_set is not None and len(key_set) > 1
            self._engine = remembering(InProcessEngine(config, several_keys=several_keys), config)
        except BaseException:
            self._datasets.stop(self._shutdown_timeout_s)
            raise
        queryengine.state.set_engine(self._engine)
        datasources.state.set_datasets(self._datasets)

    def wait_for_datasets(self) -> None:
        """Wait until each dataset is loaded or has failed, or until the runtime stops."""
        while not self._stopped and any(state.status == "Initializing" for state in self._datasets.datasets()):
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stop everything. Repeated calls are harmless."""
        with self._stop_lock:
            if self._stopped:
                return
            self._stopped = True
        queryengine.state.set_engine(None)
        datasources.state.set_datasets(None)
        self._engine.close()
        self._datasets.stop(self._shutdown_timeout_s)
        telemetry.state.disconnect()
        self._end_traces()


def start_once() -> Runtime:
    """
    Start the runtime of this process unless it is running, and stop it when the process exits.

    Raises:
        RuntimeConfError, AuthKeysError, StateDirectoryError: See `checked_config`.
    """
    global _runtime  # noqa: PLW0603 (a process has one runtime)
    with _start_lock:
        if _runtime is None:
            _runtime = Runtime(checked_config_of_one_process())
            atexit.register(_runtime.stop)
        return _runtime


def start_or_exit() -> None:
    """Start the runtime in a server worker. If that fails, log the error and exit."""
    try:
        config = checked_config_of_one_process()
        check_this_process(config.auth, config.file)
        start_once()
    except StartError as error:
        logger.critical("The runtime cannot start: %s", error)
        sys.exit(WORKER_BOOT_ERROR)

"""
Selects the engine that runs the statements of a configuration, and the gate for its SQL dialect.

DuckDB is built in. Any other engine is an `EnginePlugin`, which is loaded only if the configuration names it.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from queryengine.engine import StatementGate
from runtimeconf.model import EngineConfig, RuntimeConfig

if TYPE_CHECKING:  # A process that only checks SQL does not need pyarrow.
    from queryengine.execution.session import Backend


class Companion(Protocol):
    """A process that an engine runs next to its workers. The arbiter calls all methods, from its main thread."""

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""

    def take_over(self, directory: Path) -> None:
        """Read the state that the previous engine left in *directory*."""

    def ensure(self, now: float) -> None:
        """Start the process if it is not running."""

    def has_ended(self, pid: int) -> bool:
        """Return whether the process *pid*, which has ended, was this process."""

    def lost(self, query_id: str) -> None:
        """End the statement *query_id*, whose worker died."""

    def leave(self) -> None:
        """Tell the process to end, without waiting for it."""

    def kill(self) -> None:
        """Kill the process immediately."""

    def close_inherited(self) -> None:
        """Close inherited resources that a forked worker does not need."""


class EnginePlugin(Protocol):
    """An engine that runs statements instead of DuckDB."""

    def gate(self) -> StatementGate:
        """Return the gate for the engine's SQL dialect. The caller closes it."""

    def backend(self, config: RuntimeConfig, engine: EngineConfig) -> "Backend":
        """Return the backend for the *engine* of *config*. The process must not fork afterwards."""

    def companion(self, config: RuntimeConfig, engine: EngineConfig) -> Companion:
        """Return the process that runs next to the workers of *config*. Called before any fork."""


def gate_of(config: RuntimeConfig) -> StatementGate:
    """Return the gate for the statements of *config*. The caller closes it."""
    if config.engine is not None:
        return _plugin(config.engine).gate()
    from queryengine.gate.gate import Gate  # noqa: PLC0415 (a process loads the engine that it needs)

    return Gate(datafusion_sql=config.query.datafusion_sql)


def backend_of(config: RuntimeConfig) -> "Backend":
    """Return the backend of *config*. The process must not fork afterwards."""
    if config.engine is not None:
        return _plugin(config.engine).backend(config, config.engine)
    from queryengine.execution.instance import DuckDBBackend  # noqa: PLC0415 (as above)

    return DuckDBBackend(config)


def companion_of(config: RuntimeConfig) -> Companion | None:
    """Return the process that the engine of *config* runs next to its workers; None if it does not need one."""
    return None if config.engine is None else _plugin(config.engine).companion(config, config.engine)


def _plugin(engine: EngineConfig) -> EnginePlugin:
    from runtimeconf.plugins import ENGINES, imported  # noqa: PLC0415 (imports the schema of the configuration)

    plugin: EnginePlugin = imported(ENGINES[engine.name].plugin)
    return plugin

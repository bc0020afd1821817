"""
Which engine runs the statements of a configuration, and in which dialect they are judged.

DuckDB is the core's own. Another engine is an `EnginePlugin`, which is loaded where the configuration has one.
"""

from pathlib import Path
from typing import Protocol

from queryengine.engine import StatementGate
from queryengine.execution.session import Backend
from runtimeconf.model import EngineConfig, RuntimeConfig
from runtimeconf.plugins import ENGINES, imported


class Companion(Protocol):
    """A process that an engine keeps beside its workers. The arbiter calls these, always from its main thread."""

    @property
    def is_running(self) -> bool:
        """Whether the process runs."""

    def take_over(self, directory: Path) -> None:
        """Learn from *directory* what the engine before this one has left."""

    def ensure(self, now: float) -> None:
        """Start the process if it does not run."""

    def has_ended(self, pid: int) -> bool:
        """Say whether the process *pid*, which has ended, was this one."""

    def lost(self, query_id: str) -> None:
        """Have the statement ended whose worker died."""

    def leave(self) -> None:
        """Have the process end. Does not wait."""

    def kill(self) -> None:
        """End the process at once."""

    def close_inherited(self) -> None:
        """Close what a forked worker has no use for."""


class EnginePlugin(Protocol):
    """What runs statements in place of DuckDB."""

    def gate(self) -> StatementGate:
        """Return the gate for its dialect. The caller closes it."""

    def backend(self, config: RuntimeConfig, engine: EngineConfig) -> Backend:
        """Return the *engine* of *config*, for a process that forks no more."""

    def companion(self, config: RuntimeConfig, engine: EngineConfig) -> Companion:
        """Return what runs beside the workers of *config*. It is made before any fork."""


def gate_of(config: RuntimeConfig) -> StatementGate:
    """Return the gate for the statements of *config*. The caller closes it."""
    if config.engine is not None:
        return _plugin(config.engine).gate()
    from queryengine.gate.gate import Gate  # noqa: PLC0415 (a process loads the engine that it needs)

    return Gate(datafusion_sql=config.query.datafusion_sql)


def backend_of(config: RuntimeConfig) -> Backend:
    """Return the engine of *config*, for a process that forks no more."""
    if config.engine is not None:
        return _plugin(config.engine).backend(config, config.engine)
    from queryengine.execution.instance import DuckDBBackend  # noqa: PLC0415 (as above)

    return DuckDBBackend(config)


def companion_of(config: RuntimeConfig) -> Companion | None:
    """Return the process that the engine of *config* needs beside its workers; None if it needs none."""
    return None if config.engine is None else _plugin(config.engine).companion(config, config.engine)


def _plugin(engine: EngineConfig) -> EnginePlugin:
    plugin: EnginePlugin = imported(ENGINES[engine.name].plugin)
    return plugin

"""Which engine runs the statements of a configuration, and in which dialect they are judged."""

from queryengine.engine import StatementGate
from queryengine.execution.session import Backend
from runtimeconf.model import RuntimeConfig


def gate_of(config: RuntimeConfig) -> StatementGate:
    """Return the gate for the statements of *config*. The caller closes it."""
    if config.engine is None:
        from queryengine.gate.gate import Gate  # noqa: PLC0415 (a process loads the engine that it needs)

        return Gate(datafusion_sql=config.query.datafusion_sql)
    from queryengine.remote.gate.gate import SparkGate  # noqa: PLC0415 (as above)

    return SparkGate()


def backend_of(config: RuntimeConfig) -> Backend:
    """Return the engine of *config*, for a process that forks no more: gRPC does not survive a fork."""
    if config.engine is None:
        from queryengine.execution.instance import DuckDBBackend  # noqa: PLC0415 (as above)

        return DuckDBBackend(config)
    from queryengine.remote.backend import ClusterBackend  # noqa: PLC0415 (as above)

    return ClusterBackend(config, config.engine)

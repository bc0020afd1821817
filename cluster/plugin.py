"""The cluster as an engine, which `queryengine.backends` loads for `runtime.engine`."""

from cluster.config import ClusterConfig
from queryengine.backends import Companion
from queryengine.engine import StatementGate
from queryengine.execution.session import Backend
from runtimeconf.model import EngineConfig, RuntimeConfig


class _Cluster:
    """An `EnginePlugin`. Modules are imported late because gRPC does not survive a fork and the parser is optional."""

    def gate(self) -> StatementGate:
        from cluster.gate.gate import SparkGate  # noqa: PLC0415 (see above)

        return SparkGate()

    def backend(self, config: RuntimeConfig, engine: EngineConfig) -> Backend:
        from cluster.backend import ClusterBackend  # noqa: PLC0415 (see above)

        return ClusterBackend(config, ClusterConfig.of(engine))

    def companion(self, config: RuntimeConfig, engine: EngineConfig) -> Companion:
        from cluster.keeper_process import KeeperProcess  # noqa: PLC0415 (see above)

        return KeeperProcess(config, ClusterConfig.of(engine))


ENGINE = _Cluster()

"""A cluster as a `Backend`, in one process."""

from collections.abc import Sequence
from pathlib import Path

from cluster.config import ClusterConfig
from cluster.connection import Connection
from cluster.gate.gate import SparkGate
from cluster.session import RemoteSession
from cluster.shared_session import SharedSession
from queryengine.execution.views import GatedView
from queryengine.manifest import Manifest
from runtimeconf.model import RuntimeConfig


class ClusterBackend:
    """The *cluster* of *config*. Create it after any fork."""

    def __init__(self, config: RuntimeConfig, cluster: ClusterConfig) -> None:
        self.gate = SparkGate()
        self._config = config
        self._connection = Connection(cluster)

    def open(self, manifest: Manifest, views: Sequence[GatedView], scratch: Path, *, tolerant: bool) -> RemoteSession:
        """See `Backend.open`. Nothing is spilled, and an unreachable cluster is not yet an error."""
        return RemoteSession(self._connection, SharedSession(self._connection, self._config, manifest, views))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

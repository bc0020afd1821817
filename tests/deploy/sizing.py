"""The memory that a runtime may take, as docs/operations.md computes it under "Sizing"."""

from datasources.refresh import loader_process
from datasources.refresh.refresher import MAX_LOADS
from runtimeconf.model import MIB, RuntimeConfig

#: What the page leaves for all other processes and the system.
BASE_BYTES = 1024 * MIB


def most_memory(config: RuntimeConfig) -> int:
    """Return the bytes, on a machine where a quarter of the limit is more than a worker's fixed part."""
    limit = config.query.memory_limit_bytes
    load = limit + limit // 4 + loader_process.SPARE_BYTES
    return config.query.workers * (limit + limit // 4) + MAX_LOADS * load + BASE_BYTES

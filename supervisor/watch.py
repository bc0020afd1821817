"""The process that collects metrics and history from the other processes."""

import logging
import socket
import time
from typing import Any

from prometheus_client import CollectorRegistry

from runtimeconf import handover
from runtimeconf.model import RuntimeConfig
from supervisor.gauges import Gauges
from supervisor.part_process import StopSignal, heartbeat
from system.addresses import Address, listen
from system.lock import PREDECESSOR_WAIT_S
from system.process_limits import give_memory_back
from telemetry.collector import Collector
from telemetry.counters import Counters
from telemetry.memory import Memory
from telemetry.metrics_endpoint import MetricsServer, RuntimeMetrics
from telemetry.sender import WATCH_SOCKET

logger = logging.getLogger(__name__)

#: Seconds between checks for a stop and for a new configuration.
_POLL_S = 0.25

_SETTING = "runtime.metrics.bind"


def serve(config: RuntimeConfig, extra: dict[str, Any]) -> None:
    """Collect the events of the other processes, and serve the metrics, until SIGTERM."""
    listener = None
    if config.metrics.enabled:
        listener = listen(config.metrics.bind, _SETTING, time.monotonic() + PREDECESSOR_WAIT_S)
    counters, memory = Counters(), Memory(config.history)
    counters.expect_datasets([dataset.name for dataset in config.datasets])
    collector = Collector(config.state_dir / WATCH_SOCKET, [counters, memory], memory.answer, heartbeat(extra))
    collector.start()
    gauges = Gauges(extra.get("supervisor"))
    endpoint = _Endpoint(RuntimeMetrics(counters.series, gauges.series))
    endpoint.adopt(config, listener)
    if config.metrics.enabled:
        gauges.adopt(config, extra["keys"])
    give_memory_back()
    stop, live = StopSignal(), handover.live()
    while not stop.wait(_POLL_S):
        if live is not None and live.in_force != config.generation:
            config, extra = live.current()
            counters.expect_datasets([dataset.name for dataset in config.datasets])
            memory.adopt(config.history)
            endpoint.adopt(config)
            if config.metrics.enabled:
                gauges.adopt(config, extra["keys"])
    endpoint.close()
    gauges.stop()
    collector.stop()


class _Endpoint:
    """The metrics endpoint, at the address in the current configuration."""

    def __init__(self, collected: RuntimeMetrics) -> None:
        self._collected = collected
        self._registry = CollectorRegistry()
        self._registry.register(collected)
        self._server: MetricsServer | None = None
        self._address: Address | None = None

    def adopt(self, config: RuntimeConfig, listener: socket.socket | None = None) -> None:
        """Serve on the address in *config*, using *listener* if it already listens there."""
        self._collected.has_upstream_names = config.metrics.upstream_names
        address = config.metrics.bind if config.metrics.enabled else None
        if address == self._address:
            return
        self.close()
        if address is not None and listener is None:
            try:
                listener = listen(address, _SETTING, time.monotonic())
            except OSError as error:
                logger.error("There is no metrics endpoint: %s", error)  # noqa: TRY400 (the message says it)
                return
        self._address = address
        if listener is not None:
            self._server = MetricsServer(listener, self._registry)
            self._server.start()

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.stop()
            self._server = self._address = None

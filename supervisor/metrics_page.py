"""The metrics endpoint of the `watch` process, which exists only once it is enabled."""

import logging
import socket
import time
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry

from runtimeconf.model import RuntimeConfig
from supervisor.gauges import Gauges, Keys
from system.addresses import Address, listen
from telemetry.metrics import Metric, Series
from telemetry.metrics_endpoint import MetricsServer, RuntimeMetrics

logger = logging.getLogger(__name__)

_SETTING = "runtime.metrics.bind"


class MetricsPage:
    """
    The metrics endpoint, at the address in the current configuration.

    It serves *counters* and gauges of the runtime whose supervisor is the process *supervisor*, if any, and which began
    at the time *began*.
    """

    def __init__(self, supervisor: int | None, counters: Callable[[], Mapping[Metric, Series]], began: float) -> None:
        self._gauges = Gauges(supervisor)
        self._collected = RuntimeMetrics(counters, self._gauges.series, began=began)
        self._registry = CollectorRegistry()
        self._registry.register(self._collected)
        self._server: MetricsServer | None = None
        self._address: Address | None = None

    def adopt(self, config: RuntimeConfig, keys: Keys, listener: socket.socket | None = None) -> None:
        """Serve on the address in *config*, using *listener* if it already listens there."""
        self._collected.has_upstream_names = config.metrics.upstream_names
        self._serve(config.metrics.bind if config.metrics.enabled else None, listener)
        if config.metrics.enabled:
            self._gauges.adopt(config, keys)

    def _serve(self, address: Address | None, listener: socket.socket | None) -> None:
        if address == self._address:
            return
        self._stop_serving()
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

    def _stop_serving(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = self._address = None

    def close(self) -> None:
        """Stop serving and collecting."""
        self._stop_serving()
        self._gauges.stop()

"""The part that counts and remembers what happens in the others."""

import logging
import socket
import time
from typing import Any

from runtimeconf import handover
from runtimeconf.model import RuntimeConfig
from supervisor.gauges import Gauges
from supervisor.metrics_page import MetricsPage
from supervisor.part_process import StopSignal, heartbeat
from system.addresses import Address, listen
from system.lock import PREDECESSOR_WAIT_S
from system.process_limits import give_memory_back
from telemetry.aggregates import Memory
from telemetry.collector import Collector
from telemetry.page_server import PageServer
from telemetry.sender import WATCH_SOCKET

logger = logging.getLogger(__name__)

#: Seconds between checks for a stop and for another configuration.
_POLL_S = 0.25

_SETTING = "runtime.metrics.bind"


def serve(config: RuntimeConfig, extra: dict[str, Any]) -> None:
    """Collect the events of the other parts, and serve the page of metrics, until SIGTERM."""
    listener = None
    if config.metrics.enabled:
        listener = listen(config.metrics.bind, _SETTING, time.monotonic() + PREDECESSOR_WAIT_S)
    memory = Memory(config)
    collector = Collector(config.state_dir / WATCH_SOCKET, memory.aggregates, memory.answers, heartbeat(extra))
    collector.start()
    gauges = Gauges(extra.get("supervisor"))
    page = _Page(MetricsPage(memory, gauges))
    page.adopt(config, listener)
    if config.metrics.enabled:
        gauges.adopt(config, extra["keys"])
    give_memory_back()
    stop, live = StopSignal(), handover.live()
    while not stop.wait(_POLL_S):
        if live is not None and live.in_force != config.generation:
            config, extra = live.current()
            memory.adopt(config)
            page.adopt(config)
            if config.metrics.enabled:
                gauges.adopt(config, extra["keys"])
    page.close()
    gauges.stop()
    collector.stop()


class _Page:
    """The server of the page, at the address of the configuration in force."""

    def __init__(self, page: MetricsPage) -> None:
        self._page = page
        self._server: PageServer | None = None
        self._address: Address | None = None

    def adopt(self, config: RuntimeConfig, listener: socket.socket | None = None) -> None:
        """Serve where *config* says; on *listener*, if it listens there already."""
        self._page.has_upstream_names = config.metrics.upstream_names
        address = config.metrics.bind if config.metrics.enabled else None
        if address == self._address:
            return
        self.close()
        if address is not None and listener is None:
            try:
                listener = listen(address, _SETTING, time.monotonic())
            except OSError as error:
                logger.error("There is no page of metrics: %s", error)  # noqa: TRY400 (the message says it)
                return
        self._address = address
        if listener is not None:
            self._server = PageServer(listener, self._page)
            self._server.start()

    def close(self) -> None:
        """Serve no more."""
        if self._server is not None:
            self._server.stop()
            self._server = self._address = None

"""The process that collects metrics and history from the other processes."""

import time
from typing import TYPE_CHECKING, Any

from runtimeconf import handover
from runtimeconf.model import RuntimeConfig
from supervisor.part_process import StopSignal, heartbeat
from system.addresses import listen
from system.lock import PREDECESSOR_WAIT_S
from system.process_limits import give_memory_back
from telemetry.collector import Collector
from telemetry.counters import Counters
from telemetry.memory import Memory
from telemetry.sender import WATCH_SOCKET

if TYPE_CHECKING:
    from supervisor.metrics_page import MetricsPage

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
    began, page = time.time(), None
    if config.metrics.enabled:
        page = _page(extra, counters, began)
        page.adopt(config, extra["keys"], listener)
    give_memory_back()
    stop, live = StopSignal(), handover.live()
    while not stop.wait(_POLL_S):
        if live is not None and live.in_force != config.generation:
            config, extra = live.current()
            counters.expect_datasets([dataset.name for dataset in config.datasets])
            memory.adopt(config.history)
            if config.metrics.enabled and page is None:
                page = _page(extra, counters, began)
            if page is not None:
                page.adopt(config, extra["keys"])
    if page is not None:
        page.close()
    collector.stop()


def _page(extra: dict[str, Any], counters: Counters, began: float) -> "MetricsPage":
    from supervisor.metrics_page import MetricsPage  # noqa: PLC0415 (takes 5 MB, and metrics are off by default)

    return MetricsPage(extra.get("supervisor"), counters.series, began)

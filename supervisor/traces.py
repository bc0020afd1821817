"""The process that exports traces. Only this process imports OpenTelemetry and knows the collector's headers."""

import os
from contextlib import suppress
from typing import Any

from runtimeconf import handover
from runtimeconf.model import RuntimeConfig
from supervisor.part_process import StopSignal, heartbeat
from supervisor.tracing import exporter_of
from system.process_limits import give_memory_back

#: Seconds between two checks of the inherited configuration.
_POLL_S = 0.5

#: The niceness of this process, which has lower priority than statements.
_NICENESS = 10


def serve(config: RuntimeConfig, extra: dict[str, Any]) -> None:
    """Export the spans that the other processes send, using the configuration in effect, until SIGTERM."""
    if config.traces is None or "spans" not in extra:
        raise OSError("runtime.traces is not set, or this part was not started by `serve`.")
    stop = StopSignal()
    os.nice(_NICENESS)
    exporter = exporter_of(config.traces, config, extra["spans"])
    exporter.start()
    give_memory_back()
    live, number, beat = handover.live(), config.generation, heartbeat(extra)
    while not stop.wait(_POLL_S):
        beat()
        if live is not None and live.in_force != number:
            with suppress(LookupError):  # It has been replaced already.
                number = live.in_force
                traces = live.read(number)[0].traces
                if traces is not None:
                    exporter.configure(traces)
    exporter.stop()

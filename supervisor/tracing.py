"""How each process of the runtime sends its traces to the exporter."""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from runtimeconf.model import RuntimeConfig, TracesConfig
from supervisor.version import version
from telemetry import spans

if TYPE_CHECKING:  # OpenTelemetry is imported only where traces are exported.
    from telemetry.span_exporter import SpanExporter


def connect(config: RuntimeConfig, extra: Mapping[str, Any]) -> None:
    """Send the spans of this process to the exporter, if there is one."""
    if config.traces is not None and "spans" in extra:
        spans.connect(extra["spans"], config.traces.sample)


def exporter_of(traces: TracesConfig, config: RuntimeConfig, reader: int) -> "SpanExporter":
    """
    Return the exporter of the spans in the pipe *reader*.

    Raises:
        OSError: The required libraries are not installed or are incompatible.
    """
    try:
        from telemetry.span_exporter import SpanExporter  # noqa: PLC0415 (as above)
    except ImportError as error:
        from runtimeconf.traces import EXPORTER  # noqa: PLC0415 (imports the schema of the configuration)

        raise OSError(
            f"runtime.traces: the OpenTelemetry exporter cannot be imported ({error}): {EXPORTER.install_command}"
        ) from error
    return SpanExporter(traces, reader, service=config.name or "querykeep", version=version())


def export_here(config: RuntimeConfig) -> Callable[[], None]:
    """Export this process's spans in separate threads if configured. The returned function stops the export."""
    if config.traces is None:
        return lambda: None
    reader, writer = os.pipe2(os.O_CLOEXEC)
    exporter = exporter_of(config.traces, config, reader)
    exporter.start()
    spans.connect(writer, config.traces.sample)

    def stop() -> None:
        spans.connect(None)
        exporter.stop()
        os.close(writer)

    return stop

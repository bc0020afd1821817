"""The trace of one refresh."""

import time
from collections.abc import Mapping

from datasources.control import RefreshRun
from telemetry import spans
from telemetry.trace_context import log_fields


class RefreshTrace:
    """The trace of a refresh that begins now. It is a root trace without a parent."""

    def __init__(self) -> None:
        self._trace = spans.begin(())
        self._began = time.monotonic()
        self._phases: list[tuple[str, float]] = []

    def built(self, phases: Mapping[str, float]) -> None:
        """Add the *phases* (in seconds) of the build that has just ended; empty if they are unknown."""
        phases = phases or {"build": time.monotonic() - self._began}
        self._phases = [(name, spent_s * 1000) for name, spent_s in phases.items()]

    @property
    def log_fields(self) -> dict[str, str]:
        """The trace fields for the refresh's log line; empty if tracing is off."""
        return log_fields(self._trace)

    def end(self, dataset: str, run: RefreshRun) -> None:
        """Send the span of *run*, which ends now. The remaining time was spent on publishing."""
        duration_s = time.monotonic() - self._began
        if run.error is None and not run.unchanged:
            self._phases.append(("publish", duration_s * 1000 - sum(spent for _, spent in self._phases)))
        attributes = {
            "querykeep.dataset": dataset,
            "querykeep.refresh": run.id,
            "querykeep.rows": run.rows,
            "querykeep.bytes": run.bytes,
            "querykeep.unchanged": run.unchanged,
        }
        error = "" if run.error is None else "refresh_failed"
        spans.send(self._trace, "refresh", duration_s, attributes, kind="root", phases=self._phases, error=error)

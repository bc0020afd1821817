"""Reports the outcome of a refresh to the log and the metrics."""

import logging
import time

import telemetry.state
from datasources.control import RefreshRun
from datasources.refresh.entries import DatasetEntry
from datasources.refresh.refresh_trace import RefreshTrace
from telemetry.events import RefreshEvent, RefreshOutcome

logger = logging.getLogger(__name__)

#: A failing dataset is logged at most once in this many seconds.
_LOG_INTERVAL_S = 60.0


def log_run(entry: DatasetEntry, run: RefreshRun, trace: RefreshTrace, now: float, *, is_stopping: bool) -> None:
    """Report *run*, which has just ended. *now* is in seconds on the refresher's monotonic clock."""
    outcome: RefreshOutcome = "failed" if run.error is not None else "unchanged" if run.unchanged else "succeeded"
    duration_s = (run.duration_ms or 0) / 1000
    telemetry.state.send(RefreshEvent(entry.config.name, outcome, time.time() - duration_s, duration_s, run.rows))
    fields = {"dataset": entry.config.name, "refresh": run.id, "duration_ms": run.duration_ms, **trace.log_fields}
    if run.error is None:
        entry.logged = None
        what = "is unchanged" if run.unchanged else "refreshed"
        logger.info("Dataset %s %s", entry.config.name, what, extra={"fields": {**fields, "rows": run.rows}})
        return
    if not is_stopping and (entry.logged is None or now - entry.logged >= _LOG_INTERVAL_S):
        entry.logged = now
        logger.warning(
            "Dataset %s cannot be refreshed: %s",
            entry.config.name,
            run.error,
            extra={"fields": {**fields, "failures": entry.failures}},
        )

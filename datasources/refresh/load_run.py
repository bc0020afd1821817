"""Carries out one run: builds a snapshot and publishes it."""

import logging

from msgspec.structs import replace

import telemetry.state
from datasources.control import RefreshRun
from datasources.deadline import Deadline
from datasources.errors import DatasetError
from datasources.loading.columns import refuse_changes
from datasources.refresh.entries import QueueEntry
from datasources.refresh.refresh_trace import RefreshTrace
from datasources.snapshots.directory import Share, SnapshotDirectory
from datasources.snapshots.snapshot import Builder, Order
from system.settled_clock import SettledClock
from telemetry.events import EmptiedEvent

logger = logging.getLogger(__name__)

#: For the whole process, because a node that becomes the publisher must know of an earlier leap.
_clock = SettledClock()


def carry_out(
    queued: QueueEntry, builder: Builder, snapshots: SnapshotDirectory, share: Share | None, trace: RefreshTrace
) -> RefreshRun:
    """Build a snapshot and publish it, first to *share* if given. Return the run with its result or error."""
    run = queued.run
    dataset = queued.entry.config
    deadline = Deadline(dataset.acceleration.refresh_timeout_s, queued.stop)
    served = snapshots.snapshot(dataset.name)
    try:
        order = Order(
            dataset,
            queued.sql,
            served=served,
            former=(share and share.former(dataset.name)) or snapshots.former(dataset.name),
            skip_unchanged=queued.skips,
            mode=queued.mode,
            now=_clock.now(),
        )
        queued.entry.file = order.file
        try:
            snapshot = builder.build(order, deadline)
        finally:
            trace.built(builder.phases)
        if snapshot is None:
            snapshots.restore()
            rows, size = (served.rows, served.size_bytes) if served is not None else (None, None)
            return replace(run, unchanged=True, rows=rows, bytes=size)
        queued.entry.is_publishing = True
        try:
            if served is not None and dataset.on_schema_change == "fail":
                refuse_changes(dataset.name, served.columns, snapshot.columns)
            if share is not None:
                share.publish(snapshot, deadline, is_staged=dataset.name in snapshots.staging)
        except DatasetError:
            snapshots.discard(snapshot)
            raise
        snapshots.publish(snapshot)
    except DatasetError as exc:
        return replace(run, error=str(exc))
    except Exception:
        # A failure of one dataset must not stop the refreshes of the others.
        logger.exception("The refresh of dataset %s failed", dataset.name)
        return replace(run, error="The refresh failed; see the runtime log.")
    if served is not None and served.rows and not snapshot.rows and dataset.view is None:
        logger.warning("Dataset %s no longer has rows; before this refresh it had %s", dataset.name, served.rows)
        telemetry.state.send(EmptiedEvent(dataset.name))
    return replace(run, rows=snapshot.rows, bytes=snapshot.size_bytes)

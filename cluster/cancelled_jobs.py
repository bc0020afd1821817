"""
Jobs that were cancelled but are still computing.

Sail stops a task only between two steps of an operator. A step of a cross join takes minutes if the smaller side has
tens of thousands of rows. Only ending the session stops it sooner, because the workers end with the session. Sail's
system tables show such tasks. A cluster without these tables is expected to stop its tasks.
"""

from typing import Final

from msgspec import Struct, field

from cluster.connection import Connection
from queryengine.errors import StatementError

#: The session setting with the id of the operation that was stopped last.
STOPPED: Final = "spark.querykeep.stopped"
#: How long a cancelled job may keep computing, and the limit while other (perhaps short) jobs may be waiting for it.
STUCK_S: Final = 2.0
SHARED_S: Final = 10.0

# Sail runs these queries itself. Other filters and functions would need its workers, which are busy.
_JOBS: Final = "SELECT job_id, status FROM system.execution.jobs WHERE session_id = '{}' AND job_id >= {}"
_TASKS: Final = "SELECT job_id, status FROM system.execution.tasks WHERE session_id = '{}' AND job_id IN ({})"
_OVER: Final = frozenset({"SUCCEEDED", "FAILED", "CANCELED"})


class _Session(Struct):
    """The known state of a session's jobs."""

    id: str
    first: int = 0  # All earlier jobs have ended.
    running: frozenset[int] = frozenset()
    is_shared: bool = False  # Other jobs are also running.
    since: dict[int, float] = field(default_factory=dict)  # when a cancelled job was first seen to compute
    has_tables: bool = True


class CancelledJobs:
    """The cancelled jobs of a session."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._session = _Session("")

    def compute(self, session_id: str, now: float) -> bool:
        """
        Return whether tasks of cancelled jobs are still running in the session at *now* (`time.monotonic`).

        Raises:
            SessionLostError: The session has ended.
            QueryError: The cluster cannot be reached.
        """
        if session_id != self._session.id:
            self._session = _Session(session_id)
        known = self._session
        if not known.has_tables:
            return False
        try:
            jobs = self._rows(_JOBS, known.first)
        except StatementError:
            known.has_tables = False
            return False
        running = frozenset(job for job, status in jobs if status not in _OVER)
        # These queries are also jobs, so one of them is always running.
        known.is_shared = len(running) > 1 or bool(running & known.running)
        known.running = running
        cancelled = [job for job, status in jobs if status == "CANCELED"]
        tasks = self._rows(_TASKS, ", ".join(map(str, cancelled))) if cancelled else []
        computing = frozenset(job for job, status in tasks if status not in _OVER)
        known.since = {job: known.since.get(job, now) for job in computing}
        known.first = min(computing | running, default=known.first)
        return bool(computing)

    def are_stuck(self, now: float) -> bool:
        """Return whether only ending the session stops the jobs found last."""
        known = self._session
        since = min(known.since.values(), default=now)
        return now - since >= (SHARED_S if known.is_shared else STUCK_S)

    def _rows(self, sql: str, *jobs: object) -> list[tuple[int, str]]:
        rows = self._connection.rows(self._session.id, sql.format(self._session.id, *jobs))
        return [(row["job_id"], row["status"]) for row in rows]

"""
Jobs that were cancelled but still compute.

Sail stops a task between two steps of an operator only. A step of a cross join takes minutes if its smaller side has
tens of thousands of rows, and only the end of the session ends it sooner, because the workers end with it. The system
tables of Sail show such tasks. A cluster without these tables is expected to stop its tasks.
"""

from dataclasses import dataclass, field
from typing import Final

from cluster.connection import Connection
from queryengine.errors import StatementError

#: The setting of a session that names the operation which was stopped last.
STOPPED: Final = "spark.querykeep.stopped"
#: How long a cancelled job may still compute; and while other jobs run, which may be short ones that wait for it.
STUCK_S: Final = 2.0
SHARED_S: Final = 10.0

# Sail answers these itself. Other filters and functions would need its workers, which are busy.
_JOBS: Final = "SELECT job_id, status FROM system.execution.jobs WHERE session_id = '{}' AND job_id >= {}"
_TASKS: Final = "SELECT job_id, status FROM system.execution.tasks WHERE session_id = '{}' AND job_id IN ({})"
_OVER: Final = frozenset({"SUCCEEDED", "FAILED", "CANCELED"})


@dataclass(slots=True)
class _Session:
    """What is known of the jobs of one session."""

    id: str
    first: int = 0  # All jobs before it are over.
    running: frozenset[int] = frozenset()
    is_shared: bool = False  # Other jobs run too.
    since: dict[int, float] = field(default_factory=dict)  # when a cancelled job was first seen to compute
    has_tables: bool = True


class CancelledJobs:
    """The cancelled jobs of a session."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._session = _Session("")

    def compute(self, session_id: str, now: float) -> bool:
        """
        Say whether tasks of cancelled jobs still run in the session at *now* (`time.monotonic`).

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
        # These queries are jobs too: one of them is always running.
        known.is_shared = len(running) > 1 or bool(running & known.running)
        known.running = running
        cancelled = [job for job, status in jobs if status == "CANCELED"]
        tasks = self._rows(_TASKS, ", ".join(map(str, cancelled))) if cancelled else []
        computing = frozenset(job for job, status in tasks if status not in _OVER)
        known.since = {job: known.since.get(job, now) for job in computing}
        known.first = min(computing | running, default=known.first)
        return bool(computing)

    def are_stuck(self, now: float) -> bool:
        """Say whether only the end of the session ends what was found last."""
        known = self._session
        since = min(known.since.values(), default=now)
        return now - since >= (SHARED_S if known.is_shared else STUCK_S)

    def _rows(self, sql: str, *jobs: object) -> list[tuple[int, str]]:
        rows = self._connection.rows(self._session.id, sql.format(self._session.id, *jobs))
        return [(row["job_id"], row["status"]) for row in rows]

"""
The queue of loads, which decides which run starts next and which running load must give up its slot.

Each load needs a slot, and there are two slots. Runs start in the order of their requests, with rules that prevent one
key from keeping others waiting:

* Scheduled runs get a slot when callers' requests occupy at most one slot.
* The caller with the fewest running loads is next. Ties go to the caller whose last load started the longest ago.
* Callers may occupy both slots while nobody else waits. If a run that is entitled to a slot has waited for `PATIENCE_S`
  seconds, the most recently started load that exceeds its share is stopped and queued again.

A load of a materialized view counts for the caller whose refresh caused it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from threading import Event

from msgspec.structs import replace

from datasources.refresh.entries import DatasetEntry, QueueEntry, reads

#: Seconds that a run waits before the load of a caller with more than its share is stopped.
PATIENCE_S = 10.0

#: With fewer slots, a load that gives up its slot might never finish.
_LEAST_PLACES = 2


class LoadQueue:
    """
    The runs that wait for one of *places* slots, and those that have one. Guarded by the refresher's condition.

    A run does not begin while its dataset *must_wait*.
    """

    def __init__(self, places: int, must_wait: Callable[[DatasetEntry], bool]) -> None:
        self._places, self._must_wait = places, must_wait
        self._waiting: list[QueueEntry] = []
        self._running: list[QueueEntry] = []  # in starting order
        self._turns: dict[str, int] = {}  # when each caller's last load began
        self._began = 0
        self._last: QueueEntry | None = None  # the most recently started run

    def __iter__(self) -> Iterator[QueueEntry]:
        """Yield the waiting runs."""
        return iter(self._waiting)

    @property
    def running(self) -> tuple[QueueEntry, ...]:
        """The runs that have a slot."""
        return tuple(self._running)

    def add(self, queued: QueueEntry) -> None:
        """Queue a run."""
        self._waiting.append(queued)

    def free(self, now: float) -> list[QueueEntry]:
        """
        Return the queued runs that do not have to wait for another run, in queue order. They overtake blocked runs.

        A run waits while its dataset is being loaded. A view's run also waits while a relation that the view reads is
        being loaded or is queued ahead of it, unless another caller requested that load and it is not the first one.
        """
        free = []
        before: defaultdict[str, set[str | None]] = defaultdict(set)  # the callers of each load
        for run in self._running:
            before[run.entry.config.name.lower()].add(run.caller)
        for queued in self._waiting:
            entry = queued.entry
            may_begin = not entry.is_running and not self._must_wait(entry)
            if may_begin and all(before[name].isdisjoint({None, queued.caller}) for name in reads(entry)):
                free.append(queued)
            if queued.begins <= now:
                before[queued.entry.config.name.lower()].add(queued.caller)
        return free

    def next(self, now: float) -> QueueEntry | None:
        """Return the run to start at *now*; None if there is none."""
        ready = self._ready(now)
        scheduled = next((run for run in ready if run.caller is None), None)
        asked = min((run for run in ready if run.caller is not None), key=self._turn, default=None)
        if scheduled is None or asked is None:
            return scheduled or asked
        has_callers = self._callers() or (self._last is not None and self._last.caller is not None)
        return scheduled if has_callers or ready[0].caller is None else asked

    def begin(self, queued: QueueEntry) -> None:
        """Assign a slot to *queued*."""
        self._waiting.remove(queued)
        self._running.append(queued)
        queued.stop, queued.ready_at, self._last = Event(), None, queued
        self._began += 1
        if queued.caller is not None:
            self._turns[queued.caller] = self._began

    def end(self, run: QueueEntry) -> None:
        """Release the slot of *run*, which has ended."""
        self._running.remove(run)

    def put_back(self, run: QueueEntry) -> QueueEntry:
        """
        Return the stopped *run* to the front of the queue, or join it to a queued run of the same dataset.

        Returns:
            The queued run.
        """
        self.end(run)
        later = run.entry.waiting
        if later is None:
            run.run = replace(run.run, status="queued", started_at=None)
            run.entry.waiting = run
            self._waiting.insert(0, run)
            return run
        later.joined += [run.run.id, *run.joined]
        if later.skips:
            later.sql, later.skips, later.caller = run.sql, run.skips, run.caller
        if run.mode == "full":
            later.mode = "full"
        return later

    def overdue(self, now: float) -> QueueEntry | None:
        """Return the running load that must be stopped at *now* so that another can start; None if there is none."""
        if not _LEAST_PLACES <= self._places <= len(self._running) or any(run.stop.is_set() for run in self._running):
            return None
        for waiting in self._ready(now):
            if waiting.ready_at is None:
                waiting.ready_at = now
            if now - waiting.ready_at >= PATIENCE_S and (excess := self._excess(waiting)):
                return excess[-1]
        return None

    def _excess(self, waiting: QueueEntry) -> list[QueueEntry]:
        """Return the running loads that occupy a slot to which *waiting* is entitled."""
        callers = self._callers()
        if waiting.caller is None:
            excess = callers if len(callers) == self._places else []
        else:
            excess = [run for run in callers if run.caller != waiting.caller and self._share(run.caller) > 1]
        return [run for run in excess if not run.entry.is_publishing]

    def _ready(self, now: float) -> list[QueueEntry]:
        return [run for run in self.free(now) if run.begins <= now]

    def _callers(self) -> list[QueueEntry]:
        """Return the running loads that callers have requested."""
        return [run for run in self._running if run.caller is not None]

    def _share(self, caller: str | None) -> int:
        return sum(run.caller == caller for run in self._running)

    def _turn(self, run: QueueEntry) -> tuple[int, int]:
        return self._share(run.caller), self._turns.get(str(run.caller), 0)


def joined(queued: QueueEntry, caller: str | None, *, skips: bool) -> str | None:
    """Return the caller of *queued* after *caller* joined it. With *skips*, an unchanged source may be skipped."""
    if not skips:
        return caller  # the caller whose SQL runs
    return None if queued.skips and caller is None else queued.caller

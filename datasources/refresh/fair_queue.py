"""
The refresh queue, which decides which run begins next and which run must give up its place.

Each load needs a place, and there are two places. Runs begin in the order of their requests, except that a key cannot
keep others waiting:

* Scheduled runs get a place when callers' requests occupy at most one place.
* The caller with the fewest running loads is next, then the caller whose last load began the longest ago.
* One or more callers may occupy both places while nobody else waits. If a run that is entitled to a place has waited
  for `PATIENCE_S` seconds, the load that latest start is stopped and queued again.

Loads of materialized views count for the caller whose refresh caused them.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from threading import Event

from datasources.refresh.entries import QueueEntry, reads

#: Seconds that a run waits before the load of a caller with more than its share is stopped.
PATIENCE_S = 10.0

#: With fewer places, a load that gives up its place might never finish.
_LEAST_PLACES = 2


class FairQueue:
    """The runs that wait for one of *places*, and the runs that have one. Guarded by the refresher's condition."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._waiting: list[QueueEntry] = []
        self._running: list[QueueEntry] = []  # in starting order
        self._turns: dict[str, int] = {}  # when each caller's last load began
        self._began = 0
        self._last: QueueEntry | None = None  # latest start

    def __iter__(self) -> Iterator[QueueEntry]:
        """Yield the waiting runs."""
        return iter(self._waiting)

    @property
    def running(self) -> tuple[QueueEntry, ...]:
        """The runs that have a place."""
        return tuple(self._running)

    def add(self, queued: QueueEntry) -> None:
        """Queue a run."""
        self._waiting.append(queued)

    def free(self, now: float) -> list[QueueEntry]:
        """
        Return the queued runs that do not have to wait for another run, in order. Later runs overtake the others.

        A run waits while its dataset is being loaded. The run of a view also waits while a relation that the view reads
        is being loaded or will be loaded first, unless another caller requested that load.
        """
        free = []
        before: defaultdict[str, set[str | None]] = defaultdict(set)  # the callers of each load
        for run in self._running:
            before[run.entry.config.name.lower()].add(run.caller)
        for queued in self._waiting:
            if not queued.entry.is_running and all(
                before[name].isdisjoint({None, queued.caller}) for name in reads(queued.entry)
            ):
                free.append(queued)
            if queued.begins <= now:
                before[queued.entry.config.name.lower()].add(queued.caller)
        return free

    def next(self, now: float) -> QueueEntry | None:
        """Return the run to begin at *now*; None if there is none."""
        ready = self._ready(now)
        scheduled = next((run for run in ready if run.caller is None), None)
        asked = min((run for run in ready if run.caller is not None), key=self._turn, default=None)
        if scheduled is None or asked is None:
            return scheduled or asked
        has_callers = self._callers() or (self._last is not None and self._last.caller is not None)
        return scheduled if has_callers or ready[0].caller is None else asked

    def begin(self, queued: QueueEntry) -> None:
        """Give *queued* a place."""
        self._waiting.remove(queued)
        self._running.append(queued)
        queued.stop, queued.ready_at, self._last = Event(), None, queued
        self._began += 1
        if queued.caller is not None:
            self._turns[queued.caller] = self._began

    def end(self, run: QueueEntry) -> None:
        """Release the place of *run*, which has ended."""
        self._running.remove(run)

    def put_back(self, run: QueueEntry) -> QueueEntry:
        """Queue the stopped *run* before all others. Return the queued run, which another run may have joined."""
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
        """Return the running load that must be stopped at *now* so that another can begin; None if there is none."""
        if not _LEAST_PLACES <= self._places <= len(self._running) or any(run.stop.is_set() for run in self._running):
            return None
        for waiting in self._ready(now):
            if waiting.ready_at is None:
                waiting.ready_at = now
            if now - waiting.ready_at >= PATIENCE_S and (excess := self._excess(waiting)):
                return excess[-1]
        return None

    def _excess(self, waiting: QueueEntry) -> list[QueueEntry]:
        """Return the running loads that occupy a place to which *waiting* is entitled."""
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
    """Return the caller of *queued* after *caller* has joined it with a request that *skips* an unchanged source."""
    if not skips:
        return caller  # the caller whose SQL runs
    return None if queued.skips and caller is None else queued.caller

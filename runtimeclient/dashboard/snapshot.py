"""What a runtime does at one moment, as the wire tells it, and a thread that asks again and again."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeVar

from runtimeclient.client import RuntimeClient
from runtimeclient.errors import ClientError, ConnectionFailedError, NotAuthorisedError, RequestRefusedError
from runtimeclient.http.resources import ActiveQuery, ComponentStatus, DatasetStatus, StatementStatistics

_T = TypeVar("_T")

#: How many statements a snapshot has, those that took longest.
_STATEMENTS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """
    What a runtime does at the time `taken`. `problems` say what could not be read, or why the runtime is not reached.

    `is_ready` is None if that is not known.
    """

    taken: datetime
    key: str | None = None
    is_ready: bool | None = None
    components: tuple[ComponentStatus, ...] = ()
    queries: tuple[ActiveQuery, ...] = ()
    statements: tuple[StatementStatistics, ...] = ()
    datasets: tuple[DatasetStatus, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def engine(self) -> ComponentStatus | None:
        """The component that has the workers."""
        return next((component for component in self.components if component.workers_alive is not None), None)


@dataclass
class _Problems:
    texts: list[str] = field(default_factory=list)

    def read(self, call: Callable[[], _T], default: _T) -> _T:
        """Return what *call* returns, or *default* if the runtime refuses it."""
        try:
            return call()
        except RequestRefusedError as exc:
            if str(exc) not in self.texts:
                self.texts.append(str(exc))
            return default


def take(client: RuntimeClient) -> Snapshot:
    """
    Ask a runtime for everything.

    Raises:
        NotAuthorisedError, ConnectionFailedError: As `RuntimeClient.sql`.
    """
    problems = _Problems()
    is_ready = client.is_ready()
    statistics = problems.read(lambda: client.statistics(_STATEMENTS), None)
    return Snapshot(
        taken=datetime.now(UTC),
        key=problems.read(client.key_name, None),
        is_ready=is_ready,
        components=problems.read(client.status, ()),
        queries=problems.read(client.active_queries, ()),
        statements=() if statistics is None else statistics.statements,
        datasets=problems.read(client.datasets, ()),
        problems=tuple(problems.texts),
    )


class Poller:
    """
    Takes a snapshot every *interval_s* seconds, and cancels statements, in a thread.

    A runtime that cannot be reached is asked again. If it refuses the key, that is the end: `error` says so. `notice`
    is what became of the last cancellation.
    """

    def __init__(self, client: RuntimeClient, interval_s: float) -> None:
        self._client = client
        self._interval_s = interval_s
        self._again = threading.Event()
        self._cancels: deque[str] = deque()
        self._stops = False
        self.latest: Snapshot | None = None
        self.error: ClientError | None = None
        self.notice = ""
        threading.Thread(target=self._run, name="poller", daemon=True).start()

    def cancel(self, query_id: str) -> None:
        """Cancel a statement soon."""
        self.notice = ""
        self._cancels.append(query_id)
        self._again.set()

    def stop(self) -> None:
        """Ask no more. A request that is under way is not waited for."""
        self._stops = True
        self._again.set()

    def _run(self) -> None:
        while not self._stops:
            self._again.clear()
            while self._cancels:
                try:
                    self.notice = self._client.cancel_query(self._cancels.popleft())
                except ClientError as exc:
                    self.notice = str(exc)
            try:
                self.latest = take(self._client)
            except NotAuthorisedError as exc:
                self.error = exc
                return
            except ConnectionFailedError as exc:
                last = self.latest or Snapshot(taken=datetime.now(UTC))
                self.latest = replace(last, is_ready=None, queries=(), problems=(str(exc),))
            self._again.wait(self._interval_s)

"""A runtime's reported state at one moment, and a thread that polls it."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar

from runtimeclient.client import RuntimeClient
from runtimeclient.errors import ClientError, ConnectionFailedError, NotAuthorisedError, RequestRefusedError
from runtimeclient.http.resources import ActiveQuery, ComponentStatus, DatasetStatus, StatementStatistics

_T = TypeVar("_T")

#: The number of statements in a snapshot (the slowest ones).
_STATEMENTS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """
    The state of a runtime at the time `taken`.

    `problems` are sentences about data that could not be read, or the reason why the runtime is unreachable. `is_ready`
    is None if unknown.
    """

    taken: datetime
    key: str | None = None
    is_ready: bool | None = None
    components: tuple[ComponentStatus, ...] = ()
    queries: tuple[ActiveQuery, ...] = ()
    statements: tuple[StatementStatistics, ...] = ()
    datasets: tuple[DatasetStatus, ...] = ()
    problems: tuple[str, ...] = ()


def take(client: RuntimeClient) -> Snapshot:
    """
    Read the complete state of a runtime.

    Raises:
        NotAuthorisedError, ConnectionFailedError: See `RuntimeClient.sql`.
    """
    problems: dict[str, None] = {}

    def read(call: Callable[[], _T], default: _T) -> _T:
        """Return what *call* returns, or *default* if the runtime refuses it."""
        try:
            return call()
        except RequestRefusedError as exc:
            problems[str(exc)] = None
            return default

    is_ready = client.is_ready()
    statistics = read(lambda: client.statistics(_STATEMENTS), None)
    return Snapshot(
        taken=datetime.now(UTC),
        key=read(client.key_name, None),
        is_ready=is_ready,
        components=read(client.status, ()),
        queries=read(client.active_queries, ()),
        statements=() if statistics is None else statistics.statements,
        datasets=read(client.datasets, ()),
        problems=tuple(problems),
    )


class Poller:
    """
    Takes a snapshot every *interval_s* seconds, and cancels statements, in a thread.

    An unreachable runtime is polled again. If it refuses the key, the thread sets `error` and ends. `notice` reports
    the result of the last cancellation.
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
        """End the thread without waiting for a request in progress. The client may be closed immediately."""
        self._stops = True
        self._again.set()

    def _run(self) -> None:
        try:
            self._poll()
        except Exception:
            if not self._stops:  # Otherwise the client was closed during a request.
                raise

    def _poll(self) -> None:
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

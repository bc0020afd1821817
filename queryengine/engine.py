"""
The seam between those who ask and what runs statements.

`sqlapi`, `flightapi` and `datasets` know this interface only. Today it is `queryengine.inprocess`; engine workers
in processes of their own come behind the same interface.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Encoding = Literal["json", "csv", "arrow", "vnd"]

#: Values of `$1`, `?` (a sequence) or `$name` (a mapping), as JSON gives them.
Parameters = Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One statement to run, with everything that decides how."""

    sql: str
    encoding: Encoding = "json"
    parameters: Parameters | None = None
    query_id: str = ""
    fingerprint: str = ""  # of the caller's key: for the log and for fairness, "" when there is none


@dataclass(slots=True, kw_only=True)
class QueryTimings:
    """Where one statement's time went, in milliseconds, and what came of it. Filled in while it runs."""

    queued_ms: float = 0.0
    parse_ms: float = 0.0
    run_ms: float = 0.0
    encode_ms: float = 0.0
    rows: int = 0
    bytes: int = 0


class QueryResult(Protocol):
    """
    An answer under way. Iterate it for the encoded bytes; the caller closes it, always.

    The first chunk is computed before `QueryEngine.run` returns, so an error in the statement raises there. A later
    failure raises a `QueryError` from the iterator: the bytes until then are then not a complete answer.
    """

    timings: QueryTimings

    def __iter__(self) -> Iterator[bytes]:
        """Give the encoded answer in chunks."""

    def cancel(self) -> None:
        """Stop the statement from any thread; the iterator raises `QueryCancelledError`."""

    def close(self) -> None:
        """Stop the statement if it still runs and give its place back. More than one call is harmless."""


class CancelToken(Protocol):
    """Lets another thread stop a statement: before `run` returns, and after, until its result is closed."""

    def cancel(self) -> None:
        """Stop the statement now or, when it has not begun, as soon as it begins."""

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call *callback* on `cancel`, or now when that was earlier. The answer ends the subscription."""


class QueryEngine(Protocol):
    """Runs statements against the newest published data."""

    def run(self, query: Query, cancel: CancelToken | None = None) -> QueryResult:
        """
        Gate and start one statement, and wait for its first bytes.

        Raises:
            QueryError: Any of the tree in `queryengine.errors`.
        """

    def check(self, sql: str, relations: frozenset[str]) -> None:
        """
        Gate *sql* without running it; it may read only *relations* (lower-case names).

        Raises:
            StatementError: *sql* cannot be parsed or is not allowed.
        """

    def is_alive(self) -> bool:
        """Say whether a statement would be taken now; a busy engine is alive."""

    def close(self) -> None:
        """Stop everything that runs and give back what is held."""

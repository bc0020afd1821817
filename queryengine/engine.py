"""
The seam between those who ask and what runs statements.

`sqlapi`, `flightapi` and `datasets` know this interface only. Behind it is `queryengine.pool.inprocess`, which runs
statements in threads of this process, or `queryengine.pool.client`, which has engine workers run them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from queryengine.manifest import Signature

#: What to do about remembered answers: give one and remember what is new, only remember, or neither.
CacheUse = Literal["use", "renew", "none"]

#: Where an answer came from: "bypass" when none that was remembered was wanted, "" when nothing is remembered.
CacheState = Literal["", "hit", "miss", "bypass"]

#: How an answer is written; of "flight" each chunk is a message of Arrow Flight.
Encoding = Literal["json", "csv", "arrow", "vnd", "flight"]


@dataclass(frozen=True, slots=True)
class ArrowParameters:
    """The values of a statement's parameters as an Arrow IPC stream of one row, which nobody has looked into yet."""

    stream: bytes


#: Values of `$1`, `?` (a sequence) or `$name` (a mapping), as JSON gives them.
JsonParameters = Sequence[Any] | Mapping[str, Any]

Parameters = JsonParameters | ArrowParameters


StatementKind = Literal["select", "show", "explain", "pivot"]


@dataclass(frozen=True, slots=True)
class GatedStatement:
    """
    A statement that may run.

    `sql` is the text to run, without a semicolon; `relations` are the declared names it reads, in lower case;
    `parameters` are the names of its parameters, "1" and "2" for `?` and `$1`. A "pivot" finds its columns in the data:
    it cannot stand in a view or a subquery of ours. A "show" is a SHOW, DESCRIBE or SUMMARIZE, or has one in it.

    A `deterministic` statement is one query, unchanged, that uses no random number, time or session state
    (`functions.NONDETERMINISTIC`). It may run on a cursor on which other such statements ran, in their transaction,
    unless a view that it reads is not deterministic.

    Statements of one `pattern` most likely differ only in the values of literals; None when it is not known.

    `lines_before` is the number of lines before the first line of `sql` in the text that the caller sent.
    """

    sql: str
    kind: StatementKind
    relations: frozenset[str]
    parameters: frozenset[str]
    deterministic: bool = field(default=False, compare=False)
    pattern: str | None = field(default=None, compare=False)
    lines_before: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One statement to run, with everything that decides how."""

    sql: str
    encoding: Encoding = "json"
    parameters: Parameters | None = None
    query_id: str = ""
    fingerprint: str = ""  # of the caller's key: for the log and for fairness, "" when there is none
    timeout_s: float | None = None  # what is left of the time limit; None: all of it
    cache: CacheUse = "none"


@dataclass(slots=True, kw_only=True)
class QueryTimings:
    """Where one statement's time went, in milliseconds, and what came of it. Filled in while it runs."""

    queued_ms: float = 0.0
    parse_ms: float = 0.0
    run_ms: float = 0.0
    encode_ms: float = 0.0
    rows: int = 0
    bytes: int = 0
    cache: CacheState = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveQuery:
    """A statement that waits or runs now. `started` is ISO 8601 in UTC; `sql` is cut to `ACTIVE_SQL_CHARACTERS`."""

    query_id: str
    started: str
    state: Literal["queued", "running"]
    sql: str


#: How much of a statement a list of active ones shows.
ACTIVE_SQL_CHARACTERS = 1000

#: The longest answer that comes with a description.
MAX_AHEAD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """
    How the engine is: `workers_alive` processes run now, `workers_killed` were lost or killed since the start.

    Until it first had a worker alive, as far as this process knows, it `is_starting`.
    """

    workers_alive: int
    workers_killed: int
    is_starting: bool = False


class QueryResult(Protocol):
    """
    An answer under way. Iterate it for the encoded bytes; the caller closes it, always.

    The first chunk is computed before `QueryEngine.run` returns, so an error in the statement raises there. A later
    failure raises a `QueryError` from the iterator: the bytes until then are then not a complete answer.

    `basis` is the manifest whose data alone decides the answer; None when more does, or when that is not known, as for
    a query that has nothing to do with remembered answers.
    """

    timings: QueryTimings

    @property
    def basis(self) -> Signature:
        """As above."""

    def __iter__(self) -> Iterator[bytes]:
        """Give the encoded answer in chunks."""

    def cancel(self) -> None:
        """Stop the statement from any thread; the iterator raises `QueryCancelledError`."""

    def close(self) -> None:
        """Stop the statement if it still runs and give its place back. More than one call is harmless."""


@dataclass(slots=True, kw_only=True)
class Answer:
    """A `QueryResult` that is complete: its encoded chunks, and where the time of its statement went."""

    chunks: tuple[bytes, ...]
    timings: QueryTimings
    basis: Signature = None

    def __iter__(self) -> Iterator[bytes]:
        """Give the chunks, again each time."""
        return iter(self.chunks)

    def cancel(self) -> None:
        """Do nothing: nothing runs."""

    def close(self) -> None:
        """Do nothing: nothing is held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """
    What a statement is, found out without running it, or with its `answer`.

    `schema` is that of its answer in Arrow, as an encapsulated IPC message; None when it depends on the values of
    parameters that were not given. `parameters` are the names of those it takes in their order, "1" and "2" for `?`
    and `$1`. One `is_lasting` that stays true until other data is published; a statement `is_steady` whose answer does.
    """

    schema: bytes | None
    parameters: tuple[str, ...]
    is_lasting: bool = False
    is_steady: bool = False
    answer: Answer | None = None


class CancelToken(Protocol):
    """Lets another thread stop a statement: before `run` returns, and after, until its result is closed."""

    def cancel(self) -> None:
        """Stop the statement now or, when it has not begun, as soon as it begins."""

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call *callback* on `cancel`, or now when that was earlier. The answer ends the subscription."""


#: Takes note that a statement has its place.
Admitted = Callable[[], None]


class QueryEngine(Protocol):
    """
    Runs statements against the newest published data.

    `era` is what stands for the engine that answers now: another object after each start of one, None while there is
    none. Two of an era have the same views.
    """

    @property
    def era(self) -> object | None:
        """As above."""

    def run(self, query: Query, cancel: CancelToken | None = None, admitted: Admitted | None = None) -> QueryResult:
        """
        Gate and start one statement, and wait for its first bytes.

        *admitted* is called in this thread once the statement has its place; it may still cancel it before it runs.

        Raises:
            QueryError: Any of the tree in `queryengine.errors`.
        """

    def describe(self, query: Query, cancel: CancelToken | None = None, *, ahead_s: float = 0.0) -> Description:
        """
        Gate and bind one statement without running it. It waits for a place, and counts, as any other of its key.

        A statement with parameters may come without values. A PIVOT that finds its columns in the data reads it.

        Args:
            query: The statement.
            cancel: Stops it.
            ahead_s: For so many seconds, give or take a tick of the engine's clock, the statement is run all the same:
                an answer of `MAX_AHEAD_BYTES` at most that is all there by then comes with the description.

        Raises:
            QueryError: As `run`, for whatever can be known before a statement runs, or is found when it is run ahead.
        """

    def admit(self, sql: str, relations: frozenset[str]) -> GatedStatement:
        """
        Gate *sql* without running it; it may read only *relations* (lower-case names).

        Raises:
            StatementError: *sql* cannot be parsed or is not allowed.
            QueryError: The engine could not judge it.
        """

    def active(self, fingerprint: str) -> tuple[ActiveQuery, ...]:
        """
        List the statements of *fingerprint* that wait or run, oldest first.

        Raises:
            EngineUnavailableError: The engine cannot be asked.
        """

    def cancel(self, query_id: str, fingerprint: str) -> bool:
        """
        Stop a statement of *fingerprint*; False when it has none of that id.

        Raises:
            EngineUnavailableError: The engine cannot be asked.
        """

    def status(self) -> EngineStatus | None:
        """Say how the worker processes are; None for an engine without any."""

    def is_alive(self) -> bool:
        """Say whether a statement would be taken now; a busy engine is alive."""

    def close(self) -> None:
        """Stop everything that runs and give back what is held."""

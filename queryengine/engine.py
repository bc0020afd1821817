"""
The interface of a query engine.

`sqlapi`, `flightapi` and `datasources` know only this interface. `queryengine.pool.inprocess` implements it with
threads of this process, `queryengine.pool.client` with engine workers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

from msgspec import Meta, Struct

from queryengine.key_catalog import KeyCatalog
from queryengine.manifest import Signature
from runtimeconf.model import QueryConfig, Scope

#: A chunk of a result, to be sent without a copy: consecutive bytes, with the buffers of record batches among them.
Parts = Sequence[bytes | memoryview]


def length(parts: Parts) -> int:
    """Return the number of bytes in *parts*."""
    return sum(map(len, parts))


#: How to use the results cache: read and write, write only, or neither.
CacheUse = Literal["use", "renew", "none"]

#: Where a result came from: "bypass" if the caller did not want a cached one, "" if there is no cache.
CacheState = Literal["", "hit", "miss", "bypass"]

#: The format of a result; in "flight" each chunk is an Arrow Flight message.
Encoding = Literal["json", "ndjson", "csv", "arrow", "vnd", "flight"]


#: The values of a statement's parameters as an Arrow IPC stream of one row, not yet validated.
ArrowParameters = bytes

#: Values of `$1`, `?` (a sequence) or `$name` (a mapping), as JSON gives them.
JsonParameters = list[Any] | dict[str, Any]

Parameters = JsonParameters | ArrowParameters


StatementKind = Literal["select", "show", "explain", "pivot"]


@dataclass(frozen=True, slots=True)
class GatedStatement:
    """
    A statement that may run.

    `sql` is the text to run, without a semicolon; `relations` are the declared names that it reads, in lower case;
    `parameters` are the names of its parameters, "1" and "2" for `?` and `$1`. The columns of a "pivot" depend on the
    data, so it cannot be part of a view or of a subquery of ours. A "show" is or contains SHOW, DESCRIBE or SUMMARIZE.

    A `deterministic` statement is one query that lists nothing of the catalog and uses no random number, time or
    session state (`functions.NONDETERMINISTIC`). It may run on a cursor on which other such statements ran, in their
    transaction, unless a view that it reads is not deterministic.

    Statements of one `pattern` most likely differ only in the values of literals; None when it is not known. Statistics
    count statements of one `digest` together (`queryengine.gate.fingerprint`).

    `lines_before` is the number of lines before the first line of `sql` in the text that the caller sent.

    `catalog` are the names that it finds in `information_schema` and with SHOW; None if it reads neither. `macros` are
    those of `queryengine.gate.macros` that it calls.

    With a `key_catalog`, its names are those in this catalog.
    """

    sql: str
    kind: StatementKind
    relations: frozenset[str]
    parameters: frozenset[str]
    deterministic: bool = field(default=False, compare=False)
    pattern: str | None = field(default=None, compare=False)
    digest: str = field(default="", compare=False)
    lines_before: int = field(default=0, compare=False)
    catalog: frozenset[str] | None = field(default=None, compare=False)
    macros: frozenset[str] = field(default=frozenset(), compare=False)
    key_catalog: KeyCatalog | None = field(default=None, compare=False)


class StatementGate(Protocol):
    """Judges statements in the dialect of an engine, before the engine sees them."""

    def admit(self, sql: str, relations: frozenset[str], /, catalog: str = "") -> GatedStatement:
        """
        Judge *sql*, which may read *relations* (names of datasets and views in lower case).

        It runs in the database `runtime`, or in another *catalog* that stands for it.

        Raises:
            StatementError: *sql* cannot be parsed or is not allowed.
        """

    def close(self) -> None:
        """Release everything."""


class Query(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    One statement to run, and how to run it: the same from the edge to the process that runs it.

    A process that passes it on sets `timeout_s` to what is left then.
    """

    sql: str
    encoding: Encoding = "json"
    parameters: Parameters | None = None
    query_id: str = ""
    fingerprint: str = ""  # of the caller's key, for the log and for fairness; "" without a key
    key_name: str = ""  # the name of that key, for the log
    scope: Scope | None = None  # what the caller's key may see; None for everything
    limit_s: float | None = None  # the time limit of the caller's key, if it has one; that of the YAML holds too
    timeout_s: float | None = None  # the rest of the time limit; None for all of it
    concurrent: int | None = None  # how many statements of the key may run at once; None for the usual number
    cache: CacheUse = "none"
    trace_id: str = ""  # for the log

    def time_limit_s(self, config: QueryConfig) -> float:
        """Return the seconds that the statement may take in all."""
        return config.timeout_s if self.limit_s is None else min(self.limit_s, config.timeout_s)


_Figure = Meta(ge=0, lt=2**53)


class QueryTimings(Struct, kw_only=True, omit_defaults=True):
    """
    How one statement's time was spent, in milliseconds, and the size of its result. Filled in while it runs.

    `statement` is the digest of the statement (`queryengine.gate.fingerprint`); empty if the gate did not admit it.
    """

    queued_ms: float = 0.0
    parse_ms: Annotated[float, _Figure] = 0.0
    run_ms: Annotated[float, _Figure] = 0.0
    encode_ms: Annotated[float, _Figure] = 0.0
    rows: Annotated[int, _Figure] = 0
    bytes: Annotated[int, _Figure] = 0
    cache: CacheState = ""
    statement: Annotated[str, Meta(pattern=r"^([0-9a-f]{16})?\Z")] = ""

    def take(self, figures: "QueryTimings") -> None:
        """Take what the process that ran the statement knows."""
        self.parse_ms, self.run_ms, self.encode_ms = figures.parse_ms, figures.run_ms, figures.encode_ms
        self.rows, self.bytes, self.statement = figures.rows, figures.bytes, figures.statement


def timings_of(error: BaseException) -> QueryTimings | None:
    """Return how a statement that failed with *error* spent its time; None if it did not reach the engine."""
    timings = getattr(error, "timings", None)
    return timings if isinstance(timings, QueryTimings) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveQuery:
    """A queued or running statement. `started` is ISO 8601 in UTC; `sql` is cut to `ACTIVE_SQL_CHARACTERS`."""

    query_id: str
    started: str
    state: Literal["queued", "running"]
    sql: str


#: How much of a statement the list of active statements shows.
ACTIVE_SQL_CHARACTERS = 1000

#: The largest result that comes with a description.
MAX_SPECULATIVE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """
    The state of the engine: `workers_alive` processes run now, `workers_killed` were lost or killed since the start.

    The engine `is_starting` until its first worker is alive, as far as this process knows. `workers_busy` and the
    numbers of statements that are `running` and `queued` are at most about a second old.
    """

    workers_alive: int
    workers_killed: int
    is_starting: bool = False
    workers_busy: int = 0
    running: int = 0
    queued: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """
    The decision on a request of a key with `requests_per_minute`, here `limit`.

    `remaining` more requests are allowed now, and some again in `reset_s` seconds. The request counts as one of the
    second `counted_at` on the engine's clock.
    """

    limit: int
    remaining: int
    reset_s: int
    is_allowed: bool
    counted_at: int


class QueryResult(Protocol):
    """
    The result of a running statement. Iterate it for the encoded bytes; the caller always closes it.

    The first chunk is computed before `QueryEngine.run` returns, so an error in the statement raises there. A later
    failure raises a `QueryError` from the iterator: the bytes until then are not a complete result.

    `data_version` is the manifest whose data alone decides the result; None if more than data decides it, or if that is
    not known, as for a query that does not use the cache.
    """

    timings: QueryTimings

    @property
    def data_version(self) -> Signature:
        """As above."""

    def __iter__(self) -> Iterator[bytes]:
        """Give the encoded result in chunks."""

    def cancel(self) -> None:
        """Stop the statement from any thread; the iterator raises `QueryCancelledError`."""

    def close(self) -> None:
        """Stop the statement if it still runs and release its slot. More than one call is harmless."""


@dataclass(slots=True, kw_only=True)
class Answer:
    """A complete `QueryResult`: its encoded chunks, and the timings of its statement."""

    chunks: tuple[bytes, ...]
    timings: QueryTimings
    data_version: Signature = None

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
    The description of a statement that did not run, or ran speculatively and has its `answer`.

    `schema` is the Arrow schema of the result, as an encapsulated IPC message; None if it depends on the values of
    parameters that were not given. `parameters` are the names of the parameters in their order, "1" and "2" for `?` and
    `$1`. If `is_schema_cacheable`, the schema is valid until other data is published; `is_cacheable` says the same of
    the result.
    """

    schema: bytes | None
    parameters: tuple[str, ...]
    is_schema_cacheable: bool = False
    is_cacheable: bool = False
    answer: Answer | None = None


class CancelToken(Protocol):
    """Lets another thread stop a statement, before `run` returns and after it, until the result is closed."""

    def cancel(self) -> None:
        """Stop the statement now or, if it has not begun, as soon as it begins."""

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call *callback* on `cancel`, or now if that was earlier. The returned function ends the subscription."""


#: Called when a statement has its execution slot.
Admitted = Callable[[], None]


class QueryEngine(Protocol):
    """
    Runs statements against the newest published data.

    `instance_id` identifies the running engine instance: another object after each start, None while no engine runs.
    The views of one instance never change.
    """

    @property
    def instance_id(self) -> object | None:
        """As above."""

    def run(self, query: Query, cancel: CancelToken | None = None, admitted: Admitted | None = None) -> QueryResult:
        """
        Gate and start one statement, and wait for its first bytes.

        *admitted* is called in this thread once the statement has its slot; it may still cancel it before it runs.

        Raises:
            QueryError: Any of the tree in `queryengine.errors`.
        """

    def describe(self, query: Query, cancel: CancelToken | None = None, *, speculate_s: float = 0.0) -> Description:
        """
        Gate and bind one statement without running it. It waits for a slot and counts like any statement of its key.

        A statement with parameters may come without values. A PIVOT whose columns depend on the data reads the data.

        Args:
            query: The statement.
            cancel: Stops it.
            speculate_s: Run the statement speculatively for about this many seconds. A result that is complete by then
                and takes at most `MAX_SPECULATIVE_BYTES` comes with the description.

        Raises:
            QueryError: As `run`, for errors that are known before a statement runs, or found by speculative execution.
        """

    def admit(self, sql: str, relations: frozenset[str]) -> GatedStatement:
        """
        Gate *sql* without running it; it may read only *relations* (lower-case names).

        Raises:
            StatementError: *sql* cannot be parsed or is not allowed.
            QueryError: The engine could not judge *sql*.
        """

    def count_request(self, fingerprint: str, per_minute: int, instead_of: int | None = None) -> Allowance:
        """
        Count a request of *fingerprint*, unless it made *per_minute* of them within the last minute.

        *instead_of* is the `counted_at` of an earlier call of the same request, which no longer counts.

        Raises:
            EngineUnavailableError: The engine, which counts for all processes, cannot be reached.
        """

    def active(self, fingerprint: str) -> tuple[ActiveQuery, ...]:
        """
        List the queued and running statements of *fingerprint*, oldest first.

        Raises:
            EngineUnavailableError: The engine cannot be reached.
        """

    def cancel(self, query_id: str, fingerprint: str) -> bool:
        """
        Stop the statement *query_id* of *fingerprint*; False if no active statement has this id.

        Raises:
            EngineUnavailableError: The engine cannot be reached.
        """

    def status(self) -> EngineStatus | None:
        """Return the state of the worker processes; None for an engine without any."""

    def is_alive(self) -> bool:
        """Say whether a statement would be taken now; a busy engine is alive."""

    def close(self) -> None:
        """Stop everything that runs and release all resources."""

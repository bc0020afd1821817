"""
The interface of a query engine.

`sqlapi`, `flightapi` and `datasources` use only this interface. `queryengine.pool.inprocess` implements it with
threads of this process, and `queryengine.pool.client` implements it with engine workers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

from msgspec import Meta, Struct

from queryengine.key_catalog import KeyCatalog
from queryengine.manifest import Signature
from runtimeconf.model import QueryConfig, Scope

#: A chunk of a result, to be sent without copying: consecutive bytes, some of which are buffers of record batches.
Parts = Sequence[bytes | memoryview]


def length(parts: Parts) -> int:
    """Return the number of bytes in *parts*."""
    return sum(map(len, parts))


#: How to use the results cache: read and write, write only, or neither.
CacheUse = Literal["use", "renew", "none"]

#: Where a result came from: "bypass" if the caller did not want a cached result, "" if there is no cache.
CacheState = Literal["", "hit", "miss", "bypass"]

#: The format of a result. With "flight", each chunk is an Arrow Flight message.
Encoding = Literal["json", "ndjson", "csv", "arrow", "vnd", "flight"]


#: The values of a statement's parameters as an Arrow IPC stream with one row, not yet validated.
ArrowParameters = bytes

#: The JSON values of `$1` and `?` parameters (a list) or `$name` parameters (a mapping).
JsonParameters = list[Any] | dict[str, Any]

Parameters = JsonParameters | ArrowParameters


StatementKind = Literal["select", "show", "explain", "pivot"]


@dataclass(frozen=True, slots=True)
class GatedStatement:
    """
    A statement that may run.

    `sql` is the text to run, without a semicolon. `relations` are the declared names that it reads, in lower case.
    `parameters` are the names of its parameters, such as "1" and "2" for `?` and `$1`. The columns of a "pivot" depend
    on the data, so it cannot be part of a view or of a subquery that we generate. A "show" is or contains SHOW,
    DESCRIBE or SUMMARIZE.

    A `deterministic` statement is a single query that does not read the catalog and uses no random number, time or
    session state (`functions.NONDETERMINISTIC`). It may share a cursor and its transaction with other such statements,
    unless a view that it reads is not deterministic.

    Statements with the same `pattern` most likely differ only in the values of literals. `pattern` is None if unknown.
    Statistics count statements with the same `digest` together (`queryengine.gate.fingerprint`).

    `lines_before` is the number of lines before the first line of `sql` in the text that the caller sent.

    `catalog` contains the names that the statement finds in `information_schema` and with SHOW; None if it reads
    neither. `macros` are the macros of `queryengine.gate.macros` that it calls.

    With a `key_catalog`, names refer to the relations in that catalog. Without one, `limiting_views` are the
    materialized views that it reads, if the key sees only some relations. It `makes_arrays` as in
    `queryengine.gate.arrays`.
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
    limiting_views: frozenset[str] = field(default=frozenset(), compare=False)
    makes_arrays: bool = field(default=False, compare=False)


class StatementGate(Protocol):
    """Decides whether statements in an engine's SQL dialect may run, before the engine sees them."""

    def admit(self, sql: str, relations: frozenset[str], /, catalog: str = "") -> GatedStatement:
        """
        Check *sql*, which may read *relations* (lower-case names of datasets and views).

        The statement runs in the database `runtime`, or in another *catalog* in place of `runtime`.

        Raises:
            StatementError: *sql* cannot be parsed or is not allowed.
        """

    def close(self) -> None:
        """Release all resources."""


class Query(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    One statement and how to run it. It is passed unchanged from the edge to the process that runs it.

    Only `timeout_s` changes: each process that passes the query on sets it to the remaining time.
    """

    sql: str
    encoding: Encoding = "json"
    parameters: Parameters | None = None
    query_id: str = ""
    fingerprint: str = ""  # of the caller's key, for the log and for fairness; "" without a key
    key_name: str = ""  # the name of that key, for the log
    scope: Scope | None = None  # the data that the caller's key may see; None for everything
    limit_s: float | None = None  # the time limit of the caller's key, if any; the configured limit also applies
    timeout_s: float | None = None  # the remaining time; None for the whole time limit
    concurrent: int | None = None  # the maximum number of concurrent statements of the key; None for the default
    cache: CacheUse = "none"
    trace_id: str = ""  # for the log

    def time_limit_s(self, config: QueryConfig) -> float:
        """Return the total time limit of the statement in seconds."""
        return config.timeout_s if self.limit_s is None else min(self.limit_s, config.timeout_s)


_Figure = Meta(ge=0, lt=2**53)


class QueryTimings(Struct, kw_only=True, omit_defaults=True):
    """
    How one statement spent its time, in milliseconds, and the size of its result. Filled in while it runs.

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
        """Copy the values known only to the process that ran the statement."""
        self.parse_ms, self.run_ms, self.encode_ms = figures.parse_ms, figures.run_ms, figures.encode_ms
        self.rows, self.bytes, self.statement = figures.rows, figures.bytes, figures.statement


def timings_of(error: BaseException) -> QueryTimings | None:
    """Return how a statement that failed with *error* spent its time; None if it did not reach the engine."""
    timings = getattr(error, "timings", None)
    return timings if isinstance(timings, QueryTimings) else None


class ActiveQuery(Struct, frozen=True, kw_only=True):
    """A queued or running statement. `started` is ISO 8601 in UTC. `sql` is truncated to `ACTIVE_SQL_CHARACTERS`."""

    query_id: str
    started: str
    state: Literal["queued", "running"]
    sql: str


#: The number of characters of a statement that the list of active statements shows.
ACTIVE_SQL_CHARACTERS = 1000

#: The maximum size of a result that is returned with a description.
MAX_SPECULATIVE_BYTES = 64 * 1024


class EngineStatus(Struct, frozen=True, kw_only=True):
    """
    The state of the engine.

    `workers_alive` is the number of running worker processes. `workers_killed` is the number lost or killed since
    startup. As far as this process knows, the engine `is_starting` until its first worker is alive. `workers_busy` and
    the numbers of `running` and `queued` statements are at most about one second old.
    """

    workers_alive: int
    workers_killed: int
    is_starting: bool = False
    workers_busy: int = 0
    running: int = 0
    queued: int = 0


class Allowance(Struct, frozen=True, kw_only=True):
    """
    The rate limit decision on a request of a key whose `requests_per_minute` is `limit`.

    `remaining` more requests are allowed now, and further ones in `reset_s` seconds. The request is counted in the
    second `counted_at` of the engine's clock.
    """

    limit: int
    remaining: int
    reset_s: int
    is_allowed: bool
    counted_at: int


class QueryResult(Protocol):
    """
    The result of a running statement. Iterate over it to get the encoded bytes. The caller must always close it.

    The first chunk is computed before `QueryEngine.run` returns, so an error in the statement raises there. After a
    later failure, the iterator raises a `QueryError`, and the bytes received until then are not a complete result.

    `data_version` is the manifest whose data alone determines the result. It is None if the result depends on more than
    data, or if this is unknown, as for a query that does not use the cache.
    """

    timings: QueryTimings

    @property
    def data_version(self) -> Signature:
        """The manifest whose data alone determines the result; None if there is none or it is unknown."""

    def __iter__(self) -> Iterator[bytes]:
        """Return an iterator over the chunks of the encoded result."""

    def cancel(self) -> None:
        """Stop the statement from any thread. The iterator then raises `QueryCancelledError`."""

    def close(self) -> None:
        """Stop the statement if it is still running, and release its slot. Repeated calls are harmless."""


class Answer(Struct, kw_only=True):
    """A complete `QueryResult`: the encoded chunks, and the statement's timings."""

    chunks: tuple[bytes, ...]
    timings: QueryTimings
    data_version: Signature = None

    def __iter__(self) -> Iterator[bytes]:
        """Return a new iterator over all chunks."""
        return iter(self.chunks)

    def cancel(self) -> None:
        """Do nothing, because no statement is running."""

    def close(self) -> None:
        """Do nothing, because there are no resources to release."""


class Description(Struct, frozen=True, kw_only=True):
    """
    The description of a statement that did not run, or that ran speculatively and has an `answer`.

    `schema` is the Arrow schema of the result as an encapsulated IPC message; None if it depends on missing parameter
    values. `parameters` are the parameter names in order, such as "1" and "2" for `?` and `$1`. If
    `is_schema_cacheable`, the schema is valid until other data is published. If `is_cacheable`, so is the result.
    """

    schema: bytes | None
    parameters: tuple[str, ...]
    is_schema_cacheable: bool = False
    is_cacheable: bool = False
    answer: Answer | None = None


class CancelToken(Protocol):
    """Lets another thread stop a statement, both before and after `run` returns, until the result is closed."""

    def cancel(self) -> None:
        """Stop the statement now, or as soon as it begins."""

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call *callback* on `cancel`, or now if already cancelled. The returned function ends the subscription."""


#: Called when a statement gets its execution slot.
Admitted = Callable[[], None]


class QueryEngine(Protocol):
    """
    Runs statements against the newest published data.

    The views of one engine instance never change.
    """

    @property
    def instance_id(self) -> object | None:
        """An object that identifies the running engine instance, new after each start; None while no engine runs."""

    def run(self, query: Query, cancel: CancelToken | None = None, admitted: Admitted | None = None) -> QueryResult:
        """
        Gate and start one statement, and wait for its first bytes.

        *admitted* is called in this thread once the statement has its slot. It may still cancel the statement.

        Raises:
            QueryError: Any error of the tree in `queryengine.errors`.
        """

    def describe(self, query: Query, cancel: CancelToken | None = None, *, speculate_s: float = 0.0) -> Description:
        """
        Gate and bind one statement without running it. It waits for a slot and counts like any statement of its key.

        Parameter values may be missing. A PIVOT whose columns depend on the data reads the data.

        Args:
            query: The statement.
            cancel: Stops the statement.
            speculate_s: Run the statement speculatively for about this many seconds. If the result is complete by then
                and has at most `MAX_SPECULATIVE_BYTES`, it is returned with the description.

        Raises:
            QueryError: See `run`. The error is known before the statement runs, or found by speculative execution.
        """

    def admit(self, sql: str, relations: frozenset[str]) -> GatedStatement:
        """
        Gate *sql* without running it. It may read only *relations* (lower-case names).

        Raises:
            StatementError: *sql* cannot be parsed or is not allowed.
            QueryError: The engine could not check *sql*.
        """

    def count_request(self, fingerprint: str, per_minute: int, instead_of: int | None = None) -> Allowance:
        """
        Count a request of the key *fingerprint*, unless the key made *per_minute* requests within the last minute.

        *instead_of* is the `counted_at` of an earlier call for the same request, which is no longer counted.

        Raises:
            EngineUnavailableError: The engine, which counts for all processes, cannot be reached.
        """

    def active(self, fingerprint: str) -> tuple[ActiveQuery, ...]:
        """
        Return the queued and running statements of the key *fingerprint*, oldest first.

        Raises:
            EngineUnavailableError: The engine cannot be reached.
        """

    def cancel(self, query_id: str, fingerprint: str) -> bool:
        """
        Stop the statement *query_id* of the key *fingerprint*. Return False if no active statement has this id.

        Raises:
            EngineUnavailableError: The engine cannot be reached.
        """

    def status(self) -> EngineStatus | None:
        """Return the state of the worker processes; None for an engine without worker processes."""

    def is_alive(self) -> bool:
        """Return whether the engine would accept a statement now. A busy engine is alive."""

    def close(self) -> None:
        """Stop all running statements and release all resources."""

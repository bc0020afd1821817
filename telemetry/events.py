"""
What a process tells about its work, and how it is written: each event is a JSON array in one line.

Events are named tuples, because they are written and read for every statement: the JSON module writes a tuple as it is,
and a tuple is made of an array at once. The last element names the kind of event.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from types import UnionType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

#: Why an engine worker ended: at the time limit of its statement, for lack of memory, at the request of its client,
#: without a heartbeat, by a signal from elsewhere, or by itself.
Cause = Literal["time", "memory", "request", "stuck", "signal", "exit"]

RefreshOutcome = Literal["succeeded", "unchanged", "failed"]

#: The upper limits of the buckets of every histogram, in seconds.
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

#: How much of the text of a statement an event holds.
MAX_SQL_CHARACTERS = 1000


class StatementEvent(NamedTuple):
    """
    A statement that has ended.

    `code` is "ok" or the code of its error. `started` is in seconds since 1970, the times of its phases are in
    milliseconds; a statement that did not begin to run has none. `statement` identifies what statements that differ
    only in literals have in common; it is empty if that is not known. `sql` is None unless the history keeps it.
    `trace_id` is empty without a trace.
    """

    query_id: str
    request_id: str
    protocol: str
    fingerprint: str
    key: str
    code: str
    started: float
    total_ms: float
    queued_ms: float
    parse_ms: float
    run_ms: float
    encode_ms: float
    rows: int
    bytes: int
    cache: str
    statement: str
    sql: str | None = None
    trace_id: str = ""
    kind: str = "statement"

    @property
    def send_ms(self) -> float:
        """The rest of the time: moving the statement to a worker, and the result to the caller."""
        return max(0.0, self.total_ms - self.queued_ms - self.parse_ms - self.run_ms - self.encode_ms)


class RequestsEvent(NamedTuple):
    """HTTP requests of one route and status since the last such event. `buckets` has one more than `BUCKETS_S`."""

    route: str
    status: int
    seconds: float
    buckets: list[int]
    kind: str = "requests"


class AuthenticationFailuresEvent(NamedTuple):
    """How often requests were refused for one reason since the last such event."""

    reason: str
    times: int
    kind: str = "failures"


class WorkerLostEvent(NamedTuple):
    """An engine worker has ended before its time. `exit` is as of `os.waitstatus_to_exitcode`."""

    cause: str
    exit: int
    query_id: str
    kind: str = "worker"


class RefreshEvent(NamedTuple):
    """A refresh has ended. `started` is in seconds since 1970."""

    dataset: str
    outcome: str
    started: float
    seconds: float
    rows: int | None
    kind: str = "refresh"


class DroppedEvent(NamedTuple):
    """A process could not send this many events."""

    times: int
    kind: str = "dropped"


Event = StatementEvent | RequestsEvent | AuthenticationFailuresEvent | WorkerLostEvent | RefreshEvent | DroppedEvent

_KINDS: dict[str, Any] = {
    kind._field_defaults["kind"]: kind
    for kind in (
        StatementEvent,
        RequestsEvent,
        AuthenticationFailuresEvent,
        WorkerLostEvent,
        RefreshEvent,
        DroppedEvent,
    )
}


def _types(hint: Any) -> tuple[type, ...]:
    if hint is float:
        return int, float
    return get_args(hint) if isinstance(hint, UnionType) else (get_origin(hint) or hint,)


#: The types that the elements of an event may have, by its kind.
_SHAPES: dict[str, frozenset[tuple[type, ...]]] = {
    name: frozenset(product(*map(_types, get_type_hints(kind).values()))) for name, kind in _KINDS.items()
}

_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


@lru_cache(maxsize=4096)
def _quoted(text: str) -> str:
    return _encode(text)


def encode(event: Event) -> bytes:
    """Return *event* as a line."""
    if isinstance(event, StatementEvent):
        return _encode_statement(event)
    return _encode(event).encode("ascii") + b"\n"


def _encode_statement(event: StatementEvent) -> bytes:
    """Write the event that there is one of for each statement, in a third of the time of the JSON module."""
    query, request, protocol, fingerprint, key, code, at, total, queued, parse, run, encoded, *more = event
    rows, size, cache, statement, sql, trace_id, kind = more
    # Ids are of letters, digits and the marks of `queryengine.ids`.
    return (
        f'["{query}","{request}","{protocol}","{fingerprint}",{_quoted(key)},{_quoted(code)},{at:.3f},{total:.3f},'
        f'{queued:.3f},{parse:.3f},{run:.3f},{encoded:.3f},{rows},{size},"{cache}","{statement}",'
        f'{"null" if sql is None else _encode(sql)},"{trace_id}","{kind}"]\n'
    ).encode("ascii")


def decode(row: Sequence[Any]) -> Event:
    """
    Return the event of which *row* is the decoded JSON.

    Raises:
        LookupError, TypeError: It is none.
    """
    kind = row[-1]
    if tuple(map(type, row)) not in _SHAPES[kind]:
        raise TypeError(f"no event of the kind {kind}")
    event: Event = _KINDS[kind]._make(row)
    return event

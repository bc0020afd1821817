"""
The events that processes report, and their encoding. Each event is a JSON array on its own line.

The first element is the event type, the others are the fields in order. Every statement produces an event, so events
use msgspec. Creating, encoding, decoding and checking an event takes a few microseconds in total.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import msgspec.json
from msgspec import Meta, Struct
from msgspec.structs import astuple

#: Why an engine worker ended: the time limit of its statement, lack of memory, a cancellation by its client, a missing
#: heartbeat, a signal from elsewhere, or its own exit.
Cause = Literal["time", "memory", "request", "stuck", "signal", "exit"]

#: The topic of a request.
About = Literal["history", "statistics"]

RefreshOutcome = Literal["succeeded", "unchanged", "failed"]

#: The upper bucket boundaries of every histogram, in seconds.
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

#: The maximum length of a statement's text in an event.
MAX_SQL_CHARACTERS = 1000

#: The maximum for times and numbers in events, because values derived from them are displayed, and added up as floats.
_LATEST: Final = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
_LARGEST: Final = 2**63 - 1

Time = Annotated[float, Meta(ge=0, lt=_LATEST)]
Duration = Annotated[float, Meta(ge=0, le=_LARGEST)]
Count = Annotated[int, Meta(ge=0, le=_LARGEST)]
Buckets = Annotated[list[Count], Meta(min_length=len(BUCKETS_S) + 1, max_length=len(BUCKETS_S) + 1)]


#: The code of a statement whose caller disconnected because it had enough rows (`head`, a pager) or stopped waiting.
CLIENT_GONE: Final = "client_closed_request"

#: The codes that do not count as failures.
NO_ERRORS: Final = frozenset({"ok", CLIENT_GONE})


class _Event(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """The base of all lines. Field limits are enforced only for decoded lines."""


class StatementEvent(_Event, frozen=True, tag="statement"):
    """
    A finished statement.

    `code` is "ok", the error code, or `CLIENT_GONE`. `started` is in seconds since 1970. Phase times are in
    milliseconds. A statement that did not begin to run has no phase times. `statement` is its digest
    (`queryengine.gate.fingerprint`), empty if unknown. `sql` is None unless the history keeps SQL. `trace_id` is empty
    without a trace.
    """

    query_id: str
    request_id: str
    protocol: str
    fingerprint: str
    key: str
    code: str
    started: Time
    total_ms: Duration
    queued_ms: Duration
    parse_ms: Duration
    run_ms: Duration
    encode_ms: Duration
    rows: Count
    bytes: Count
    cache: str
    statement: str
    sql: str | None = None
    trace_id: str = ""

    @property
    def send_ms(self) -> float:
        """The remaining time: sending the statement to a worker, and the result to the caller."""
        return max(0.0, self.total_ms - self.queued_ms - self.parse_ms - self.run_ms - self.encode_ms)


class RequestsEvent(_Event, frozen=True, tag="requests"):
    """HTTP requests of one route and status since the last such event. `buckets` is one longer than `BUCKETS_S`."""

    route: str
    status: Count
    seconds: Duration
    buckets: Buckets


class AuthenticationFailuresEvent(_Event, frozen=True, tag="failures"):
    """The number of requests refused for one reason since the last such event."""

    reason: str
    times: Count


class WorkerLostEvent(_Event, frozen=True, tag="worker"):
    """An engine worker has ended early. `exit` is the result of `os.waitstatus_to_exitcode`."""

    cause: str
    exit: int
    query_id: str


class RefreshEvent(_Event, frozen=True, tag="refresh"):
    """A refresh has ended. `started` is in seconds since 1970."""

    dataset: str
    outcome: str
    started: Time
    seconds: Duration
    rows: Count | None


class EmptiedEvent(_Event, frozen=True, tag="emptied"):
    """A refresh has left a previously non-empty dataset without rows."""

    dataset: str


class DroppedEvent(_Event, frozen=True, tag="dropped"):
    """A process could not send this many events."""

    times: Count


Event = (
    StatementEvent
    | RequestsEvent
    | AuthenticationFailuresEvent
    | WorkerLostEvent
    | RefreshEvent
    | EmptiedEvent
    | DroppedEvent
)


class Question(_Event, frozen=True, tag="question"):
    """A request to the collector about at most `limit` statements of the key with the fingerprint `key`."""

    about: About
    key: str
    limit: Count


#: The lines that processes send to the collector.
Line = Event | Question

_encode = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


def encode(event: Line) -> bytes:
    """Return *event* as a line."""
    try:
        return _encode(event) + b"\n"
    except UnicodeEncodeError:  # The fields are from an engine worker, which may have sent part of a character.
        kind: Any = type(event)
        fields = (one.encode("utf-8", "replace").decode() if isinstance(one, str) else one for one in astuple(event))
        return _encode(kind(*fields)) + b"\n"


def decode(line: bytes) -> Line:
    """
    Return the event or request in *line*.

    Raises:
        ValueError, RecursionError: The line is neither.
    """
    return _decoder.decode(line)


def decode_all(lines: bytes) -> Sequence[Line]:
    """Return the events and requests in *lines*. Raises the same errors as `decode`."""
    return _decoder.decode_lines(lines)


def grouped(
    events: Iterable[StatementEvent], label: Callable[[StatementEvent], Any]
) -> Mapping[Any, list[StatementEvent]]:
    """Group *events* by *label*, keeping their order. Most events are alike, so shared values are looked up once."""
    groups: dict[Any, list[StatementEvent]] = defaultdict(list)
    for event in events:
        groups[label(event)].append(event)
    return groups

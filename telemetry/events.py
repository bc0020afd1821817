"""
The events that processes report, and how they are encoded: each is a JSON array on a line of its own.

The first element names the kind of event, the others are its fields in their order. Each statement has an event, so
msgspec makes, encodes, decodes and checks them, which takes it a few microseconds in all.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import msgspec.json
from msgspec import Meta, Struct
from msgspec.structs import astuple

#: Why an engine worker ended: at the time limit of its statement, for lack of memory, at the request of its client,
#: without a heartbeat, by a signal from elsewhere, or by itself.
Cause = Literal["time", "memory", "request", "stuck", "signal", "exit"]

#: What a question is about.
About = Literal["history", "statistics"]

RefreshOutcome = Literal["succeeded", "unchanged", "failed"]

#: The upper limits of the buckets of every histogram, in seconds.
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

#: How much of the text of a statement an event holds.
MAX_SQL_CHARACTERS = 1000

#: No time of an event is later, and no number larger: what is made of them is shown, and added up as floats.
_LATEST: Final = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
_LARGEST: Final = 2**63 - 1

Time = Annotated[float, Meta(ge=0, lt=_LATEST)]
Duration = Annotated[float, Meta(ge=0, le=_LARGEST)]
Count = Annotated[int, Meta(ge=0, le=_LARGEST)]
Buckets = Annotated[list[Count], Meta(min_length=len(BUCKETS_S) + 1, max_length=len(BUCKETS_S) + 1)]


#: The code of a statement whose caller disconnected: it has what it wanted (`head`, a pager), or no longer waits.
CLIENT_GONE: Final = "client_closed_request"

#: The codes of statements that did not fail.
NO_ERRORS: Final = frozenset({"ok", CLIENT_GONE})


class _Event(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """The base of all lines. The limits of their fields hold for those that were decoded."""


class StatementEvent(_Event, frozen=True, tag="statement"):
    """
    A statement that has ended.

    `code` is "ok", the code of its error, or `CLIENT_GONE`. `started` is in seconds since 1970. The times of its phases
    are in milliseconds; a statement that did not begin to run has none. `statement` is its digest
    (`queryengine.gate.fingerprint`), empty if that is not known. `sql` is None unless the history keeps it. `trace_id`
    is empty without a trace.
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
        """The rest of the time: moving the statement to a worker, and the result to the caller."""
        return max(0.0, self.total_ms - self.queued_ms - self.parse_ms - self.run_ms - self.encode_ms)


class RequestsEvent(_Event, frozen=True, tag="requests"):
    """HTTP requests of one route and status since the last such event. `buckets` has one more than `BUCKETS_S`."""

    route: str
    status: Count
    seconds: Duration
    buckets: Buckets


class AuthenticationFailuresEvent(_Event, frozen=True, tag="failures"):
    """How often requests were refused for one reason since the last such event."""

    reason: str
    times: Count


class WorkerLostEvent(_Event, frozen=True, tag="worker"):
    """An engine worker has ended early. `exit` is as of `os.waitstatus_to_exitcode`."""

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
    """A refresh has left a dataset that had rows without any."""

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
    """A question to the collector about the statements of the key with the fingerprint `key`, and at most `limit`."""

    about: About
    key: str
    limit: Count


#: What processes send to the collector.
Line = Event | Question

_encode = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


def encode(event: Line) -> bytes:
    """Return *event* as a line."""
    try:
        return _encode(event) + b"\n"
    except UnicodeEncodeError:  # An engine worker, whose fields these are, may have sent half a character.
        kind: Any = type(event)
        fields = (one.encode("utf-8", "replace").decode() if isinstance(one, str) else one for one in astuple(event))
        return _encode(kind(*fields)) + b"\n"


def decode(line: bytes) -> Line:
    """
    Return the event or question of *line*.

    Raises:
        ValueError, RecursionError: It is neither.
    """
    return _decoder.decode(line)


def decode_all(lines: bytes) -> Sequence[Line]:
    """Return the events and questions of *lines*. Raises as `decode` does."""
    return _decoder.decode_lines(lines)


def grouped(
    events: Iterable[StatementEvent], label: Callable[[StatementEvent], Any]
) -> Mapping[Any, list[StatementEvent]]:
    """Return *events* by their *label*, in their order: most are alike, and what they share is looked up once."""
    groups: dict[Any, list[StatementEvent]] = defaultdict(list)
    for event in events:
        groups[label(event)].append(event)
    return groups

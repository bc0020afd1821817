"""
The messages between engine clients, the broker and engine workers. msgspec encodes and validates them.

A client sends a `Request` to a worker. The response is a `Header`, `QueryTimings` before each piece of a stream, and an
`End`; or a `Failure`. Each client process has one connection to the broker, which carries the other messages.
"""

from typing import Literal, TypeVar

import msgspec

from queryengine.engine import ActiveQuery, Allowance, Description, GatedStatement, Query, QueryTimings
from queryengine.manifest import Signature
from queryengine.pool.frames import FrameError

_T = TypeVar("_T")


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    The call that a worker must make for a statement, which has its `query_id` and its remaining time.

    `relations` is for "admit", and `speculate_s` is for "describe".
    """

    call: Literal["run", "describe", "admit"]
    query: Query
    relations: frozenset[str] = frozenset()
    speculate_s: float = 0.0


class Header(msgspec.Struct, frozen=True, omit_defaults=True):
    """The message before the rows. For `data_version`, see `QueryResult`."""

    data_version: Signature = None


class End(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of a complete response, with a `description` for "describe" or a `statement` for "admit"."""

    timings: QueryTimings = msgspec.field(default_factory=QueryTimings)
    description: Description | None = None
    statement: GatedStatement | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error of `queryengine.errors`, identified by its code. `arguments` are its constructor arguments."""

    code: str
    message: str
    arguments: dict[str, int | float] = {}
    timings: QueryTimings | None = None


REQUEST = msgspec.json.Decoder(Request)
HEADER = msgspec.json.Decoder(Header)
PROGRESS = msgspec.json.Decoder(QueryTimings)
END = msgspec.json.Decoder(End)
FAILURE = msgspec.json.Decoder(Failure)


# Between a client and the broker.


class Statement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    A statement that is queued or has a slot.

    A `short` statement was short before. A `repeated` statement was stopped before because its slot was reclaimed. An
    `inner` statement is the runtime's own, so callers cannot see or stop it. At most `concurrent` statements of the key
    may run at once.
    """

    id: str
    sql: str
    started: str
    short: bool = False
    repeated: bool = False
    inner: bool = False
    concurrent: int | None = None


class _Asked(msgspec.Struct, omit_defaults=True, tag_field="do", tag=str.lower):
    """A message from a client to the broker."""


class Enter(_Asked):
    """Requests a slot for a statement. A *patient* statement can wait (see `slot_scheduler`)."""

    key: str
    statement: Statement
    patient: bool = False


class Hurry(_Asked):
    """Makes a statement no longer patient."""

    id: str


class Leave(_Asked):
    """Removes a statement from the queue, or frees a slot. If *kill* names a statement, its worker is killed first."""

    id: str = ""
    slot: int | None = None
    kill: str = ""

    def __post_init__(self) -> None:
        if not self.id and self.slot is None:
            raise ValueError("It names nothing.")


class Runs(_Asked):
    """Reports the statement that a slot is used for, if any."""

    slot: int
    statement: Statement | None = None


class Active(_Asked):
    """Lists the statements of a key."""

    ask: int
    key: str


class Cancel(_Asked):
    """Stops a statement of a key."""

    ask: int
    key: str
    id: str


class Count(_Asked):
    """Counts a request of a key; see `RateLimits.take`."""

    ask: int
    key: str
    limit: int
    instead_of: int | None = None


class Reported(_Asked):
    """Ends the reports that a `Report` requested."""

    ask: int


class _Said(msgspec.Struct, omit_defaults=True, tag_field="is", tag=str.lower):
    """A message from the broker to a client."""


class Admitted(_Said):
    """A statement has a slot."""

    id: str
    key: str
    slot: int


class Busy(_Said):
    """A statement gets no slot."""

    id: str
    retry_after_s: int


class Stopping(_Said):
    """A statement is stopped or refused because the runtime is stopping."""

    id: str


class Cancelled(_Said):
    """Another process stops a statement."""

    id: str


class Reclaimed(_Said):
    """A statement is stopped because another key needs its slot. It may enter again."""

    id: str


class Recall(_Said):
    """A slot must be returned after its current statement."""

    slot: int


class Report(_Said):
    """Another client lists or cancels statements, so the use of each slot must be reported now."""

    ask: int


class Listed(_Said):
    """The answer to `Active`."""

    ask: int
    statements: tuple[ActiveQuery, ...]


class Found(_Said):
    """The answer to `Cancel`."""

    ask: int
    found: bool


class Counted(_Said):
    """The answer to `Count`."""

    ask: int
    allowance: Allowance


class Status(_Said, omit_defaults=False):
    """
    The numbers of workers and statements, sent every second and when one of the first three has changed.

    While the runtime is *stopping*, statements are refused.
    """

    alive: int = 0
    killed: int = 0
    stopping: bool = False
    busy: int = 0
    running: int = 0
    queued: int = 0


Asked = Enter | Hurry | Leave | Runs | Active | Cancel | Count | Reported
Said = Admitted | Busy | Stopping | Cancelled | Reclaimed | Recall | Report | Listed | Found | Counted | Status
Answer = Listed | Found | Counted

ASKED: msgspec.json.Decoder[Asked] = msgspec.json.Decoder(Asked)
SAID: msgspec.json.Decoder[Said] = msgspec.json.Decoder(Said)


def decoded(payload: bytes, decoder: "msgspec.json.Decoder[_T]") -> _T:
    """
    Return the message in a frame's payload.

    Raises:
        FrameError: *payload* is not a message for *decoder*.
    """
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise FrameError("a frame contains an unexpected message") from None

"""
What is said between an engine client, the broker and an engine worker. msgspec encodes and checks it.

A *request* to a worker is a `Request`. Its answer is a `Header`, `QueryTimings` before each piece of a stream, and an
`End`; or a `Failure`. A client process holds one connection to the broker, which carries the other messages.
"""

from typing import Literal, TypeVar

import msgspec

from queryengine.engine import ActiveQuery, Allowance, Description, GatedStatement, Query, QueryTimings
from queryengine.manifest import Signature
from queryengine.pool.frames import FrameError

_T = TypeVar("_T")


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    What a worker is to do with a statement, which it receives with its `query_id` and the rest of its time.

    `relations` belong to "admit", `speculate_s` to "describe".
    """

    call: Literal["run", "describe", "admit"]
    query: Query
    relations: frozenset[str] = frozenset()
    speculate_s: float = 0.0


class Header(msgspec.Struct, frozen=True, omit_defaults=True):
    """The beginning of rows. `data_version` is that of `QueryResult`."""

    data_version: Signature = None


class End(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of a complete answer: to "describe" a `description`, to "admit" a `statement`."""

    timings: QueryTimings = msgspec.field(default_factory=QueryTimings)
    description: Description | None = None
    statement: GatedStatement | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error of `queryengine.errors` by its code; `arguments` are those that its constructor takes."""

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
    A statement that is queued or that a slot is used for.

    A `short` one was short before, a `repeated` one was reclaimed before. An `inner` one is the runtime's own: no
    caller may see or stop it. `concurrent` statements of its key may run at once.
    """

    id: str
    sql: str
    started: str
    short: bool = False
    repeated: bool = False
    inner: bool = False
    concurrent: int | None = None


class _Asked(msgspec.Struct, omit_defaults=True, tag_field="do", tag=str.lower):
    """A message of a client."""


class Enter(_Asked):
    """Asks for a slot for a statement. A *patient* one can wait: see the scheduler."""

    key: str
    statement: Statement
    patient: bool = False


class Hurry(_Asked):
    """Ends the patience of a statement."""

    id: str


class Leave(_Asked):
    """Removes a statement from the queue, or frees a slot; *kill* names a statement whose worker is killed first."""

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
    """Counts a request of a key: see `RateLimits.take`."""

    ask: int
    key: str
    limit: int
    instead_of: int | None = None


class Reported(_Asked):
    """Ends the reports that a `Report` asked for."""

    ask: int


class _Said(msgspec.Struct, omit_defaults=True, tag_field="is", tag=str.lower):
    """A message of the broker."""


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
    """A statement is stopped or refused, because the runtime stops."""

    id: str


class Cancelled(_Said):
    """Another process stops a statement."""

    id: str


class Reclaimed(_Said):
    """A statement is stopped because another key needs its slot. It may enter again."""

    id: str


class Recall(_Said):
    """A slot is to be given back after the statement that it is used for."""

    slot: int


class Report(_Said):
    """Another client lists or cancels statements: each use of a slot is to be reported now."""

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
    The numbers of workers and statements: every second, and when one of the first three has changed.

    While a runtime is *stopping*, statements are refused.
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
    Return what a frame carries.

    Raises:
        FrameError: It is something else.
    """
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise FrameError("a frame carries something else than it should") from None

"""
What is said between an engine client, the broker and an engine worker. msgspec encodes and checks it.

A *request* to a worker is a `Request`. Its answer is a `Header`, `QueryTimings` before each piece of a stream, and an
`End`; or a `Failure`.
"""

from typing import Any, Literal, TypeVar

import msgspec

from queryengine.engine import Description, GatedStatement, Query, QueryTimings
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
FIELDS = msgspec.json.Decoder(dict[str, Any])


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

"""The broker's records: client connections, statements, granted slots, and questions that wait for answers."""

import math
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from queryengine.engine import ACTIVE_SQL_CHARACTERS
from queryengine.pool.fair_queue import QueueEntry
from queryengine.pool.frames import FrameDecoder, FrameError

#: The largest message accepted from a client, with room to spare: clients truncate the SQL text.
MAX_MESSAGE_BYTES = 64 * 1024
#: A recalled slot that has not come back after this time is no longer counted on: the broker recalls another.
RECALL_S = 0.02
#: A slot is in rotation if its client has reported another statement for it within this time.
ROTATION_S = 0.15

_T = TypeVar("_T")


class StatementRecord:
    """A statement that is queued or that a slot is used for."""

    entry: QueueEntry

    def __init__(self, client: "ClientConnection", fields: dict[str, Any], key: str) -> None:
        self.client = client
        self.id = required(fields, "id", str)
        self.key = key
        self.is_inner = fields.get("inner") is True
        self.sql = required(fields, "sql", str)[:ACTIVE_SQL_CHARACTERS]
        self.started = required(fields, "started", str)
        self.since = time.monotonic()
        self.queued_until = 0.0


@dataclass(eq=False, slots=True)
class GrantedSlot:
    """A slot that a client process holds, and the statement it last reported for it."""

    number: int
    client: "ClientConnection"
    entry: QueueEntry
    statement: StatementRecord | None
    since: float = field(default_factory=time.monotonic)
    recalled_at: float | None = None
    reused_at: float = -math.inf
    missed_checks: int = 0

    @property
    def is_recalled(self) -> bool:
        """Whether its client was asked to return it."""
        return self.recalled_at is not None

    def is_expected(self, now: float) -> bool:
        """Whether it was recalled so recently that it may come back at any moment."""
        return self.recalled_at is not None and now < self.recalled_at + RECALL_S

    def is_rotating(self, now: float) -> bool:
        """Whether it serves one statement after another and is not recalled."""
        return self.recalled_at is None and now < self.reused_at + ROTATION_S


class ClientConnection:
    """The connection of one client process, with its slots and queued statements."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.decoder = FrameDecoder(max_json_bytes=MAX_MESSAGE_BYTES)
        self.out = bytearray()
        self.writes = False  # whether the selector waits until it can be written to
        self.queued: dict[str, StatementRecord] = {}
        self.slots: dict[int, GrantedSlot] = {}


@dataclass(eq=False, slots=True)
class PendingQuestion:
    """A question of *client* about all statements. It waits for the reports of the clients in `unreported`."""

    client: ClientConnection
    answer: Callable[[], dict[str, Any]]
    unreported: set[ClientConnection]
    deadline: float


def required(fields: dict[str, Any], name: str, kind: type[_T]) -> _T:
    """Return the field *name* of a message, which is a *kind*; raises FrameError."""
    value = fields.get(name)
    if not isinstance(value, kind):
        raise FrameError(f"a message has no {name}")
    return value


def slots_of(key: str, slots: Iterable[GrantedSlot]) -> int:
    """Return the number of those *slots* of *key* that are not recalled."""
    return sum(slot.entry.key == key and not slot.is_recalled for slot in slots)

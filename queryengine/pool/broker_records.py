"""What the broker keeps of its clients: their connections, what waits, what places are used for, what is asked."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from queryengine.engine import ACTIVE_SQL_CHARACTERS
from queryengine.pool.fair_queue import Ticket
from queryengine.pool.frames import FrameDecoder, FrameError

#: The longest message a client has reason to send, with room: the statement in it is cut. Nothing longer is waited for.
MAX_MESSAGE_BYTES = 64 * 1024
#: A place that was called back and does not come for so long is not counted on: another one is called back.
RECALL_S = 0.02
#: A place moves on if its client has told within this time that it is used for another statement.
MOVES_S = 0.15


class Statement:
    """A statement that waits, or that a place is used for."""

    __slots__ = ("client", "id", "is_inner", "key", "serial", "since", "sql", "started", "ticket", "waits_until")

    ticket: Ticket

    def __init__(self, client: Client, fields: dict[str, Any], key: str, serial: int) -> None:
        self.client = client
        self.id = text(fields, "id")
        self.key = key
        self.is_inner = fields.get("inner") is True
        self.sql = text(fields, "sql")[:ACTIVE_SQL_CHARACTERS]
        self.started = text(fields, "started")
        self.serial = serial
        self.since = time.monotonic()
        self.waits_until = 0.0


class Place:
    """A place that a client process has, and the statement it was last known to use it for."""

    __slots__ = ("client", "moved_at", "number", "recalled_at", "since", "statement", "ticket", "unseen")

    def __init__(self, number: int, statement: Statement) -> None:
        self.number = number
        self.client = statement.client
        self.ticket = statement.ticket
        self.statement: Statement | None = statement
        self.since = time.monotonic()
        self.recalled_at: float | None = None
        self.moved_at = -math.inf
        self.unseen = 0

    @property
    def is_recalled(self) -> bool:
        """Whether its client was asked for it."""
        return self.recalled_at is not None

    def is_awaited(self, now: float) -> bool:
        """Whether its client was asked for it so lately that it may come at any moment."""
        return self.recalled_at is not None and now < self.recalled_at + RECALL_S

    def moves(self, now: float) -> bool:
        """Whether it serves one statement after the other, and goes on to."""
        return self.recalled_at is None and now < self.moved_at + MOVES_S


class Client:
    """The connection of one client process, and what it has in hand."""

    __slots__ = ("decoder", "out", "places", "socket", "waiting", "writes")

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.decoder = FrameDecoder(max_json_bytes=MAX_MESSAGE_BYTES)
        self.out = bytearray()
        self.writes = False  # whether the selector waits for it to read
        self.waiting: dict[str, Statement] = {}
        self.places: dict[int, Place] = {}

    def places_of(self, key: str) -> int:
        """How many places of this key it has, and keeps."""
        return sum(place.ticket.key == key and not place.is_recalled for place in self.places.values())


@dataclass(eq=False, slots=True)
class Question:
    """What *client* asks about the statements of all; answered when those in `untold` have told theirs, or late."""

    client: Client
    answer: Callable[[], dict[str, Any]]
    untold: set[Client] = field(default_factory=set)
    late_at: float = 0.0


def text(fields: dict[str, Any], name: str) -> str:
    """Return the text *name* of a message; raises FrameError."""
    value = fields.get(name)
    if not isinstance(value, str):
        raise FrameError(f"a message has no {name}")
    return value


def number(fields: dict[str, Any], name: str) -> int:
    """Return the number *name* of a message; raises FrameError."""
    value = fields.get(name)
    if not isinstance(value, int):
        raise FrameError(f"a message has no {name}")
    return value

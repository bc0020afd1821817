"""
The places that a client process has: who waits for one, what each is used for, and the worker that serves it.

A place is the right to have one statement run. The broker gives it for a key; its statement connects to a worker, and
when it has ended in peace the next statement of that key takes the place over together with the connection. So a
process that answers many short statements asks the broker for a place once, and tells it only every `TELL_S` what the
place is used for. The broker asks for it back when somebody else should have it, and a place that nobody has used for
`KEEP_S` goes back by itself.
"""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
import uuid
from collections import deque
from pathlib import Path
from typing import Any, Protocol

from queryengine.cancellation import Reason
from queryengine.errors import EngineBusyError, QueryCancelledError, QueryError
from queryengine.pool.broker_client import BrokerLink, stopping, unreachable
from queryengine.pool.frames import FrameError

logger = logging.getLogger(__name__)

#: The name of the workers' socket in the state directory.
ENGINE_SOCKET = "engine.sock"
#: A statement that finds all places of its process and key in use waits so long for one of these before another one is
#: asked for; of those that wait, one asks at a time.
ASK_S = 0.01
#: The broker hears of every statement that waits, and of what each place is used for, after so long.
TELL_S = 0.05
#: A place that is used for nothing is given back after so long.
KEEP_S = 0.1
#: How often statements are looked at while there are no places.
_LOOK_S = 1.0


class Party(Protocol):
    """A statement, as far as its place goes. Called from any thread; it must not block."""

    query_id: str
    key: str
    place: Place | None

    def entry(self) -> dict[str, Any]:
        """Return what the broker is told of it: `id`, `sql`, `started`, and `inner` for one of the runtime's own."""

    def admitted(self) -> None:
        """Take note that it has its place. Called under the lock."""

    def refused(self, error: QueryError) -> None:
        """Take note that it gets none; nothing happens when it has one. Called under the lock."""

    def stop(self, reason: Reason) -> None:
        """End it, wherever it is."""

    def look(self, now: float) -> None:
        """See whether its time is up at *now* (`time.monotonic()`)."""


class Place:
    """
    The right to have one statement of `key` run.

    `connection` leads to a worker that waits for the next statement, or runs the one of `party`; None until there is
    one. What is here belongs to `party`, or while there is none, to whoever holds the lock.
    """

    __slots__ = ("changed", "connection", "key", "number", "party", "recalled", "since", "told_at")

    def __init__(self, number: int, key: str) -> None:
        self.number = number
        self.key = key
        self.connection: socket.socket | None = None
        self.party: Party | None = None
        self.recalled = False
        self.changed = False  # since the broker was told
        self.since = 0.0  # when `party` got it, or when it lost the last
        self.told_at = time.monotonic()


class _Waiting:
    """A statement that waits."""

    __slots__ = ("is_patient", "party", "since", "told")

    def __init__(self, party: Party) -> None:
        self.party = party
        self.since = time.monotonic()
        self.told = False
        self.is_patient = False  # as the broker was told


class Places:
    """The places of this process, and its statements. Safe from any thread."""

    def __init__(self, state_dir: Path) -> None:
        self.lock = threading.Lock()  # of this object and its parties; nothing under it blocks
        self.engine_path = str(state_dir / ENGINE_SOCKET)
        self.link = BrokerLink(state_dir, self)
        self._parties: dict[str, Party] = {}
        self._waiting: dict[str, deque[_Waiting]] = {}  # by key; none of them is empty
        self._places: dict[int, Place] = {}
        self._kept: dict[str, list[Place]] = {}  # those without a party, by key
        self._had: dict[str, int] = {}  # how many there are of a key that will serve another statement
        self._moved_at: dict[str, float] = {}  # when one of these was last passed on, by key
        self._looks_at = math.inf  # when `tick` is called next
        self._asked_at: dict[str, float] = {}  # when another one was last asked for though these move on, by key
        self.link.start()

    def enter(self, party: Party) -> None:
        """
        Ask for a place. *party* is told the answer, perhaps at once, and whatever is said of it until it leaves.

        Its `query_id` is replaced when another statement has the same.

        Raises:
            EngineUnavailableError: There is no engine, or this is closed.
        """
        self.link.require()
        with self.lock:
            if not party.query_id or party.query_id in self._parties:
                party.query_id = uuid.uuid4().hex
            kept = self._kept.get(party.key)
            if kept and not self.link.is_stopping:
                self._parties[party.query_id] = party
                self._use(kept.pop(), party)
                party.admitted()
                return
            waiting = _Waiting(party)
            # With a place of its own the process serves itself: soon, or else the broker hears of it.
            if (self.link.is_stopping or not self._had.get(party.key)) and not self._tell(waiting, patient=False):
                raise unreachable()
            self._parties[party.query_id] = party
            self._waiting.setdefault(party.key, deque()).append(waiting)
            if self._looks_at > waiting.since + ASK_S:
                self._look_soon()

    def leave(self, party: Party, *, kill: bool = False) -> None:
        """
        Give the place of *party* to who waits, keep it, or give it back; or end its wait. Never fails.

        The place's connection goes with it, so it must be one that a worker waits on, or None. *kill* has the worker
        killed that runs the statement. Nothing happens for a party that has not entered or has left.
        """
        closing = None
        with self.lock:
            if self._parties.get(party.query_id) is not party:
                return
            del self._parties[party.query_id]
            place, party.place = party.place, None
            if place is None:
                self._drop(party)
                return
            place.party = None
            if self._is_lost(place):
                closing, place.connection = place.connection, None
            elif place.connection is None or place.recalled or self.link.is_stopping:
                closing = self._give_back(place, kill=party.query_id if kill else None)
            elif (waiting := self._next(place.key)) is not None:
                self._pass(place, waiting)
            else:
                place.since = time.monotonic()
                place.changed = True
                self._kept.setdefault(place.key, []).append(place)
        _close(closing)

    def tell(self) -> None:
        """Tell the broker all that it does not know yet."""
        with self.lock:
            self._tell_all()

    def close(self) -> None:
        """End every statement and the link. More than one call is harmless."""
        self.link.shut()
        with self.lock:
            parties = list(self._parties.values())
            kept = [place for places in self._kept.values() for place in places]
            closing = [self._recalled(place) for place in kept]
        for party in parties:
            party.stop(stopping)
        self.link.close()
        _close(*closing)

    # What the link calls.

    def take(self, message: dict[str, Any]) -> None:
        """
        Take a message of the broker.

        Raises:
            FrameError: It says nothing that is known.
        """
        closing = party = None
        with self.lock:
            match message:
                case {"is": "admitted", "id": str(query_id), "key": str(key), "place": int(number)}:
                    self._gain(Place(number, key), query_id)
                case {"is": "recall", "place": int(number)}:
                    closing = self._recalled(self._places.get(number))
                case {"is": "busy", "id": str(query_id), "retry_after_s": int(retry_after_s)}:
                    self._refuse(query_id, EngineBusyError(retry_after_s))
                case {"is": "tell", "ask": int(number)}:
                    self._tell_all()
                    self.link.say({"do": "told", "ask": number})
                case {"is": "stopping" | "cancel", "id": str(query_id)}:
                    party = self._parties.get(query_id)
                case _:
                    raise FrameError("a message of the broker is unknown")
        _close(closing)
        if party is not None:
            party.stop(stopping if message["is"] == "stopping" else QueryCancelledError)

    def lost(self) -> None:
        """Forget every place: who waits does so in vain, and who has a place goes on."""
        with self.lock:
            kept = [place for places in self._kept.values() for place in places]
            self._kept.clear()
            self._places.clear()
            self._had.clear()
            self._moved_at.clear()
            self._asked_at.clear()
            self._refuse_all()
        _close(*(place.connection for place in kept))

    def tick(self, now: float) -> float:
        """Do what is due."""
        closing: list[socket.socket | None] = []
        with self.lock:
            if not self.link.is_heard:
                self._refuse_all()
            self._tell_what_is_due(now)
            idle = [place for kept in self._kept.values() for place in kept if now >= place.since + KEEP_S]
            closing += [self._recalled(place) for place in idle]
            parties = list(self._parties.values())
            wait_s = ASK_S if self._waiting else TELL_S if self._places else _LOOK_S
            self._looks_at = now + wait_s
        _close(*closing)
        for party in parties:
            try:
                party.look(now)
            except Exception:  # One must not cost the others their time.
                logger.exception("a statement's clock failed")
        return wait_s

    # Under the lock.

    def _gain(self, place: Place, query_id: str) -> None:
        """Take a place that the broker gives: for its statement, or the next one when that has a place or has left."""
        self._places[place.number] = place
        self._had[place.key] = self._had.get(place.key, 0) + 1
        if len(self._places) == 1:
            self._look_soon()
        waiting = self._taken_out(query_id, place.key)
        if waiting is not None:
            self._use(place, waiting.party)
            place.changed = False
            waiting.party.admitted()
        elif (waiting := self._next(place.key)) is not None:
            self._pass(place, waiting)
        else:
            self._give_back(place)

    def _look_soon(self) -> None:
        """Have `tick` called: its next call was not due soon."""
        self._looks_at = -math.inf
        self.link.wake()

    def _use(self, place: Place, party: Party) -> None:
        place.party, party.place = party, place
        place.since = time.monotonic()
        place.changed = True

    def _pass(self, place: Place, waiting: _Waiting) -> None:
        self._use(place, waiting.party)
        self._moved_at[place.key] = place.since
        if waiting.told:
            self._tell_use(place)  # which ends its wait at the broker
        waiting.party.admitted()

    def _recalled(self, place: Place | None) -> socket.socket | None:
        """Keep a place no longer than its statement runs; its connection is to be closed when there is none."""
        if place is None:  # given back meanwhile
            return None
        if place.party is not None:
            self._count_out(place)
            return None
        self._kept[place.key].remove(place)
        return self._give_back(place)

    def _give_back(self, place: Place, *, kill: str | None = None) -> socket.socket | None:
        self._count_out(place)
        del self._places[place.number]
        self.link.say({"do": "leave", "place": place.number, **({"kill": kill} if kill else {})})
        connection, place.connection = place.connection, None
        return connection

    def _count_out(self, place: Place) -> None:
        """Count *place* no longer among those that will serve another statement."""
        if place.recalled:
            return
        place.recalled = True
        self._had[place.key] -= 1
        if not self._had[place.key]:
            del self._had[place.key]
            self._moved_at.pop(place.key, None)
            self._asked_at.pop(place.key, None)
            for waiting in self._waiting.get(place.key, ()):
                self._hurry(waiting)

    def _is_lost(self, place: Place) -> bool:
        return self._places.get(place.number) is not place

    def _next(self, key: str) -> _Waiting | None:
        """Take out who has waited longest for a place of *key*."""
        queue = self._waiting.get(key)
        if not queue:
            return None
        waiting = queue.popleft()
        if not queue:
            del self._waiting[key]
        return waiting

    def _taken_out(self, query_id: str, key: str) -> _Waiting | None:
        queue = self._waiting.get(key, deque())
        found = next((waiting for waiting in queue if waiting.party.query_id == query_id), None)
        if found is not None:
            queue.remove(found)
            if not queue:
                del self._waiting[key]
        return found

    def _drop(self, party: Party) -> None:
        """End the wait of a party, if it waits."""
        waiting = self._taken_out(party.query_id, party.key)
        if waiting is not None and waiting.told:
            self.link.say({"do": "leave", "id": party.query_id})

    def _refuse(self, query_id: str, error: QueryError) -> None:
        party = self._parties.get(query_id)
        if party is not None and self._taken_out(query_id, party.key) is not None:
            party.refused(error)

    def _refuse_all(self) -> None:
        for queue in list(self._waiting.values()):
            for waiting in queue:
                waiting.party.refused(unreachable())
        self._waiting.clear()

    def _tell(self, waiting: _Waiting, *, patient: bool) -> bool:
        """Have the broker know of a statement that waits, unless it does; whether it can be told."""
        if waiting.told:
            return True
        waiting.told, waiting.is_patient = True, patient
        soon = {"soon": True} if patient else {}
        return self.link.say({"do": "enter", "key": waiting.party.key, **soon, **waiting.party.entry()})

    def _hurry(self, waiting: _Waiting) -> None:
        """Have the broker give a statement that waits a place as soon as there is one."""
        self._tell(waiting, patient=False)
        if waiting.is_patient:
            waiting.is_patient = False
            self.link.say({"do": "hurry", "id": waiting.party.query_id})

    def _ask(self, key: str, waiting: _Waiting, now: float) -> None:
        """Ask for another place: at once if those of the key stand still, else now and then, and with patience."""
        if now >= self._moved_at.get(key, -math.inf) + ASK_S:
            self._hurry(waiting)
        elif now >= self._asked_at.get(key, -math.inf) + TELL_S:
            self._asked_at[key] = now
            self._tell(waiting, patient=True)

    def _tell_all(self) -> None:
        for key, queue in self._waiting.items():
            for waiting in queue:
                self._tell(waiting, patient=key in self._had)
        for place in self._places.values():
            self._tell_use(place)

    def _tell_use(self, place: Place) -> None:
        if place.changed:
            place.changed = False
            place.told_at = time.monotonic()
            entry = {} if place.party is None else place.party.entry()
            self.link.say({"do": "runs", "place": place.number, **entry})

    def _tell_what_is_due(self, now: float) -> None:
        for key, queue in self._waiting.items():
            if now >= queue[0].since + ASK_S:
                self._ask(key, queue[0], now)
            for waiting in queue:
                if now >= waiting.since + TELL_S:
                    self._tell(waiting, patient=True)
        for place in self._places.values():
            if place.party is None or now >= place.told_at + TELL_S:
                self._tell_use(place)


def _close(*connections: socket.socket | None) -> None:
    for connection in connections:
        if connection is not None:
            connection.close()

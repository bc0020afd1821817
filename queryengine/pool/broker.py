"""
The broker: gives the places of the engine's workers to the statements of all client processes.

It lives in the engine's arbiter, has no thread, and never blocks but in `Broker.poll`. Each client process holds one
connection to `broker.sock` and speaks MESSAGE frames of `queryengine.pool.frames`; what they say is below.

A place belongs to a key and a client process, which may run one short statement of that key after the other in it and
say so now and then: then a statement costs no message at all. The broker takes a place back when somebody else should
have it: another key at once, another process of the same key after `QUANTUM_S`, so that each has its share. One that
does not come back soon is used for a long statement: then it asks for another as well.

More places than processors are good for statements of which some take long, and only cost where all are short. So a
process whose places move on asks for another with patience: it is given while there are fewer than processors, and
then taken only from who has more or uses it for nothing. And where more than these move on, one is called back.

From a client: `{"do":"enter","id","key","sql","started"}` asks for a place for a statement, `"soon":true` says with
patience, `{"do":"hurry","id"}` ends the patience and `{"do":"leave","id"}` the wait;
`{"do":"runs","place","id","sql","started"}` says what a place is used for now (no id: for nothing),
`{"do":"leave","place"}` gives it back (`"kill"` names a statement whose worker is killed first);
`{"do":"active","ask","key"}` lists the statements of a key, `{"do":"cancel","ask","key","id"}` stops one; a statement
with `"inner":true` is the runtime's own, and no caller's to see or stop. `{"do":"told","ask"}` says that all is told.

To a client: `{"is":"admitted","id","key","place"}`, `{"is":"busy"|"stopping","id"}` about its statements,
`{"is":"recall","place"}` when a place is to be given back after the statement that it is used for,
`{"is":"cancel","id"}` when somebody stops a statement, `{"is":"tell","ask"}` when another client asks about the
statements of all and this one is to tell what its places are used for now, `{"is":"active"|"cancelled","ask"}` as
answers, and `{"is":"status","alive","killed","stopping"}` every second and on any change.
"""

from __future__ import annotations

import itertools
import logging
import os
import selectors
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from queryengine.errors import EngineBusyError
from queryengine.pool.broker_records import Client, Place, Question, Statement, number, text
from queryengine.pool.fair_queue import Standing, Turns
from queryengine.pool.frames import FrameError, Kind, decode_json, encode_json
from runtimeconf.model import QueryConfig
from system.state_socket import StateSocket

logger = logging.getLogger(__name__)

#: The socket's name in the state directory.
BROKER_SOCKET = "broker.sock"
#: Seconds between two pushes of an unchanged status; a bit less than the second that clients count on.
STATUS_INTERVAL_S = 0.9
#: A client that has not read this much is dropped: more than any list of statements that one can ask for.
MAX_UNREAD_BYTES = 16 * 1024 * 1024
#: So long a client process keeps a place that another one wants for the same key.
QUANTUM_S = 0.02
#: A statement that has waited so long may have a place of its key from any process, whatever share its own has.
SHARE_S = 0.2
#: Who asks about the statements of all waits so long for a process that does not tell of its own.
TOLD_S = 0.5
#: In so many looks in a row no worker ran a statement while another worker was free to: then it has ended.
UNSEEN_LOOKS = 3

_RECEIVE_BYTES = 64 * 1024
_BACKLOG = 128
#: How long the broker waits that cannot accept a client, for want of descriptors for example.
_REFUSED_ACCEPT_S = 0.1


class Broker:
    """
    Places, queue and connections. For one thread; `poll` is its only wait.

    Args:
        path: Of the socket; a file that a dead predecessor left there is removed.
        limits: Workers, queue length and queue time-out.
        processors: How many there are.
        several_keys: Whether there is more than one key to be fair to.
        kill: Ends the worker that runs the statement of this id, if one does.
    """

    def __init__(
        self,
        path: Path,
        limits: QueryConfig,
        *,
        several_keys: bool,
        kill: Callable[[str], None],
        processors: int | None = None,
    ) -> None:
        """
        Listen at *path*.

        Raises:
            OSError: The socket cannot be made.
        """
        self.draining = False
        self.told_s = TOLD_S
        self._kill = kill
        self._processors = len(os.sched_getaffinity(0)) if processors is None else processors
        self._turns = Turns(
            workers=limits.workers,
            max_queued=limits.max_queued,
            several_keys=several_keys,
            plenty=min(self._processors, limits.workers),
        )
        self._queue_timeout_s = limits.queue_timeout_s
        self._questions: dict[int, Question] = {}  # by their serial
        self._queued: OrderedDict[Statement, None] = OrderedDict()  # oldest first
        self._clients: set[Client] = set()
        self._unsent: set[Client] = set()
        self._places: dict[int, Place] = {}  # in the order in which they were given
        self._serials = itertools.count()
        self._status = (0, 0, False)
        self._status_sent = -STATUS_INTERVAL_S
        self._selector = selectors.DefaultSelector()
        self._socket = StateSocket(path, _BACKLOG)
        self._listener = self._socket.listener
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    @property
    def is_reachable(self) -> bool:
        """Whether its socket is still where clients look for it."""
        return self._socket.is_there

    @property
    def is_idle(self) -> bool:
        """Whether no statement runs or waits."""
        return not self._turns.running and not self._turns.waiting

    def watch(self, descriptor: int) -> None:
        """Let `poll` return when *descriptor*, which is non-blocking, has something to read; that is thrown away."""

        def empty(_: int) -> None:
            os.read(descriptor, _RECEIVE_BYTES)

        self._selector.register(descriptor, selectors.EVENT_READ, empty)

    def poll(self, timeout_s: float) -> None:
        """Wait for something to do, *timeout_s* seconds at most, and do it. No fault of a client is raised."""
        if self._queued:
            timeout_s = min(timeout_s, QUANTUM_S, next(iter(self._queued)).waits_until - time.monotonic())
        if self._questions:
            timeout_s = min(
                timeout_s, min(question.late_at for question in self._questions.values()) - time.monotonic()
            )
        for key, events in self._selector.select(max(0.0, timeout_s)):
            key.data(events)
        self._answer()
        self._expire()
        if self._queued:
            self._recall_what_others_want()
        self._flush()

    def report(self, *, alive: int, killed: int) -> None:
        """Tell the clients how many workers are alive and were killed, if that is new or a second has passed."""
        status = (alive, killed, self.draining)
        now = time.monotonic()
        if status == self._status and now - self._status_sent < STATUS_INTERVAL_S:
            return
        self._status, self._status_sent = status, now
        for client in self._clients:
            self._say_status(client)
        self._flush()

    def look(self, running: Collection[str], *, any_idle: bool) -> None:
        """
        Free the places of statements that have ended though their client keeps them, as one that reads slowly does.

        Args:
            running: The ids that workers run now, cut as `worker_state` cuts them.
            any_idle: A worker waits for a statement, so none is on its way to one. To be called about once a second.
        """
        if not any_idle:
            return
        for place in list(self._places.values()):
            if place.statement is not None and place.statement.id[:32] in running:
                place.unseen = 0
                continue
            place.unseen += 1
            if place.unseen >= UNSEEN_LOOKS:
                self._recall(place)  # A client that goes on later must not use it for another.
                self._take_back(place)
        self._flush()

    def drain(self) -> None:
        """Refuse statements from now on. What runs or waits goes on."""
        self.draining = True
        for place in self._places.values():
            self._recall(place)
        self.report(alive=self._status[0], killed=self._status[1])

    def end_statements(self) -> None:
        """Have every client end what it runs or waits for."""
        for statement in self._statements():
            self._say(statement.client, {"is": "stopping", "id": statement.id})
        self._flush()

    def close(self) -> None:
        """Close every connection and remove the socket."""
        self._socket.close()
        self.close_inherited()

    def close_inherited(self) -> None:
        """Close what a forked process has of this, with no effect on the one that goes on."""
        # Nothing is unregistered: the kernel's set of watched descriptors is the same in both processes.
        self._selector.close()
        self._listener.close()
        for client in self._clients:
            client.socket.close()
        self._clients.clear()

    # Connections.

    def _accept(self, _: int) -> None:
        try:
            connection, _address = self._listener.accept()
        except OSError as error:
            logger.warning("a client of the broker could not connect", extra={"fields": {"error": error.strerror}})
            # It goes on waiting, and so would this: better a moment without service than a loop without rest.
            time.sleep(_REFUSED_ACCEPT_S)
            return
        connection.setblocking(False)
        client = Client(connection)
        self._clients.add(client)
        self._selector.register(connection, selectors.EVENT_READ, partial(self._serve, client))
        self._say_status(client)

    def _serve(self, client: Client, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._unsent.add(client)
            if events & selectors.EVENT_READ:
                self._receive(client)
        except FrameError as error:
            logger.warning("a client of the broker was dropped", extra={"fields": {"reason": str(error)}})
            self._drop(client)
        except Exception:
            # One client must not end the service of the others.
            logger.exception("a client of the broker was dropped")
            self._drop(client)

    def _receive(self, client: Client) -> None:
        try:
            data = client.socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(client)
            return
        for kind, payload in client.decoder.feed(data):
            if kind is not Kind.MESSAGE:
                raise FrameError(f"a frame is of kind {kind.name}")
            self._obey(client, decode_json(payload))

    def _drop(self, client: Client) -> None:
        """Close the connection and free what its process had."""
        if client not in self._clients:
            return
        self._clients.discard(client)
        self._unsent.discard(client)
        self._selector.unregister(client.socket)
        client.socket.close()
        for statement in list(client.waiting.values()):
            self._forget(statement)
        for place in list(client.places.values()):
            self._take_back(place)

    def _say(self, client: Client, fields: dict[str, Any]) -> None:
        client.out += encode_json(Kind.MESSAGE, fields)
        self._unsent.add(client)

    def _say_status(self, client: Client) -> None:
        alive, killed, stopping = self._status
        self._say(client, {"is": "status", "alive": alive, "killed": killed, "stopping": stopping})

    def _flush(self) -> None:
        """Send what is to be sent, as far as the clients take it."""
        while self._unsent:
            client = self._unsent.pop()
            try:
                del client.out[: client.socket.send(client.out)]
            except BlockingIOError:
                pass
            except OSError:
                self._drop(client)  # which may admit statements of others
                continue
            if len(client.out) > MAX_UNREAD_BYTES:
                logger.warning("a client of the broker was dropped", extra={"fields": {"reason": "it does not read"}})
                self._drop(client)
                continue
            if bool(client.out) != client.writes:
                client.writes = bool(client.out)
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.writes else 0)
                self._selector.modify(client.socket, events, partial(self._serve, client))

    # What clients ask for.

    def _obey(self, client: Client, fields: dict[str, Any]) -> None:
        match fields.get("do"):
            case "enter":
                statement = Statement(client, fields, text(fields, "key"), next(self._serials))
                self._enter(statement, patient=fields.get("soon") is True)
            case "runs":
                self._note(client, fields)
            case "leave" if "place" in fields:
                self._give_back(client, number(fields, "place"), fields.get("kill"))
            case "hurry" | "leave" as what:
                waiting = client.waiting.get(text(fields, "id"))
                if waiting is None:  # it was admitted, refused or turned away meanwhile
                    return
                if what == "hurry":
                    self._turns.hurry(waiting.ticket)
                else:
                    self._forget(waiting)
            case "active" | "cancel":
                self._ask(client, fields)
            case "told":
                self._told(client, number(fields, "ask"))
            case other:
                raise FrameError(f"a message asks for {other!r:.40}")

    def _ask(self, client: Client, fields: dict[str, Any]) -> None:
        """Answer *client* once the others have told what they use their places for, as they seldom do."""
        key, ask = text(fields, "key"), fields.get("ask")
        if fields["do"] == "cancel":
            query_id = text(fields, "id")
            question = Question(client, lambda: {"is": "cancelled", "ask": ask, "found": self._cancel(key, query_id)})
        else:
            question = Question(client, lambda: {"is": "active", "ask": ask, "statements": self._active(key)})
        question.untold = {place.client for place in self._places.values()} - {client}
        if not question.untold:
            self._say(client, question.answer())
            return
        serial = next(self._serials)
        question.late_at = time.monotonic() + self.told_s
        self._questions[serial] = question
        for other in question.untold:
            self._say(other, {"is": "tell", "ask": serial})

    def _told(self, client: Client, serial: int) -> None:
        question = self._questions.get(serial)
        if question is not None:
            question.untold.discard(client)

    def _answer(self) -> None:
        """Answer the questions about which everybody has told, or had the time to."""
        now = time.monotonic()
        for serial, question in list(self._questions.items()):
            if question.untold & self._clients and now < question.late_at:
                continue
            del self._questions[serial]
            if question.client not in self._clients:
                continue
            try:
                self._say(question.client, question.answer())
            except Exception:
                logger.exception("a client of the broker was dropped")
                self._drop(question.client)

    def _enter(self, statement: Statement, *, patient: bool) -> None:
        client = statement.client
        if statement.id in client.waiting:
            raise FrameError("a statement entered twice")
        if self.draining:
            self._say(client, {"is": "stopping", "id": statement.id})
            return
        try:
            statement.ticket = self._turns.ask(statement.key, partial(self._decided, statement), patient=patient)
        except EngineBusyError as error:
            self._refuse(statement, error)
            return
        if statement.ticket.standing is Standing.ADMITTED:
            self._give(statement)
        else:
            statement.waits_until = time.monotonic() + self._queue_timeout_s
            client.waiting[statement.id] = statement
            self._queued[statement] = None

    def _note(self, client: Client, fields: dict[str, Any]) -> None:
        """Take note of what a client uses its place for."""
        place = client.places.get(number(fields, "place"))
        if place is None:  # it was taken back meanwhile
            return
        place.unseen = 0
        place.statement = None
        if "id" not in fields:
            return
        statement = Statement(client, fields, place.ticket.key, next(self._serials))
        waited = client.waiting.get(statement.id)
        if waited is not None:
            self._forget(waited)
        for other in client.places.values():  # given to it just before it had this one
            if other.statement is not None and other.statement.id == statement.id:
                other.statement = None
        place.statement = statement
        place.moved_at = time.monotonic()
        self._recall_if_too_many_move(place)

    def _give_back(self, client: Client, number: int, kill: object) -> None:
        place = client.places.get(number)
        if place is None:  # it was taken back meanwhile
            return
        if isinstance(kill, str):
            self._kill(kill)
        self._take_back(place)

    def _active(self, key: str) -> list[dict[str, str]]:
        return [
            {
                "id": statement.id,
                "started": statement.started,
                "state": "queued" if statement in self._queued else "running",
                "sql": statement.sql,
            }
            for statement in sorted(self._statements_of(key), key=lambda one: (one.started, one.serial))
        ]

    def _cancel(self, key: str, query_id: str) -> bool:
        found = [statement for statement in self._statements_of(key) if statement.id == query_id]
        for statement in found:
            self._say(statement.client, {"is": "cancel", "id": query_id})
        return bool(found)

    def _statements(self) -> Iterator[Statement]:
        yield from self._queued
        yield from (place.statement for place in self._places.values() if place.statement is not None)

    def _statements_of(self, key: str) -> list[Statement]:
        return [statement for statement in self._statements() if statement.key == key and not statement.is_inner]

    # Places and the queue.

    def _decided(self, statement: Statement) -> None:
        """Tell a statement that waited what became of it. `Turns` calls this."""
        del self._queued[statement]
        del statement.client.waiting[statement.id]
        if statement.ticket.standing is Standing.ADMITTED:
            self._give(statement)
        else:
            self._refuse(statement, EngineBusyError())

    def _give(self, statement: Statement) -> None:
        place = Place(next(self._serials), statement)
        self._places[place.number] = statement.client.places[place.number] = place
        fields = {"is": "admitted", "id": statement.id, "key": statement.key, "place": place.number}
        self._say(statement.client, fields)

    def _take_back(self, place: Place) -> None:
        """Free a place: who is next gets it."""
        del self._places[place.number]
        del place.client.places[place.number]
        self._turns.leave(place.ticket)

    def _recall(self, place: Place) -> None:
        """Ask a client for its place."""
        if not place.is_recalled:
            place.recalled_at = time.monotonic()
            self._say(place.client, {"is": "recall", "place": place.number})

    def _recall_what_others_want(self) -> None:
        """Ask for as many places as there are waiting keys and processes that should have one of somebody else."""
        now = time.monotonic()
        asked = sum(place.is_awaited(now) for place in self._places.values())
        seen = set()
        for statement in self._queued:
            want = (statement.client, statement.key)
            if want in seen or not self._turns.waits_for_one(statement.ticket):
                continue
            seen.add(want)
            wanted = [place for place in self._places.values() if self._should_have(statement, place, now)]
            if asked and wanted:
                asked -= 1  # One is on its way to whoever is next.
            elif wanted := [place for place in wanted if not place.is_recalled]:
                self._recall(min(wanted, key=lambda place: place.statement is not None))

    def _recall_if_too_many_move(self, place: Place) -> None:
        """Ask for a place that moves on if there are more of that kind than processors, and its client has another."""
        now = time.monotonic()
        moving = [one for one in self._places.values() if one.moves(now)]
        of_client = [one for one in moving if one.client is place.client and one.ticket.key == place.ticket.key]
        if len(moving) > self._processors and len(of_client) > 1:
            self._recall(place)

    def _should_have(self, statement: Statement, place: Place, now: float) -> bool:
        """Whether a statement that waits should have a place of somebody else who keeps it."""
        if place.ticket.key != statement.key:
            return self._turns.may_run(statement.key) and (
                not statement.ticket.patient
                or place.statement is None
                or self._places_of(place.ticket.key) > self._places_of(statement.key) + 1
            )
        if place.client is statement.client:
            return False  # It serves its own.
        if place.statement is None:
            return True
        if now < place.since + QUANTUM_S:
            return False
        its, theirs = (client.places_of(statement.key) for client in (statement.client, place.client))
        # A share may be all long statements, which help nobody who waits: after a while it does not count.
        in_vain = not statement.ticket.patient and now >= statement.since + SHARE_S
        return its == 0 or theirs > its + 1 or in_vain

    def _places_of(self, key: str) -> int:
        """How many places of this key are not called back."""
        return sum(place.ticket.key == key and not place.is_recalled for place in self._places.values())

    def _refuse(self, statement: Statement, error: EngineBusyError) -> None:
        fields = {"is": "busy", "id": statement.id, "retry_after_s": error.retry_after_s}
        self._say(statement.client, fields)

    def _forget(self, statement: Statement) -> None:
        """End the wait of a statement."""
        del statement.client.waiting[statement.id]
        del self._queued[statement]
        self._turns.leave(statement.ticket)

    def _expire(self) -> None:
        """Turn away who has waited too long."""
        now = time.monotonic()
        while self._queued and (statement := next(iter(self._queued))).waits_until <= now:
            self._refuse(statement, EngineBusyError())
            self._forget(statement)

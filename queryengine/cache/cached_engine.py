"""
An engine that gives an answer again, as long as the data is the one it was computed from.

It stands before another engine, in the process that answers callers, so that a remembered answer costs neither a place
nor a worker. What makes it right is in `docs/decisions/0017-results-cache.md`; in short: an answer is remembered under
the manifest that the engine names as all that decides it, and only while that is the published one, which each
statement looks at first. Statements that are the same and come while one of them runs wait for its answer.

It is right under threads and under gevent: whatever waits is looked up in `threading` when it is used.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from queryengine.cache.results import Kept, Key, Remembered, ResultsCache, chunk_bytes, key_bytes
from queryengine.cancellation import CancelSource
from queryengine.engine import (
    ActiveQuery,
    Admitted,
    Answer,
    ArrowParameters,
    CacheState,
    CancelToken,
    Description,
    EngineStatus,
    GatedStatement,
    Query,
    QueryEngine,
    QueryResult,
    QueryTimings,
)
from queryengine.errors import QueryCancelledError, QueryTimeoutError
from queryengine.gate.normal_form import normal_form
from queryengine.manifest import Pin, Signature, manifest_path, signature
from runtimeconf.model import RuntimeConfig

#: An answer up to this size is read whole before the first of it is given. Whoever waits for the answer of another
#: waits so long at most: never for a client that reads slowly.
READ_AHEAD_BYTES: Final = 64 * 1024

#: So many statements are known for which it is in vain to wait for one another: their answers are long, or unsteady.
_MOST_LONERS: Final = 1024

_to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


@dataclass(eq=False, slots=True)
class _Basis:
    """What all remembered answers are right for; `groups` are the statements that others wait for."""

    era: object
    pin: Pin
    groups: dict[Key, _Group] = field(default_factory=dict)


class _Group:
    """
    Statements that are the same: the first of them that gets its place leads, and the others wait for its answer.

    Until then one of each key stands in the queue, so that none waits for the turn of another key.
    """

    __slots__ = ("answer", "basis", "has_ended", "key", "leader", "queued", "waiting")

    def __init__(self, basis: _Basis, key: Key) -> None:
        self.basis = basis
        self.key = key
        self.answer: Remembered | None = None
        self.has_ended = False
        self.leader: CancelSource | None = None
        self.queued: dict[str, CancelSource] = {}  # by the fingerprint of the key: what ends the wait for a place
        self.waiting: list[Callable[[], None]] = []


def remembering(engine: QueryEngine, config: RuntimeConfig) -> QueryEngine:
    """Return *engine* with a memory for answers, if *config* asks for one."""
    return CachedEngine(engine, config) if config.results_cache.enabled else engine


class CachedEngine:
    """A `QueryEngine` over *engine*, which it closes. It is made after any fork."""

    def __init__(self, engine: QueryEngine, config: RuntimeConfig) -> None:
        self._engine = engine
        self._limit_s = config.query.timeout_s
        self._manifest = str(manifest_path(config.state_dir))
        self._lock = threading.Lock()  # of all that follows; nothing under it blocks
        self._cache = ResultsCache(config.results_cache.max_bytes)
        self._basis: _Basis | None = None
        self._loners: dict[int, None] = {}  # by hash: at worst one does not wait for another that could

    def run(self, query: Query, cancel: CancelToken | None = None, admitted: Admitted | None = None) -> QueryResult:
        """As `QueryEngine.run`: give the answer that is remembered, or run the statement and remember its answer."""
        key = None if query.cache == "none" else _key(query)
        basis = None if key is None else self._published()
        if key is None or basis is None:
            return self._run(query, cancel, "bypass" if query.cache == "none" else "miss")
        if query.cache == "renew":
            return self._read_ahead(self._run(query, cancel, "bypass"), basis, key)[0]
        with self._lock:
            remembered = self._remembered(query, key) if basis is self._basis else None
            group = basis.groups.get(key)
            if remembered is None and group is None and hash(key) not in self._loners:
                group = basis.groups[key] = _Group(basis, key)
        if remembered is not None:
            return remembered
        if group is None:
            return self._read_ahead(self._run(query, cancel, "miss"), basis, key)[0]
        return self._share(group, query, cancel)

    def describe(self, query: Query, cancel: CancelToken | None = None, *, ahead_s: float = 0.0) -> Description:
        """As `QueryEngine.describe`."""
        return self._engine.describe(query, cancel, ahead_s=ahead_s)

    def admit(self, sql: str, relations: frozenset[str]) -> GatedStatement:
        """As `QueryEngine.admit`."""
        return self._engine.admit(sql, relations)

    def active(self, fingerprint: str) -> tuple[ActiveQuery, ...]:
        """As `QueryEngine.active`, without those that wait for the answer of another: they use nothing."""
        return self._engine.active(fingerprint)

    def cancel(self, query_id: str, fingerprint: str) -> bool:
        """As `QueryEngine.cancel`."""
        return self._engine.cancel(query_id, fingerprint)

    @property
    def era(self) -> object | None:
        """As `QueryEngine.era`."""
        return self._engine.era

    def status(self) -> EngineStatus | None:
        """As `QueryEngine.status`."""
        return self._engine.status()

    def is_alive(self) -> bool:
        """As `QueryEngine.is_alive`."""
        return self._engine.is_alive()

    def close(self) -> None:
        """Close the engine, and forget every answer."""
        self._engine.close()
        with self._lock:
            self._cache.clear()
            if self._basis is not None:
                self._basis.pin.close()
                self._basis = None

    # The basis.

    def _published(self) -> _Basis | None:
        """Return what answers must be right for now, having forgotten those for anything else; None: nothing is."""
        era, basis = self._engine.era, self._basis
        if basis is not None and basis.era is era and basis.pin.signature == signature(self._manifest):
            return basis
        with self._lock:
            if self._basis is not None:
                self._cache.clear()
                self._basis.pin.close()
                self._basis = None
            if era is None:
                return None
            pin = Pin(self._manifest)
            if pin.is_held:
                self._basis = _Basis(era, pin)
            return self._basis

    # The way of a statement.

    def _limit_of(self, query: Query) -> float:
        return self._limit_s if query.timeout_s is None else query.timeout_s

    def _remembered(self, query: Query, key: Key) -> QueryResult | None:
        """Return the answer that is remembered. Under the lock."""
        kept = self._cache.get(key)
        if kept is None:
            return None
        if kept.answer.bytes < READ_AHEAD_BYTES:
            return _again(kept.answer)
        self._cache.lend(kept)
        return _Lent(self, kept, self._limit_of(query), self._limit_s)

    def _run(
        self, query: Query, cancel: CancelToken | None, state: CacheState, admitted: Admitted | None = None
    ) -> QueryResult:
        result = self._engine.run(query, cancel, admitted)
        result.timings.cache = state
        return result

    def _share(self, group: _Group, query: Query, cancel: CancelToken | None) -> QueryResult:
        """
        Lead *group*, or wait for its answer, and run the statement alone if there is none.

        Raises:
            QueryTimeoutError: The statement's own time is up.
            QueryCancelledError: It was cancelled.
            QueryError: As `run`.
        """
        began = time.monotonic()
        limit_s = self._limit_of(query)
        while True:
            woken = threading.Event()
            turn = None
            with self._lock:
                if group.has_ended:
                    break
                if group.leader is None and query.fingerprint not in group.queued:
                    turn = group.queued[query.fingerprint] = CancelSource()
                else:
                    group.waiting.append(woken.set)
            left = replace(query, timeout_s=max(0.0, limit_s - (time.monotonic() - began)))
            if turn is None:
                self._wait(woken, left, cancel)
            elif (result := self._queue(group, turn, left, cancel)) is not None:
                return result
        waited_s = time.monotonic() - began
        if group.answer is not None:
            return _again(group.answer, queued_ms=waited_s * 1000)
        left = replace(query, timeout_s=max(0.0, limit_s - waited_s))
        return self._read_ahead(self._run(left, cancel, "miss"), group.basis, group.key)[0]

    def _wait(self, woken: threading.Event, query: Query, cancel: CancelToken | None) -> None:
        """Wait until *woken*; raises QueryTimeoutError or QueryCancelledError if the statement is to end before."""
        stopped = threading.Event()

        def stop() -> None:
            stopped.set()
            woken.set()

        unsubscribe = None if cancel is None else cancel.subscribe(stop)
        try:
            in_time = woken.wait(query.timeout_s)
        finally:
            if unsubscribe is not None:
                unsubscribe()
        if stopped.is_set():
            raise QueryCancelledError
        if not in_time:
            raise QueryTimeoutError(self._limit_s)

    def _queue(self, group: _Group, turn: CancelSource, query: Query, cancel: CancelToken | None) -> QueryResult | None:
        """Wait for a place and lead *group*, and let the others go on however that ends; None when another leads."""

        def lead() -> None:
            with self._lock:
                if group.leader is None:
                    group.leader = turn
                others = [one for one in group.queued.values() if one is not group.leader]
            for other in others:
                other.cancel()

        answer = None
        if cancel is not None:
            cancel.subscribe(turn.cancel)
        try:
            result, answer = self._read_ahead(self._run(query, turn, "miss", lead), group.basis, group.key)
        except QueryCancelledError:
            if group.leader in {None, turn}:
                raise
            return None
        finally:
            with self._lock:
                group.queued.pop(query.fingerprint, None)
                if group.leader is turn or (group.leader is None and not group.queued):
                    group.answer, group.has_ended = answer, True
                    del group.basis.groups[group.key]
                waiting, group.waiting = group.waiting, []
            for wake in waiting:
                wake()
        return result

    def _read_ahead(self, result: QueryResult, basis: _Basis, key: Key) -> tuple[QueryResult, Remembered | None]:
        """
        Read *result* until it is complete or long, if *basis* decides it.

        Returns:
            What is to be given to the caller, and the answer for those that wait, if it is short and decided so.

        Raises:
            QueryError: The statement failed before.
        """
        if result.basis != basis.pin.signature:
            if result.basis is None:
                self._is_lonely(key)
            return result, None
        ahead: list[bytes] = []
        size = 0
        try:
            for chunk in result:
                ahead.append(chunk)
                size += len(chunk)
                if size >= READ_AHEAD_BYTES:
                    self._is_lonely(key)
                    return _Collected(self, result, ahead, basis, key), None
        except BaseException:
            result.close()
            raise
        result.close()
        answer = Remembered((b"".join(ahead),), result.timings.rows, result.timings.bytes)
        room = Room()
        if self.grow(room, key_bytes(key) + chunk_bytes(answer.chunks[0])):
            self.settle(room, answer, basis, key)
        return Answer(chunks=answer.chunks, timings=result.timings), answer

    def _is_lonely(self, key: Key) -> None:
        """Take note that nobody should wait for the answer of such a statement."""
        with self._lock:
            if len(self._loners) >= _MOST_LONERS:
                del self._loners[next(iter(self._loners))]
            self._loners[hash(key)] = None

    # What is collected.

    def grow(self, room: Room, more_bytes: int) -> bool:
        """Take *more_bytes* for the answer of *room*; False when it has lost all."""
        with self._lock:
            if room.is_open:
                if room.bytes + more_bytes <= self._cache.largest_bytes and self._cache.take_room(more_bytes):
                    room.bytes += more_bytes
                else:
                    self._close_room(room)
            return room.is_open

    def settle(self, room: Room, answer: Remembered | None, basis: _Basis, key: Key) -> None:
        """Keep *answer* in its room if it is still right, or give the room back. More than one call is harmless."""
        with self._lock:
            if room.is_open and answer is not None and basis is self._basis:
                room.is_open = False
                self._cache.keep(key, answer, room.bytes)
            else:
                self._close_room(room)

    def give_back(self, lent: _Lent) -> None:
        """Take back what is *lent*. More than one call is harmless."""
        with self._lock:
            kept, lent.kept = lent.kept, None
            if kept is not None:
                self._cache.give_back(kept)

    def _close_room(self, room: Room) -> None:
        if room.is_open:
            room.is_open = False
            self._cache.give_room_back(room.bytes)


class Room:
    """What was taken of the cache's room for one answer to come."""

    __slots__ = ("bytes", "is_open")

    def __init__(self) -> None:
        self.bytes = 0
        self.is_open = True


class _Collected:
    """A long answer on its way: a `QueryResult` that collects what it gives as long as there is room."""

    def __init__(self, engine: CachedEngine, result: QueryResult, ahead: list[bytes], basis: _Basis, key: Key) -> None:
        self.basis = result.basis
        self.timings = result.timings
        self._engine = engine
        self._result = result
        self._rest = iter(result)
        self._ahead = deque(ahead)
        self._basis, self._key = basis, key
        self._room = Room()
        self._collected: list[bytes] = []
        self._collect(ahead, key_bytes(key))

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """Give the next chunk."""
        if self._ahead:
            return self._ahead.popleft()
        try:
            chunk = next(self._rest)
        except StopIteration:
            answer = Remembered(tuple(self._collected), self.timings.rows, self.timings.bytes)
            self._engine.settle(self._room, answer, self._basis, self._key)
            raise
        self._collect([chunk])
        return chunk

    def cancel(self) -> None:
        """Stop the statement from any thread; the iterator raises `QueryCancelledError`."""
        self._result.cancel()

    def close(self) -> None:
        """Stop the statement if it still runs and give back what it has. More than one call is harmless."""
        self._engine.settle(self._room, None, self._basis, self._key)
        self._collected = []
        self._result.close()

    def _collect(self, chunks: list[bytes], more_bytes: int = 0) -> None:
        if not self._room.is_open:
            return
        if self._engine.grow(self._room, more_bytes + sum(map(chunk_bytes, chunks))):
            self._collected += chunks
        else:
            self._collected = []


class _Lent:
    """
    A long answer that is given again: a `QueryResult` with the time limit of one that is computed.

    Until it is closed, what it takes counts as used, even if it is forgotten meanwhile.
    """

    def __init__(self, engine: CachedEngine, kept: Kept, limit_s: float, shown_limit_s: float) -> None:
        """Begin with a time limit of *limit_s* seconds; errors name *shown_limit_s*."""
        self.basis: Signature = None
        self.timings = _timings(kept.answer)
        self.kept: Kept | None = kept
        self._engine = engine
        self._chunks = iter(kept.answer.chunks)
        self._deadline = time.monotonic() + limit_s
        self._shown_limit_s = shown_limit_s

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """Give the next chunk."""
        if self.kept is None:
            raise QueryCancelledError
        if time.monotonic() >= self._deadline:
            raise QueryTimeoutError(self._shown_limit_s)
        return next(self._chunks)

    def cancel(self) -> None:
        """Give nothing more; the iterator raises `QueryCancelledError`."""
        self.close()

    def close(self) -> None:
        """Give the answer back. More than one call is harmless."""
        self._chunks = iter(())
        self._engine.give_back(self)


def _again(answer: Remembered, queued_ms: float = 0.0) -> Answer:
    return Answer(chunks=answer.chunks, timings=_timings(answer, queued_ms))


def _timings(answer: Remembered, queued_ms: float = 0.0) -> QueryTimings:
    return QueryTimings(rows=answer.rows, bytes=answer.bytes, queued_ms=queued_ms, cache="hit")


def _key(query: Query) -> Key | None:
    """Return the key of *query*; None when it has none: its parameters are no JSON, and 1, 1.0 and true must differ."""
    parameters = query.parameters
    if parameters is None:
        return query.encoding, normal_form(query.sql), None
    if isinstance(parameters, ArrowParameters):
        return None
    try:
        return query.encoding, normal_form(query.sql), _to_json(parameters)
    except (TypeError, ValueError, RecursionError):
        return None

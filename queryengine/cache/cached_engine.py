"""
An engine with a results cache. A cached result is valid as long as the data that it was computed from is published.

The cached engine wraps another engine in the process that serves clients, so a cached result needs no execution slot
and no worker. `docs/internals/decisions/0017-results-cache.md` explains why this is correct. In short, the engine
reports the manifest that alone determines a result. The result is used only while this manifest is the published one,
which each statement checks first. Identical statements that arrive while one of them is running wait for its result.

The cache works with threads and with gevent, because its locks and events come from `threading` at the time of use.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from queryengine.bounded_dict import BoundedDict
from queryengine.cache.results import Kept, Key, Remembered, ResultsCache, chunk_bytes, key_bytes
from queryengine.cancellation import CancelSource
from queryengine.engine import Admitted, Answer, CacheState, CancelToken, Query, QueryEngine, QueryResult, QueryTimings
from queryengine.errors import QueryCancelledError, QueryError, QueryTimeoutError
from queryengine.gate.fingerprint import normal_form
from queryengine.manifest import Pin, Signature, manifest_path, signature
from runtimeconf.model import RuntimeConfig

#: A result below this size is read to its end before its first chunk is returned. A statement waits for another
#: statement's result only until that point, so it never waits for a client that reads slowly.
READ_AHEAD_BYTES: Final = 64 * 1024

#: The number of statements remembered as uncoalesced, because their results are large or not cacheable.
_MAX_UNCOALESCED: Final = 1024

_to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class _DataVersion(Struct, eq=False):
    """The data for which all cached results are valid. `groups` are the statements that others wait for."""

    instance_id: object
    pin: Pin
    groups: "dict[Key, _Group]" = field(default_factory=dict)


class _Group(Struct, eq=False):
    """
    Identical statements. The first one that gets an execution slot leads, and the others wait for its result.

    Until then, one statement per API key is in the queue, so that no statement waits for another key's turn.
    """

    data_version: _DataVersion
    key: Key
    answer: Remembered | None = None
    has_ended: bool = False
    leader: CancelSource | None = None
    queued: dict[str, CancelSource] = field(default_factory=dict)  # ends the wait for a slot, by the key's fingerprint
    waiting: list[Callable[[], None]] = field(default_factory=list)


def remembering(engine: QueryEngine, config: RuntimeConfig) -> QueryEngine:
    """Return *engine*, wrapped with a results cache if *config* enables it."""
    return CachedEngine(engine, config) if config.results_cache.enabled else engine


class CachedEngine:
    """
    A `QueryEngine` that wraps *engine* and closes it. Create it only after any fork.

    A statement that waits for another statement's result does not count as active, because it uses no resources.
    """

    def __init__(self, engine: QueryEngine, config: RuntimeConfig) -> None:
        self._engine = engine
        self.describe, self.admit, self.active = engine.describe, engine.admit, engine.active
        self.cancel, self.status, self.is_alive = engine.cancel, engine.status, engine.is_alive
        self.count_request = engine.count_request
        self._limits = config.query
        self._manifest = str(manifest_path(config.state_dir))
        self._lock = threading.Lock()  # guards the attributes below; never held while blocking
        self._cache = ResultsCache(config.results_cache.max_bytes)
        self._data_version: _DataVersion | None = None
        # Keyed by hash. A collision only makes a statement run by itself.
        self._uncoalesced: BoundedDict[int, None] = BoundedDict(_MAX_UNCOALESCED)

    def run(self, query: Query, cancel: CancelToken | None = None, admitted: Admitted | None = None) -> QueryResult:
        """Return the cached result, or run the statement and cache its result; see `QueryEngine.run`."""
        key = None if query.cache == "none" else _key(query)
        data_version = None if key is None else self._published()
        if key is None or data_version is None:
            return self._run(query, cancel, "bypass" if query.cache == "none" else "miss")
        if query.cache == "renew":
            return self._read_ahead(self._run(query, cancel, "bypass"), data_version, key)[0]
        with self._lock:
            remembered = self._cached(query, key) if data_version is self._data_version else None
            group = data_version.groups.get(key)
            if remembered is None and group is None and hash(key) not in self._uncoalesced:
                group = data_version.groups[key] = _Group(data_version, key)
        if remembered is not None:
            return remembered
        if group is None:
            return self._read_ahead(self._run(query, cancel, "miss"), data_version, key)[0]
        return self._share(group, query, cancel or CancelSource())

    @property
    def instance_id(self) -> object | None:
        """See `QueryEngine.instance_id`."""
        return self._engine.instance_id

    def close(self) -> None:
        """Close the engine, and drop every cached result."""
        self._engine.close()
        with self._lock:
            self._forget()

    # The data version.

    def _forget(self) -> None:
        """Drop every cached result. Call with the lock held."""
        self._cache.clear()
        if self._data_version is not None:
            self._data_version.pin.close()
            self._data_version = None

    def _published(self) -> _DataVersion | None:
        """Return the current data version, or None if there is none. Drop the results of any other version."""
        instance_id, current = self._engine.instance_id, self._data_version
        if (
            current is not None
            and current.instance_id is instance_id
            and current.pin.signature == signature(self._manifest)
        ):
            return current
        with self._lock:
            self._forget()
            if instance_id is None:
                return None
            pin = Pin(self._manifest)
            if pin.is_held:
                self._data_version = _DataVersion(instance_id, pin)
            return self._data_version

    # Running a statement.

    def _left_of(self, query: Query) -> float:
        return query.time_limit_s(self._limits) if query.timeout_s is None else query.timeout_s

    def _cached(self, query: Query, key: Key) -> QueryResult | None:
        """Return the cached result; None if there is none. Call with the lock held."""
        kept = self._cache.get(key)
        if kept is None:
            return None
        if kept.answer.bytes < READ_AHEAD_BYTES:
            return _again(kept.answer)
        self._cache.lend(kept)
        return _Lent(self, kept, self._left_of(query), query.time_limit_s(self._limits))

    def _run(
        self, query: Query, cancel: CancelToken | None, state: CacheState, admitted: Admitted | None = None
    ) -> QueryResult:
        result = self._engine.run(query, cancel, admitted)
        result.timings.cache = state
        return result

    def _share(self, group: _Group, query: Query, cancel: CancelToken) -> QueryResult:
        """Lead *group* or wait for its result. If the group ends without a result, run the statement by itself."""
        began = time.monotonic()
        limit_s = self._left_of(query)
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
        return self._read_ahead(self._run(left, cancel, "miss"), group.data_version, group.key)[0]

    def _wait(self, woken: threading.Event, query: Query, cancel: CancelToken) -> None:
        """Wait until *woken* is set. Raise QueryTimeoutError or QueryCancelledError if the statement ends first."""
        stopped = CancelSource()
        stopped.subscribe(woken.set)
        unsubscribe = cancel.subscribe(stopped.cancel)
        try:
            in_time = woken.wait(query.timeout_s)
        finally:
            unsubscribe()
        if stopped.cancelled:
            raise QueryCancelledError
        if not in_time:
            raise QueryTimeoutError(query.time_limit_s(self._limits))

    def _queue(self, group: _Group, turn: CancelSource, query: Query, cancel: CancelToken) -> QueryResult | None:
        """Wait for a slot and lead *group*. Return None if another statement leads. In any case, wake the others."""

        def lead() -> None:
            with self._lock:
                if group.leader is None:
                    group.leader = turn
                others = [one for one in group.queued.values() if one is not group.leader]
            for other in others:
                other.cancel()

        answer = None
        cancel.subscribe(turn.cancel)
        try:
            result, answer = self._read_ahead(self._run(query, turn, "miss", lead), group.data_version, group.key)
        except QueryCancelledError:
            if group.leader in {None, turn}:
                raise
            return None
        finally:
            with self._lock:
                group.queued.pop(query.fingerprint, None)
                if group.leader is turn or (group.leader is None and not group.queued):
                    group.answer, group.has_ended = answer, True
                    del group.data_version.groups[group.key]
                waiting, group.waiting = group.waiting, []
            for wake in waiting:
                wake()
        return result

    def _read_ahead(
        self, result: QueryResult, data_version: _DataVersion, key: Key
    ) -> tuple[QueryResult, Remembered | None]:
        """
        Read *result* until it is complete or large, if *data_version* alone determines it.

        Return the result for the caller. If it is small and cacheable, also return it for the waiting statements.
        """
        if result.data_version != data_version.pin.signature:
            if result.data_version is None:
                self._uncoalesced[hash(key)] = None
            return result, None
        ahead: list[bytes] = []
        size = 0
        try:
            for chunk in result:
                ahead.append(chunk)
                size += len(chunk)
                if size >= READ_AHEAD_BYTES:
                    self._uncoalesced[hash(key)] = None
                    return _Collected(self, result, ahead, data_version, key), None
        except BaseException as error:
            result.close()
            if isinstance(error, QueryError):
                error.timings = result.timings
            raise
        result.close()
        answer = _remembered((b"".join(ahead),), result.timings)
        room = Room()
        if self.grow(room, key_bytes(key) + chunk_bytes(answer.chunks[0])):
            self.settle(room, answer, data_version, key)
        return Answer(chunks=answer.chunks, timings=result.timings), answer

    # Collecting a large result.

    def grow(self, room: "Room", more_bytes: int) -> bool:
        """Reserve *more_bytes* for the result of *room*. Return False if *room* has lost its reservation."""
        with self._lock:
            if room.is_open:
                if room.bytes + more_bytes <= self._cache.largest_bytes and self._cache.take_room(more_bytes):
                    room.bytes += more_bytes
                else:
                    self._close_room(room)
            return room.is_open

    def settle(self, room: "Room", answer: Remembered | None, data_version: _DataVersion, key: Key) -> None:
        """Cache *answer* if it is still valid, or release its room. Repeated calls are harmless."""
        with self._lock:
            if room.is_open and answer is not None and data_version is self._data_version:
                room.is_open = False
                self._cache.keep(key, answer, room.bytes)
            else:
                self._close_room(room)

    def give_back(self, lent: "_Lent") -> None:
        """End the loan of *lent*. Repeated calls are harmless."""
        with self._lock:
            kept, lent.kept = lent.kept, None
            if kept is not None:
                self._cache.give_back(kept)

    def _close_room(self, room: "Room") -> None:
        if room.is_open:
            room.is_open = False
            self._cache.give_room_back(room.bytes)


class Room(Struct, eq=False):
    """The memory reserved in the cache for one result that is being collected."""

    bytes: int = 0
    is_open: bool = True


class _Collected:
    """A large result that is being computed. This `QueryResult` collects its chunks while the cache has room."""

    def __init__(
        self, engine: CachedEngine, result: QueryResult, ahead: list[bytes], data_version: _DataVersion, key: Key
    ) -> None:
        self.data_version = result.data_version
        self.timings = result.timings
        self._engine = engine
        self._result = result
        self._chunks = chain(ahead, result)
        self._data_version, self._key = data_version, key
        self._room = Room()
        self._engine.grow(self._room, key_bytes(key))
        self._collected: list[bytes] = []

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """Return the next chunk."""
        try:
            chunk = next(self._chunks)
        except StopIteration:
            answer = _remembered(tuple(self._collected), self.timings)
            self._engine.settle(self._room, answer, self._data_version, self._key)
            raise
        if self._engine.grow(self._room, chunk_bytes(chunk)):
            self._collected.append(chunk)
        else:
            self._collected = []
        return chunk

    def cancel(self) -> None:
        """Stop the statement from any thread. The iterator then raises `QueryCancelledError`."""
        self._result.cancel()

    def close(self) -> None:
        """Stop the statement if it is still running, and release its room. Repeated calls are harmless."""
        self._engine.settle(self._room, None, self._data_version, self._key)
        self._collected = []
        self._result.close()


class _Lent:
    """
    A large cached result, as a `QueryResult` with the same time limit as a computed result.

    Its memory counts as used until it is closed, even if the cache drops it in the meantime.
    """

    def __init__(self, engine: CachedEngine, kept: Kept, limit_s: float, shown_limit_s: float) -> None:
        """Start the time limit of *limit_s* seconds. Errors show *shown_limit_s*."""
        self.data_version: Signature = None
        self.timings = _timings(kept.answer)
        self.kept: Kept | None = kept
        self._engine = engine
        self._chunks = iter(kept.answer.chunks)
        self._deadline = time.monotonic() + limit_s
        self._shown_limit_s = shown_limit_s

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """Return the next chunk."""
        if self.kept is None:
            raise QueryCancelledError
        if time.monotonic() >= self._deadline:
            raise QueryTimeoutError(self._shown_limit_s)
        return next(self._chunks)

    def close(self) -> None:
        """End the loan. The iterator then raises `QueryCancelledError`. Repeated calls are harmless."""
        self._chunks = iter(())
        self._engine.give_back(self)

    cancel = close


def _again(answer: Remembered, queued_ms: float = 0.0) -> Answer:
    return Answer(chunks=answer.chunks, timings=_timings(answer, queued_ms))


def _remembered(chunks: tuple[bytes, ...], timings: QueryTimings) -> Remembered:
    return Remembered(chunks, timings.rows, timings.bytes, timings.statement)


def _timings(answer: Remembered, queued_ms: float = 0.0) -> QueryTimings:
    return QueryTimings(
        rows=answer.rows, bytes=answer.bytes, queued_ms=queued_ms, cache="hit", statement=answer.statement
    )


def _key(query: Query) -> Key | None:
    """
    Return the cache key of *query*; None if its parameters are not JSON.

    JSON distinguishes 1, 1.0 and true, which Python considers equal.
    """
    try:
        parameters = None if query.parameters is None else _to_json(query.parameters)
        return query.encoding, normal_form(query.sql), parameters, query.scope
    except (TypeError, ValueError, RecursionError):
        return None

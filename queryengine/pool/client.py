"""
The engine as processes that answer requests see it: places from the broker, statements run by engine workers.

A statement waits for its place, connects to `engine.sock` unless its place has a connection already, sends itself and
reads its answer; see `queryengine.pool.frames` for the form. It works under threads and under gevent: whatever waits
is looked up in `socket` and `threading` when it is used.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Any

from queryengine.cancellation import Reason
from queryengine.engine import (
    ACTIVE_SQL_CHARACTERS,
    ActiveQuery,
    Admitted,
    Answer,
    ArrowParameters,
    CancelToken,
    Description,
    EngineStatus,
    GatedStatement,
    Query,
    QueryTimings,
)
from queryengine.errors import (
    DatasetNotLoadedError,
    EmptyStatementError,
    EngineBusyError,
    EngineUnavailableError,
    EngineWorkerDiedError,
    ParameterError,
    QueryCancelledError,
    QueryError,
    QueryTimeoutError,
    ResourceLimitError,
    SqlError,
    SqlSyntaxError,
    StatementError,
    StatementNotAllowedError,
)
from queryengine.execution.parameters import UNKNOWN_TYPE, check_values
from queryengine.manifest import Signature
from queryengine.pool.broker_client import unreachable
from queryengine.pool.frames import FrameDecoder, FrameError, Kind, decode_json, encode_json
from queryengine.pool.slots import Place, Places
from runtimeconf.model import RuntimeConfig

logger = logging.getLogger(__name__)

#: A worker that was told to stop has so long to do it, and is then killed.
STOP_S = 1.5
#: A worker ends itself a second after the time limit; one that is stopped itself cannot, and is killed this much later.
LAST_LINE_S = 2.5

#: What is listed of a statement is cut where it takes more than this to tell, as one of control characters does.
LISTED_SQL_BYTES = 4096
#: The most that one character takes, as escapes.
_CHARACTER_BYTES = 12

_RECEIVE_BYTES = 64 * 1024
_SEND_BYTES = 256 * 1024


def _of_message(kind: type[QueryError]) -> Callable[[Mapping[str, Any]], QueryError]:
    return lambda fields: kind(fields["message"])


#: How each error is made again of an ERROR frame, by its code.
ERRORS: Mapping[str, Callable[[Mapping[str, Any]], QueryError]] = MappingProxyType(
    {
        kind.code: _of_message(kind)
        for kind in (
            QueryError,
            StatementError,
            SqlSyntaxError,
            SqlError,
            ParameterError,
            StatementNotAllowedError,
            ResourceLimitError,
            EngineUnavailableError,
            DatasetNotLoadedError,
        )
    }
    | {
        EmptyStatementError.code: lambda _: EmptyStatementError(),
        QueryTimeoutError.code: lambda fields: QueryTimeoutError(fields["limit_s"]),
        QueryCancelledError.code: lambda _: QueryCancelledError(),
        EngineBusyError.code: lambda fields: EngineBusyError(fields["retry_after_s"]),
        EngineWorkerDiedError.code: lambda _: EngineWorkerDiedError(),
    }
)


class ClientResult:
    """
    A `QueryResult`, and a statement from its arrival on.

    One thread waits and reads; `cancel` and `close` come from any. Whoever finds that it has ended gives its place
    back, once.
    """

    def __init__(self, places: Places, query_id: str, key: str, *, limit_s: float, shown_limit_s: float) -> None:
        """Begin with a time limit of *limit_s* seconds; errors name *shown_limit_s*."""
        self.timings = QueryTimings()
        self.query_id = query_id
        self.key = key
        self.answer: dict[str, Any] = {}  # of the END frame
        self.basis: Signature = None  # as `QueryResult.basis`
        self._wants_basis = False
        self.place: Place | None = None
        self.begins: Admitted | None = None
        self._places = places
        self._lock = places.lock
        self._deadline = time.monotonic() + limit_s
        self._timeout = partial(QueryTimeoutError, shown_limit_s)
        self._started = time.time()
        self._listed = ""
        self._is_inner = False
        # The place.
        self._waits: threading.Lock | None = None  # held until there is something to tell the one who waits
        self._told = False
        self._refusal: QueryError | None = None
        # The end.
        self._reason: Reason | None = None
        self._stopped_at = 0.0
        self._unsubscribe: Callable[[], None] | None = None
        self._worker_is_stuck = False
        self._ended = False
        # The answer.
        self._socket: socket.socket | None = None
        self._decoder = FrameDecoder()
        self._ready: deque[bytes] = deque()
        self._reading = True  # until `start` is through
        self._is_kept = False  # whether the connection served another statement before
        self._has_header = False
        self._complete = False
        self._has_last_word = False
        self._worker_is_done = False

    def start(self, call: Mapping[str, Any], cancel: CancelToken | None, *, inner: bool = False) -> None:
        """
        Wait for a place, have a worker begin *call*, and read the first bytes of its answer, or all of a short one.

        An *inner* statement is the runtime's own: callers without a key would see it otherwise, and could stop it.

        Raises:
            QueryError: There is no place, or the statement failed; everything is given back.
        """
        self._listed, self._is_inner = call["sql"], inner
        self._wants_basis = "basis" in call
        try:
            if cancel is not None:
                self._unsubscribe = cancel.subscribe(self.cancel)
            self._wait_for_place()
            if self.begins is not None:
                self.begins()
                self._check()
            self._begin(call)
        except BaseException:
            self._end()
            raise
        self._reading = False

    def entry(self) -> dict[str, Any]:
        """As `Party.entry`."""
        started = datetime.fromtimestamp(self._started, UTC).isoformat(timespec="milliseconds")
        fields = {"id": self.query_id, "sql": _listed(self._listed), "started": started.replace("+00:00", "Z")}
        return {**fields, "inner": True} if self._is_inner else fields

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """Give the next chunk of a complete answer, or raise why there is none."""
        if self._complete:  # Nobody else touches it any more, and a lock is not free.
            if not self._ready:
                raise StopIteration
            return self._ready.popleft()
        with self._lock:
            if self._ready and self._reason is None:  # a cancelled statement gives nothing more
                return self._ready.popleft()
            if self._ended:
                raise self._reason() if self._reason is not None else QueryCancelledError()
            self._reading = True
        try:
            self._check()
            while not self._ready and not self._complete:
                self._read()
        except BaseException:
            self._end()
            raise
        # Before others may end this: what they take away must not look like the end of the answer.
        chunk = self._ready.popleft() if self._ready else None
        with self._lock:
            self._reading = False
            is_stopped = self._reason is not None and not self._complete
        if is_stopped:  # Whoever closed this meanwhile has left its end to this thread, which may never come back.
            self._end()
            self._check()
        if chunk is None:
            raise StopIteration
        return chunk

    def cancel(self) -> None:
        """Stop the statement; the iterator raises `QueryCancelledError`."""
        self.stop(QueryCancelledError)

    def close(self) -> None:
        """Stop the statement if it still runs and give its place back. More than one call is harmless."""
        self._end(unless_reading=True)
        if not self._ended:
            self.cancel()
            self._end(unless_reading=True)  # The one who read may have been through before there was a reason.

    # What the broker says.

    def admitted(self) -> None:
        """Let the one who waits go on with its place. Under the lock."""
        self._wake()

    def refused(self, error: QueryError) -> None:
        """Let the one who waits go on without a place. Under the lock."""
        if not self._told:
            self._refusal = error
            self._wake()

    def stop(self, reason: Reason) -> None:
        """End the statement because of *reason*; an earlier reason stands."""
        with self._lock:
            if self._reason is not None or self._ended:
                return
            self._reason = reason
            self._stopped_at = time.monotonic()
            self._wake()
            if self._socket is not None:
                _ask_to_stop(self._socket)

    def look(self, now: float) -> None:
        """Give up a place that did not come, and a worker that neither answers nor ends though its time is long up."""
        if now >= self._deadline and not self._told:
            with self._lock:
                self.refused(self._timeout())
        stopped = self._reason is not None and now >= self._stopped_at + STOP_S
        if not stopped and now < self._deadline + LAST_LINE_S:
            return
        with self._lock:
            if self._ended:
                return
            if self._reason is None:
                self._reason = self._timeout
            self._worker_is_stuck = True
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)  # which ends whoever reads or sends
        self._end(unless_reading=True)

    def _wake(self) -> None:
        """Wake the one who waits for a place, once. Under the lock."""
        if not self._told:
            self._told = True
            if self._waits is not None:
                self._waits.release()

    # The way of a statement.

    def _wait_for_place(self) -> None:
        self._check()
        began = time.monotonic()
        self._places.enter(self)
        if not self._told:  # Most find a place that is kept.
            waits = threading.Lock()
            waits.acquire()
            with self._lock:
                self._waits = None if self._told else waits
            if self._waits is not None:
                waits.acquire()
        self.timings.queued_ms = (time.monotonic() - began) * 1000
        self._check()
        if self._refusal is not None:
            raise self._refusal

    def _begin(self, call: Mapping[str, Any]) -> None:
        """Send the statement and wait for the first bytes of its answer."""
        while True:
            try:
                connection = self._connected()
                self._send(connection, call)
                while not self._ready and not self._complete:
                    self._read()
            except _NotBegunError:
                # The worker that waited for the next statement has ended meanwhile. Another will do.
                self._disconnect()
                self._check()
            else:
                return

    def _connected(self) -> socket.socket:
        """Return the connection of the place, or make one."""
        if self.place is None:
            raise unreachable()
        self._is_kept = self.place.connection is not None
        connection = self.place.connection or self._connect()
        # Whoever has stopped this statement before has left a reason; later ones find the socket.
        self._socket = self.place.connection = connection
        self._check()
        return connection

    def _disconnect(self) -> None:
        self._decoder = FrameDecoder()
        with self._lock:
            connection, self._socket = self._socket, None
            if self.place is not None:
                self.place.connection = None
        if connection is not None:
            connection.close()

    def _connect(self) -> socket.socket:
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise unreachable() from error
        try:
            connection.connect(self._places.engine_path)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError):
                raise unreachable() from error
            raise
        return connection

    def _send(self, connection: socket.socket, call: Mapping[str, Any]) -> None:
        try:
            frame = encode_json(
                Kind.REQUEST,
                {**call, "query_id": self.query_id, "timeout_s": max(0.0, self._deadline - time.monotonic())},
            )
        except FrameError as error:
            raise ParameterError("The statement and its parameters are too long.") from error
        except (TypeError, ValueError, RecursionError) as error:  # no JSON: only a value can be to blame
            check_values(call.get("parameters"))
            raise ParameterError(UNKNOWN_TYPE) from error
        try:
            sent = connection.send(frame)
            while sent < len(frame):
                sent += connection.send(frame[sent : sent + _SEND_BYTES])
        except OSError as error:  # The worker has ended; what it said before comes first.
            if self._is_kept:
                raise _NotBegunError from error

    def _read(self) -> None:
        """Take what has come of the answer."""
        connection = self._socket
        try:
            # All of a long payload at once: its bytes are then never copied again.
            flags = socket.MSG_WAITALL if self._decoder.missing else 0
            data = connection.recv(self._decoder.wanted, flags) if connection is not None else b""
        except ConnectionResetError as error:
            if self._is_kept and not self._has_header:  # It ended before it had read the statement.
                raise _NotBegunError from error
            data = b""
        except OSError:
            data = b""
        if not data:
            self._worker_is_done = True
            raise self._cut()
        try:
            for kind, payload in self._decoder.feed(data):
                self._take(kind, payload)
                if self._complete:
                    break
        except FrameError as error:
            logger.exception("an engine worker sent no answer")
            raise QueryError("The engine's answer cannot be read.") from error

    def _take(self, kind: Kind, payload: bytes) -> None:
        if kind is Kind.DATA and self._has_header:
            self._ready.append(payload)
        elif kind is Kind.HEADER:
            self._has_header = True
            if self._wants_basis:
                self.basis = _basis(decode_json(payload))
        elif kind is Kind.END:
            self._worker_is_done = self._has_last_word = True
            self.answer = decode_json(payload)
            for name in ("rows", "bytes", "parse_ms", "run_ms", "encode_ms"):
                setattr(self.timings, name, self.answer.get(name, 0))
            self._complete = True
            self._end()
        elif kind is Kind.ERROR:
            self._worker_is_done = self._has_last_word = True
            raise self._reason() if self._reason is not None else self._rebuilt(decode_json(payload))
        elif kind is Kind.CLOSING and not self._has_header and (self._is_kept or self._reason is not None):
            raise _NotBegunError  # On a new connection: it was stopped before it was sent.
        else:
            raise FrameError(f"a frame of kind {kind.name} is out of place")

    def _rebuilt(self, fields: Mapping[str, Any]) -> QueryError:
        code = fields.get("code")
        if code == QueryTimeoutError.code:
            return self._timeout()  # The worker knows only what was left of the limit.
        try:
            return ERRORS[str(code)](fields)
        except (KeyError, TypeError):
            logger.exception("an engine worker sent an unknown error", extra={"fields": {"code": code}})
            return QueryError("The statement failed.")

    def _check(self) -> None:
        if self._reason is not None:
            raise self._reason()

    def _cut(self) -> QueryError:
        """Say why an answer stopped before its end."""
        if self._reason is not None:
            return self._reason()
        return self._timeout() if time.monotonic() >= self._deadline else EngineWorkerDiedError()

    def _end(self, *, unless_reading: bool = False) -> None:
        """Give back what the statement has, as soon as its worker has let go of it. More than one call is harmless."""
        if self._ended:
            return
        with self._lock:
            if self._ended or (unless_reading and self._reading):
                return
            self._ended = True
            self._reading = False
            if not self._complete:
                self._ready.clear()
            connection, self._socket = self._socket, None
            self._told = True
            # A statement that came to its end in peace leaves the connection to the next one.
            if self._has_last_word and self._reason is None and self._decoder.is_between_frames:
                connection = None
            elif self.place is not None and connection is not None:
                self.place.connection = None
        if self._unsubscribe is not None:
            self._unsubscribe()
        if connection is None:
            self._places.leave(self)
        elif self._worker_is_done or self._worker_is_stuck:
            # Whoever was admitted to wait for this place has a way to go until it connects.
            self._places.leave(self, kill=self._worker_is_stuck)
            connection.close()
        else:
            _ask_to_stop(connection)
            self._see_off(connection)

    def _see_off(self, connection: socket.socket) -> None:
        """Give the place back once the worker has ended *connection*, without waiting for it here."""

        def wait() -> None:
            self._places.leave(self, kill=not _read_out(connection))

        try:
            threading.Thread(target=wait, name="engine-farewell", daemon=True).start()
        except RuntimeError:  # The process ends, or may have no more threads.
            self._places.leave(self, kill=True)
            connection.close()


class _NotBegunError(Exception):
    """The worker has not begun the statement, and will not."""


class EngineClient:
    """
    A `QueryEngine` whose statements run in engine workers. It is made after any fork, and closed by who made it.

    It never fails for want of an engine: statements do, with `EngineUnavailableError`, until there is one.
    """

    def __init__(self, config: RuntimeConfig) -> None:
        self._limit_s = config.query.timeout_s
        self._remembers = config.results_cache.enabled
        self._places = Places(config.state_dir)

    def run(self, query: Query, cancel: CancelToken | None = None, admitted: Admitted | None = None) -> ClientResult:
        """
        Have a worker gate and start one statement, and wait for its first bytes; a short answer is read to its end.

        Raises:
            QueryError: Any of the tree in `queryengine.errors`.
        """
        call = {"call": "run", **_fields(query)}
        if self._remembers and query.cache != "none":
            call["basis"] = True
        result = self._statement(query.query_id, query.fingerprint, query.timeout_s)
        result.begins = admitted
        result.start(call, cancel)
        return result

    def describe(self, query: Query, cancel: CancelToken | None = None, *, ahead_s: float = 0.0) -> Description:
        """As `QueryEngine.describe`."""
        call = {"call": "describe", "ahead_s": ahead_s, **_fields(query)}
        statement = self._statement(query.query_id, query.fingerprint, query.timeout_s)
        statement.start(call, cancel)
        try:
            chunks = tuple(statement)
            fields = statement.answer["description"]
            schema = fields["schema"]
            return Description(
                schema=None if schema is None else b64decode(schema),
                parameters=tuple(fields["parameters"]),
                is_lasting=fields["is_lasting"],
                is_steady=fields["is_steady"],
                answer=Answer(chunks=chunks, timings=statement.timings) if chunks else None,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise EngineUnavailableError("The engine's answer cannot be read.") from error
        finally:
            statement.close()

    def admit(self, sql: str, relations: frozenset[str]) -> GatedStatement:
        """As `QueryEngine.admit`."""
        statement = self._statement("", "", None)
        statement.start({"call": "admit", "sql": sql, "relations": sorted(relations)}, None, inner=True)
        try:
            fields = statement.answer["statement"]
            return GatedStatement(
                sql=fields["sql"],
                kind=fields["kind"],
                relations=frozenset(fields["relations"]),
                parameters=frozenset(fields["parameters"]),
            )
        except (KeyError, TypeError) as error:
            raise EngineUnavailableError("The engine's answer cannot be read.") from error
        finally:
            statement.close()

    def active(self, fingerprint: str) -> tuple[ActiveQuery, ...]:
        """As `QueryEngine.active`: the statements of all processes."""
        self._places.tell()
        answer = self._places.link.ask({"do": "active", "key": fingerprint})
        return tuple(
            ActiveQuery(query_id=one["id"], started=one["started"], state=one["state"], sql=one["sql"])
            for one in answer["statements"]
        )

    def cancel(self, query_id: str, fingerprint: str) -> bool:
        """As `QueryEngine.cancel`: a statement of any process."""
        self._places.tell()
        return bool(self._places.link.ask({"do": "cancel", "key": fingerprint, "id": query_id})["found"])

    @property
    def era(self) -> object | None:
        """As `QueryEngine.era`: the connection to the broker, which a new engine does not inherit."""
        return self._places.link.era

    def status(self) -> EngineStatus:
        """Say how many workers are alive and were killed; none alive when the engine has not been heard of lately."""
        return self._places.link.status

    def is_alive(self) -> bool:
        """Say whether a statement would be taken now; a busy engine is alive."""
        return self._places.link.is_alive

    def close(self) -> None:
        """Stop everything that runs and give back what is held."""
        self._places.close()

    def _statement(self, query_id: str, key: str, limit_s: float | None) -> ClientResult:
        whole_s = self._limit_s
        return ClientResult(
            self._places, query_id, key, limit_s=whole_s if limit_s is None else limit_s, shown_limit_s=whole_s
        )


def _fields(query: Query) -> dict[str, Any]:
    """Return the fields of a request that say what to run."""
    fields = {"sql": query.sql, "encoding": query.encoding, "fingerprint": query.fingerprint}
    if isinstance(query.parameters, ArrowParameters):
        return {**fields, "arrow_parameters": b64encode(query.parameters.stream).decode("ascii")}
    return {**fields, "parameters": query.parameters}


def _basis(header: Mapping[str, Any]) -> Signature:
    match header.get("basis"):
        case [int(mtime_ns), int(inode), int(size)]:
            return mtime_ns, inode, size
    return None


def _listed(sql: str) -> str:
    """Cut *sql* to what a list of statements shows; so short a message passes while many others do."""
    listed = sql[:ACTIVE_SQL_CHARACTERS]
    if (
        _CHARACTER_BYTES * len(listed) <= LISTED_SQL_BYTES
        or len(encode_json(Kind.MESSAGE, {"": listed})) <= LISTED_SQL_BYTES
    ):
        return listed
    return listed[: LISTED_SQL_BYTES // _CHARACTER_BYTES]


def _ask_to_stop(connection: socket.socket) -> None:
    """Let the worker find that nobody wants its answer any more."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_WR)


def _read_out(connection: socket.socket) -> bool:
    """Throw away what a worker that was asked to stop still sends; whether it ended the connection in time."""
    until = time.monotonic() + STOP_S
    with connection:
        while (left_s := until - time.monotonic()) > 0:
            try:
                connection.settimeout(left_s)
                if not connection.recv(_RECEIVE_BYTES):
                    return True
            except TimeoutError:
                return False
            except OSError:
                return True
    return False

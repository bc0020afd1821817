"""
What an engine worker does with a connection: read a statement, run it here, send its answer, and wait for the next.

Two lines of defence are armed before anything of the caller's text is looked at. The first stops the statement when
its time is up or its client is gone, and needs DuckDB to listen. The second is SIGALRM at its default action: the
kernel ends the process, whatever it is busy with.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import struct
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, get_args

from queryengine.cancellation import CancelSource
from queryengine.encoders import CONTENT_TYPES
from queryengine.encoders.parts import Parts, length
from queryengine.engine import ArrowParameters, Encoding, Parameters, Query, QueryTimings
from queryengine.errors import EngineUnavailableError, QueryError, ResourceLimitError
from queryengine.pool.frames import (
    MAX_DATA_BYTES,
    FrameDecoder,
    FrameError,
    Kind,
    decode_json,
    encode_data,
    encode_json,
)
from queryengine.pool.inprocess import InProcessEngine
from queryengine.pool.worker_state import WorkerState
from runtimeconf.model import MIB, RuntimeConfig
from system import process_limits

logger = logging.getLogger(__name__)

#: How long a statement that was stopped has until the process ends.
GRACE_S = 1.0
#: How often a hang-up is looked at again, until the statement has ended.
_HANG_UP_TICK_S = 0.05
#: How long a client that has connected may take to send its statement, and after an answer to send the next.
REQUEST_S = 10.0
NEXT_S = 0.5
#: How often the worker shows meanwhile that it lives: half a second, as a `struct timeval`.
_HEARTBEAT = struct.pack("@ll", 0, 500_000)
#: An error, or the last of an answer, is sent for so long when the statement's own time is used up.
LAST_WORD_S = 0.5
#: What is sent at once of an answer that is there to its end.
_SEND_BYTES = 256 * 1024
_RECEIVE_BYTES = 64 * 1024
#: What may be on its way to a client: a piece of an answer, so that the next is worked on while this one is read. Linux
#: gives less where `net.core.wmem_max` is lower.
_BUFFER_BYTES = 2 * MIB
#: How many parts one call of the system takes.
_MOST_PARTS = os.sysconf("SC_IOV_MAX")

_CPUS = len(os.sched_getaffinity(0))

#: What a worker may use beyond what it uses idle: `memory_limit`, to which DuckDB keeps its buffers, and a part of it,
#: or so many bytes if that is more, for the encoders and what DuckDB does not count. Batches, hash tables and blocks on
#: their way to the disk do not shrink with the limit, and each thread has its own.
SPARE_PART = 1 / 4
SPARE_BYTES = 96 * MIB + _CPUS * 16 * MIB
#: Of that, so much is for pages of libraries that are first used by a statement. RLIMIT_DATA does not count them.
LIBRARY_BYTES = 8 * MIB
#: A process that has no engine after so many seconds is replaced by one that may get it.
RETRY_S = 5.0
#: A statement that took less time cannot have left much behind.
_SETTLE_AFTER_S = 0.005
#: So much more private memory than was left the last time is given back at once, or else when no statement follows: the
#: next one would take it again. A worker that keeps more than the last figure beyond that of an idle one, snapshots in
#: DuckDB's cache not counted, is worn out. Of `memory_limit` the first figure is a sixteenth at most: what is left is
#: missing from what the next statement may use.
KEPT_BYTES = 64 * MIB
KEPT_PART = 1 / 16
SLACK_BYTES = 4 * MIB
WORN_BYTES = 64 * MIB


_CallKind = Literal["run", "describe", "admit"]

_CLOSING = encode_json(Kind.CLOSING, {})
_TOO_LARGE = "The statement needs more memory than there is."


class HangUpWatch:
    """
    Notices that a client has closed its connection, or its sending side, and cancels its statement.

    Its one thread sleeps in the kernel until that happens.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epoll = select.epoll()
        self._connection: socket.socket | None = None
        self._cancel: CancelSource | None = None
        threading.Thread(target=self._run, name="engine-hang-up", daemon=True).start()

    @contextmanager
    def over(self, connection: socket.socket) -> Iterator[None]:
        """
        Watch *connection* for the length of the block.

        Raises:
            OSError: The system lacks the means.
        """
        self._epoll.register(connection, select.EPOLLRDHUP)
        self._connection = connection
        try:
            yield
        finally:
            self.end()
            self._connection = None
            with suppress(OSError):
                self._epoll.unregister(connection)

    def begin(self, cancel: CancelSource) -> None:
        """Cancel *cancel* when the connection is hung up before `end`; the process has `GRACE_S` to obey then."""
        self._cancel = cancel

    def end(self) -> None:
        """Have no statement cancelled: no alarm is set from now on. More than one call is harmless."""
        with self._lock:
            self._cancel = None

    def _run(self) -> None:
        while True:
            self._epoll.poll()
            with suppress(MemoryError):  # A statement has it all: the next look may find some.
                self._look()
            time.sleep(_HANG_UP_TICK_S)

    def _look(self) -> None:
        with self._lock:
            cancel, connection = self._cancel, self._connection
            # The event may be that of an earlier connection with the same descriptor.
            if cancel is None or connection is None or not _is_hung_up(connection):
                return
            left_s, _ = signal.getitimer(signal.ITIMER_REAL)
            signal.setitimer(signal.ITIMER_REAL, min(GRACE_S, left_s or GRACE_S))
        cancel.cancel()


class StatementServer:
    """
    Serves one connection after the other, with an engine of this process's own that is opened when first needed.

    *report* tells whoever watches this process what it does, *stops* whether it is to end. `worn_out` becomes True when
    the process should be replaced by a new one.
    """

    def __init__(
        self, config: RuntimeConfig, report: Callable[[WorkerState], None], stops: Callable[[], bool] = lambda: False
    ) -> None:
        # Who is served is decided before a connection is made: here is one place, and nobody to be fair to.
        self._config = replace(config, query=replace(config.query, workers=1, max_queued=1))
        self._report = report
        self._stops = stops
        self._watch = HangUpWatch()
        self._memory = process_limits.Memory()
        self._base = self._memory.use()
        self._left_bytes = self._base.resident  # when memory was given back
        self._kept_bytes = min(KEPT_BYTES, int(KEPT_PART * config.query.memory_limit_bytes))
        self._engine: InProcessEngine | None = None
        self._tried = 0.0
        self.worn_out = False

    def warm_up(self) -> None:
        """Open the engine, if that is possible now."""
        self._tried = time.monotonic()
        with suppress(EngineUnavailableError):
            self._opened()

    def serve(self, connection: socket.socket) -> None:
        """Answer the statements of *connection*, and close it. What goes wrong is logged and not raised."""
        with connection:
            try:
                connection.setblocking(True)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _HEARTBEAT)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
                with self._watch.over(connection):
                    self._converse(connection)
            except (FrameError, OSError) as exc:
                logger.warning("engine worker got no statement", extra={"fields": {"error": str(exc)}})
            except MemoryError:
                self.worn_out = True
                with suppress(OSError):
                    connection.settimeout(LAST_WORD_S)
                    connection.sendall(_error_frame(ResourceLimitError(_TOO_LARGE)))

    def _converse(self, connection: socket.socket) -> None:
        """
        Answer one statement after the other.

        Raises:
            FrameError: What came is no request.
            OSError: It does not come.
            MemoryError: It is too large for this process.
        """
        decoder = FrameDecoder()
        patience_s = REQUEST_S
        last: _Call | None = None
        while (call := self._received(connection, decoder, patience_s)) is not None:
            started = time.monotonic()
            is_lost = False
            try:
                self._answer(call, connection)
            except _ClientLostError:
                logger.debug("the answer could not be sent", extra={"fields": call.named})
                is_lost = True
            finally:
                self._disarm()
            if time.monotonic() - started > _SETTLE_AFTER_S:
                last = call
                self._settle(call, self._kept_bytes)
            if is_lost or self.worn_out or self._stops():
                break
            patience_s = NEXT_S
        with suppress(OSError):
            connection.send(_CLOSING, socket.MSG_DONTWAIT)
        if last is not None:
            self._settle(last, SLACK_BYTES)

    def be_idle(self) -> None:
        """
        Report that nothing runs.

        Without an engine for `RETRY_S` seconds, or if its temporary directory was removed, this is worn out: the
        sandbox lets it make no other.
        """
        if self._engine is None:
            self.worn_out = self.worn_out or time.monotonic() - self._tried >= RETRY_S
        elif not self._engine.scratch.is_there:
            self.worn_out = True
        self._report(WorkerState(phase="unfit" if self._engine is None else "idle"))

    def close(self) -> None:
        """Close the engine."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _received(self, connection: socket.socket, decoder: FrameDecoder, patience_s: float) -> _Call | None:
        """
        Receive a request, the first within `REQUEST_S`; None when there will be no other.

        Raises:
            FrameError: It is not a request.
            OSError: It does not come.
            MemoryError: It is too large for this process.
        """
        until = time.monotonic() + patience_s
        while True:
            try:
                data = connection.recv(_RECEIVE_BYTES)
            except BlockingIOError:  # the heartbeat
                data = None
            if data:
                for kind, payload in decoder.feed(data):
                    if kind is not Kind.REQUEST:
                        raise FrameError(f"a request was expected, {kind.name} came")
                    return _checked(decode_json(payload), self._config.query.timeout_s)
            elif data is not None:
                if decoder.is_between_frames:
                    return None
                raise FrameError("the request was cut")
            if time.monotonic() >= until:
                if decoder.is_between_frames and patience_s == NEXT_S:
                    return None
                raise TimeoutError("the request comes too slowly")
            self.be_idle()

    def _arm(self, call: _Call, cancel: CancelSource) -> None:
        left_s = max(call.deadline - time.monotonic(), 0.0)
        self._report(WorkerState(phase="busy", deadline=call.deadline + GRACE_S, query_id=call.query.query_id))
        signal.setitimer(signal.ITIMER_REAL, left_s + GRACE_S)
        process_limits.limit_cpu((left_s + 2 * GRACE_S) * _CPUS)
        self._watch.begin(cancel)

    def _disarm(self) -> None:
        self._watch.end()
        signal.setitimer(signal.ITIMER_REAL, 0)
        process_limits.lift_cpu_limit()
        self.be_idle()

    def _answer(self, call: _Call, connection: socket.socket) -> None:
        """
        Run the statement and send what comes of it.

        Raises:
            _ClientLostError: It could not be sent.
        """
        sender = _Sender(connection, call.deadline)
        cancel = CancelSource()
        try:
            self._arm(call, cancel)
            engine = self._opened()
            last = _done(engine, call, cancel, sender)
        except QueryError as exc:
            last = _error_frame(exc)
        except _ClientLostError:
            raise
        except MemoryError:
            self.worn_out = True  # Whatever missed its memory may not be what it was.
            last = _error_frame(ResourceLimitError(_TOO_LARGE))
        except Exception:
            logger.exception("engine worker failed", extra={"fields": call.named})
            self.worn_out = True
            last = _error_frame(QueryError("The statement could not be run."))
        # The client is about to hang up, which is no news.
        self._watch.end()
        sender.send(last)

    def _opened(self) -> InProcessEngine:
        """
        Return the engine. When it is opened, memory is limited to what it uses and what `memory_limit` allows.

        Raises:
            EngineUnavailableError: It cannot be opened now.
        """
        if self._engine is None:
            try:
                engine = InProcessEngine(self._config, several_keys=False)
            except Exception as exc:
                logger.exception("engine worker has no engine")
                raise EngineUnavailableError("The engine cannot start: try again.") from exc
            self._engine = engine
            engine.run(Query(sql="SELECT 1")).close()  # What is made on first use belongs to the base.
            process_limits.give_memory_back()
            self._base = self._memory.use()
            self._left_bytes = self._base.resident
            self._memory.limit(self._allowance)
        return self._engine

    @property
    def _allowance(self) -> int:
        limit = self._config.query.memory_limit_bytes
        return limit + max(int(SPARE_PART * limit), SPARE_BYTES) - LIBRARY_BYTES

    def _settle(self, call: _Call, kept_bytes: int) -> None:
        """
        Give back what statements have left, if it is more than *kept_bytes*, and find out whether this is worn out.

        The last of them was that of *call*.
        """
        resident = self._memory.use().resident
        self._left_bytes = min(self._left_bytes, resident)  # A cache may have gone with its generation.
        if self._engine is None or resident < self._left_bytes + kept_bytes:
            return
        process_limits.give_memory_back()
        use = self._memory.use()
        self._left_bytes = use.resident
        cached = min(self._engine.snapshot_bytes, self._config.query.memory_limit_bytes)
        if (
            use.resident > self._base.resident + cached + WORN_BYTES
            or use.data > self._base.data + cached + self._allowance // 2
        ):
            fields = {"resident": use.resident, "data": use.data, **call.named}
            logger.info("engine worker keeps too much memory and is replaced", extra={"fields": fields})
            self.worn_out = True


class _ClientLostError(Exception):
    """The client is gone, or does not read its answer within the time limit."""


class _Sender:
    """Sends frames to a client that has until *deadline*, on the monotonic clock, to read them."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline

    def send(self, *frames: bytes | memoryview) -> None:
        """Send *frames*, in parts of any kind and without a copy; raises _ClientLostError."""
        try:
            rest = self._rest(frames, socket.MSG_DONTWAIT)
            if rest:
                self._wait_and_send(rest)
        except OSError as exc:
            raise _ClientLostError from exc

    def _wait_and_send(self, rest: list[memoryview]) -> None:
        until = max(self._deadline, time.monotonic() + LAST_WORD_S)
        while rest:
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self._connection.settimeout(left_s)
            rest = self._rest(rest)
        self._connection.settimeout(None)

    def _rest(self, frames: Sequence[bytes | memoryview], flags: int = 0) -> list[memoryview]:
        """Send as much as there is room for, and return what is left."""
        try:
            sent = self._connection.sendmsg(frames[:_MOST_PARTS], (), flags)
        except BlockingIOError:
            sent = 0
        rest = []
        for frame in frames:
            if sent < len(frame):
                rest.append(memoryview(frame)[sent:])
            sent = max(0, sent - len(frame))
        return rest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """
    A request, checked; `relations` are of "admit", `ahead_s` of "describe"; `deadline` is on the monotonic clock.

    With `wants_basis` the head of an answer tells the manifest whose data decides it, if that is all that does.
    """

    kind: _CallKind
    query: Query
    relations: frozenset[str]
    deadline: float
    ahead_s: float
    wants_basis: bool

    @property
    def named(self) -> dict[str, str]:
        """How the log names the statement, and whose it is."""
        return {"query_id": self.query.query_id, "fingerprint": self.query.fingerprint}


def _checked(fields: dict[str, Any], limit_s: float) -> _Call:
    """
    Make a call of the *fields* of a request, which may take *limit_s* seconds at most.

    Raises:
        FrameError: They are no request.
    """
    try:
        kind, encoding = fields["call"], fields.get("encoding", "json")
        if kind not in get_args(_CallKind) or encoding not in CONTENT_TYPES or not isinstance(fields["sql"], str):
            raise FrameError("a request is not well-formed")
        left_s = min(float(fields["timeout_s"]), limit_s)
        query = Query(
            sql=fields["sql"],
            encoding=encoding,
            parameters=_parameters(fields),
            query_id=str(fields["query_id"]),
            fingerprint=str(fields.get("fingerprint", "")),
            timeout_s=left_s,
        )
        relations = frozenset(map(str, fields.get("relations", ())))
        ahead_s = float(fields.get("ahead_s", 0.0))
    except (KeyError, TypeError, ValueError):
        raise FrameError("a request is not well-formed") from None
    return _Call(
        kind=kind,
        query=query,
        relations=relations,
        deadline=time.monotonic() + left_s,
        ahead_s=ahead_s,
        wants_basis="basis" in fields,
    )


def _parameters(fields: dict[str, Any]) -> Parameters | None:
    """Return the values of a request's parameters; raises ValueError."""
    if "arrow_parameters" in fields:
        return ArrowParameters(b64decode(fields["arrow_parameters"], validate=True))
    given: Parameters | None = fields.get("parameters")
    return given


def _done(engine: InProcessEngine, call: _Call, cancel: CancelSource, sender: _Sender) -> bytes:
    """Do what *call* asks for, and return the last frames of the answer."""
    match call.kind:
        case "admit":
            return _admitted(engine, call)
        case "describe":
            return _described(engine, call, cancel)
        case "run":
            return _run(engine, call, cancel, sender)


def _run(engine: InProcessEngine, call: _Call, cancel: CancelSource, sender: _Sender) -> bytes:
    """Run a statement and send its answer, but for what is returned: its last frames, all of them when it is short."""
    result = engine.run(call.query, cancel)
    unsent = 0
    try:
        columns = [[column.name, column.type] for column in result.columns]
        header: dict[str, Any] = {"columns": columns, "content_type": CONTENT_TYPES[call.query.encoding]}
        if call.wants_basis:
            header["basis"] = result.basis
        frames = [encode_json(Kind.HEADER, header)]
        chunks: list[Parts] = []
        for chunk in result.parts():
            chunks.append(chunk)
            unsent += length(chunk)
            if not result.whole or unsent >= _SEND_BYTES:
                sender.send(*frames, *_framed(chunks, call.query.encoding))
                frames, chunks, unsent = [], [], 0
    finally:
        result.close()
    last = encode_json(Kind.END, _told(result.timings))
    return b"".join([*frames, *_framed(chunks, call.query.encoding), last])


def _told(timings: QueryTimings) -> dict[str, float]:
    """Return what the last frame of an answer tells of it."""
    return {
        "rows": timings.rows,
        "bytes": timings.bytes,
        "parse_ms": round(timings.parse_ms, 3),
        "run_ms": round(timings.run_ms, 3),
        "encode_ms": round(timings.encode_ms, 3),
    }


def _framed(chunks: Sequence[Parts], encoding: Encoding) -> Iterator[bytes | memoryview]:
    """Give the frames of *chunks*. A message is one frame and keeps its bounds; the bytes of a stream have none."""
    if encoding == "flight":
        return chain.from_iterable(encode_data(*chunk, limit=MAX_DATA_BYTES) for chunk in chunks)
    return encode_data(*chain.from_iterable(chunks))


def _described(engine: InProcessEngine, call: _Call, cancel: CancelSource) -> bytes:
    description = engine.describe(call.query, cancel, ahead_s=call.ahead_s)
    schema = None if description.schema is None else b64encode(description.schema).decode("ascii")
    fields = {
        "schema": schema,
        "parameters": description.parameters,
        "is_lasting": description.is_lasting,
        "is_steady": description.is_steady,
    }
    if description.answer is None:
        return encode_json(Kind.END, {"description": fields})
    return b"".join(
        [
            encode_json(Kind.HEADER, {}),
            *_framed([[chunk] for chunk in description.answer.chunks], call.query.encoding),
            encode_json(Kind.END, {"description": fields, **_told(description.answer.timings)}),
        ]
    )


def _admitted(engine: InProcessEngine, call: _Call) -> bytes:
    statement = engine.admit(call.query.sql, call.relations)
    fields = {
        "sql": statement.sql,
        "kind": statement.kind,
        "relations": sorted(statement.relations),
        "parameters": sorted(statement.parameters),
    }
    return encode_json(Kind.END, {"statement": fields})


def _error_frame(error: QueryError) -> bytes:
    # What else a constructor was given is in the attributes.
    return encode_json(Kind.ERROR, {"code": error.code, "message": str(error), **vars(error)})


def _is_hung_up(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))

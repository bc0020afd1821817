"""
Serves a connection in an engine worker: reads a request, runs its statement, sends the response, waits for the next.

Two safeguards are armed before the worker reads the caller's SQL. The first stops the statement when its time is up or
its client has disconnected, but works only if DuckDB checks its interrupt flag. The second is SIGALRM with its default
action: the kernel ends the process, even if it is busy.
"""

import logging
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import chain
from typing import Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from queryengine.backends import backend_of
from queryengine.cancellation import HangUpWatch, Interruption
from queryengine.engine import Encoding, Parts, Query, length, timings_of
from queryengine.errors import EngineUnavailableError, QueryError, ResourceLimitError
from queryengine.execution.session_manager import EngineReplacedError
from queryengine.execution.statement_runner import StatementRunner
from queryengine.manifest import REPLACED_NAME
from queryengine.pool import messages
from queryengine.pool.frames import MAX_DATA_BYTES, FrameDecoder, FrameError, Kind, encode, encode_data
from queryengine.pool.messages import End, Failure, Header, Request, decoded
from runtimeconf.model import MIB, RuntimeConfig
from system import process_limits

logger = logging.getLogger(__name__)

#: Seconds that the process continues to run after a statement was told to stop.
GRACE_S = 1.0
#: Seconds within which a connected client must send its first request, and the next request after a response.
REQUEST_S = 10.0
NEXT_S = 0.5
#: The heartbeat interval while waiting for a request: half a second, as a `struct timeval`.
_HEARTBEAT = struct.pack("@ll", 0, 500_000)
#: Seconds for sending an error, or the end of a response, after the statement's own time is up.
LAST_WORD_S = 0.5
#: The number of bytes of a complete response to send at once.
_SEND_BYTES = 256 * 1024
_RECEIVE_BYTES = 64 * 1024
#: The size of the socket's send buffer. It has room for one piece of a response, so that the worker can compute the
#: next piece while the client reads. Linux grants less if `net.core.wmem_max` is lower.
_BUFFER_BYTES = 2 * MIB
#: The maximum number of parts per system call.
_MOST_PARTS = os.sysconf("SC_IOV_MAX")

_CPUS = len(os.sched_getaffinity(0))

#: Beyond its idle memory, a worker may use `memory_limit`, to which DuckDB limits its buffers. In addition, it may use
#: this fraction of the limit, or this number of bytes if that is more, for the encoders and for memory that DuckDB does
#: not count: batches, hash tables and blocks on their way to the disk do not shrink with the limit, and each thread has
#: its own.
SPARE_PART = 1 / 4
SPARE_BYTES = 96 * MIB + _CPUS * 16 * MIB
#: The part of these bytes for library pages that a statement is the first to use. RLIMIT_DATA does not count them.
LIBRARY_BYTES = 8 * MIB
#: A process without an engine is replaced after this many seconds, because a new process may get an engine.
RETRY_S = 5.0
#: A statement that took fewer seconds than this cannot have left much memory behind.
_SETTLE_AFTER_S = 0.005
#: The worker returns private memory to the system when it has grown by `KEPT_BYTES`, or by `SLACK_BYTES` once no
#: statement follows. The limits differ because a following statement would allocate the memory again. `KEPT_PART`
#: limits `KEPT_BYTES` to a sixteenth of `memory_limit`, because the next statement cannot use kept memory. A worker
#: that keeps more than `WORN_BYTES` beyond its idle memory, not counting snapshots in DuckDB's cache
#: and the copies for keys, is worn out.
KEPT_BYTES = 64 * MIB
KEPT_PART = 1 / 16
SLACK_BYTES = 4 * MIB
WORN_BYTES = 64 * MIB
#: Seconds without a statement after which a worker frees its cache of snapshots, which the kernel caches for all.
CACHE_S = 10.0

_CLOSING = encode(Kind.CLOSING, {})
_TOO_LARGE = "The statement needs more memory than is available."


Phase = Literal["booting", "idle", "busy", "unfit"]

_PHASES: tuple[Phase, ...] = get_args(Phase)
_RECORD = struct.Struct("!Bd32s")


class WorkerState(Struct, frozen=True, kw_only=True):
    """
    The state that a worker reports to its arbiter.

    The state is a fixed-size record at the start of the worker's heartbeat file, which gunicorn creates before it forks
    and which both processes keep open. Writing the record is one system call, and reading it does not require the
    worker's cooperation.

    An "unfit" worker accepts statements like an idle worker, but it has no engine and can only refuse them.

    `deadline` is the `time.monotonic()` at which a busy worker is killed by its own alarm; 0.0 for any other worker.

    `query_id` is truncated to 32 ASCII characters.
    """

    phase: Phase = "booting"
    deadline: float = 0.0
    query_id: str = ""

    def runs(self, query_id: str) -> bool:
        """Return True if the worker is busy with the statement *query_id*, which may be untruncated."""
        return self.phase == "busy" and self.query_id == query_id[:32]


def write_state(descriptor: int, state: WorkerState) -> None:
    """
    Write *state* to the heartbeat file *descriptor*.

    Raises:
        OSError: The file cannot be written.
    """
    query_id = state.query_id.encode("ascii", "replace")[:32]
    os.pwrite(descriptor, _RECORD.pack(_PHASES.index(state.phase), state.deadline, query_id), 0)


def read_state(descriptor: int) -> WorkerState:
    """Return the state last written to *descriptor*; "booting" if there is no state or it cannot be read."""
    try:
        phase, deadline, query_id = _RECORD.unpack(os.pread(descriptor, _RECORD.size, 0))
        return WorkerState(phase=_PHASES[phase], deadline=deadline, query_id=query_id.rstrip(b"\0").decode("ascii"))
    except (OSError, struct.error, IndexError, UnicodeDecodeError):
        return WorkerState()


def log_fields(query: Query) -> dict[str, str]:
    """Return the log fields that identify a statement and its owner."""
    fields = {"query_id": query.query_id, "fingerprint": query.fingerprint}
    return {**fields, "trace_id": query.trace_id} if query.trace_id else fields


def limited(request: Request, limit_s: float) -> Request:
    """Return *request* with a time limit of at most *limit_s* seconds."""
    left_s = request.query.timeout_s
    left_s = limit_s if left_s is None else max(0.0, min(left_s, limit_s))
    return replace(request, query=replace(request.query, timeout_s=left_s))


class StatementServer:
    """
    Serves one connection after another, with an engine that it opens when it first needs one.

    *report* publishes the state of this process. *stops* returns whether the process should end. `worn_out` becomes
    True when a new process should replace this one.
    """

    def __init__(self, config: RuntimeConfig, report: Callable[[WorkerState], None], stops: Callable[[], bool]) -> None:
        # The broker admits statements before a client connects. In a worker, statements run one at a time.
        self._config = replace(config, query=replace(config.query, workers=1))
        self._report = report
        self._stops = stops
        self._watch = HangUpWatch(GRACE_S)
        self._memory = process_limits.Memory()
        self._base = self._memory.use()
        self._left_bytes = self._base.resident  # when memory was last returned
        self._ended_at: float | None = None  # the last statement; None once the cache is free
        self._runner: StatementRunner | None = None
        self._has_failed = False  # to open the engine, which has been logged
        self._began = time.monotonic()
        limit = config.query.memory_limit_bytes
        self._allowance = limit + max(int(SPARE_PART * limit), SPARE_BYTES) - LIBRARY_BYTES
        self._kept_bytes = min(KEPT_BYTES, int(KEPT_PART * limit))
        self.worn_out = False

    def warm_up(self) -> None:
        """Open the engine if that is possible now."""
        with suppress(EngineReplacedError, EngineUnavailableError):
            self._opened()

    def serve(self, connection: socket.socket) -> None:
        """Serve the requests of *connection*, and close it. Errors are logged and not raised."""
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
        """Serve one request after another. Raises the same errors as `_received`."""
        decoder = FrameDecoder()
        patience_s = REQUEST_S
        last: Query | None = None
        self._ended_at = None
        while (request := self._received(connection, decoder, patience_s)) is not None:
            started = time.monotonic()
            is_lost = False
            try:
                self._answer(request, connection, started + (request.query.timeout_s or 0.0))
            except _ClientLostError:
                logger.debug("the answer could not be sent", extra={"fields": log_fields(request.query)})
                is_lost = True
            except EngineReplacedError:  # `_CLOSING` tells the client that the statement has not begun.
                is_lost = True
            finally:
                self._disarm()
            if time.monotonic() - started > _SETTLE_AFTER_S:
                last = request.query
                self._settle(last, self._kept_bytes)
            if is_lost or self.worn_out or self._stops():
                break
            patience_s = NEXT_S
        with suppress(OSError):
            connection.send(_CLOSING, socket.MSG_DONTWAIT)
        if last is not None:
            self._settle(last, SLACK_BYTES)
        self._ended_at = time.monotonic()

    def be_idle(self) -> None:
        """
        Report that no statement is running, and free the cache if none has run for `CACHE_S` seconds.

        The process is worn out if it has had no engine for `RETRY_S` seconds, or if its temporary directory was
        removed.
        """
        if self._runner is None:
            self.worn_out = self.worn_out or time.monotonic() - self._began >= RETRY_S
        elif not self._runner.scratch.keep():
            self.worn_out = True
        elif self._ended_at is not None and time.monotonic() - self._ended_at >= CACHE_S:
            self._ended_at = None
            self._runner.free_cache()
            process_limits.give_memory_back()
            self._left_bytes = self._memory.use().resident
        is_fit = self._runner is not None and self._runner.sessions.is_ready
        self._report(WorkerState(phase="idle" if is_fit else "unfit"))

    def close(self) -> None:
        """Close the engine."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def _received(self, connection: socket.socket, decoder: FrameDecoder, patience_s: float) -> Request | None:
        """
        Receive a request within *patience_s* seconds. Return None if no request follows a response.

        Raises FrameError or OSError if no request arrives, and MemoryError if it is too large for this process.
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
                        raise FrameError(f"expected a request, received {kind.name}")
                    return limited(decoded(payload, messages.REQUEST), self._config.query.timeout_s)
            elif data is not None:
                if decoder.is_between_frames:
                    return None
                raise FrameError("the request was cut")
            if time.monotonic() >= until:
                if decoder.is_between_frames and patience_s == NEXT_S:
                    return None
                raise TimeoutError("the request arrives too slowly")
            self.be_idle()

    def _arm(self, query_id: str, deadline: float, interruption: Interruption) -> None:
        left_s = max(deadline - time.monotonic(), 0.0)
        self._report(WorkerState(phase="busy", deadline=deadline + GRACE_S, query_id=query_id))
        signal.setitimer(signal.ITIMER_REAL, left_s + GRACE_S)
        process_limits.limit_cpu((left_s + 2 * GRACE_S) * _CPUS)
        self._watch.begin(interruption)

    def _disarm(self) -> None:
        self._watch.end()
        signal.setitimer(signal.ITIMER_REAL, 0)
        process_limits.lift_cpu_limit()
        self.be_idle()

    def _answer(self, request: Request, connection: socket.socket, deadline: float) -> None:
        """Run the statement and send its response until *deadline*. Raises _ClientLostError or EngineReplacedError."""
        send = partial(_send, connection, deadline)
        interruption = Interruption()
        try:
            self._arm(request.query.query_id, deadline, interruption)
            runner = self._opened()
            match request.call:
                case "admit":
                    last = _admitted(runner, request)
                case "describe":
                    last = _described(runner, request, interruption)
                case "run":
                    last = _run(runner, request, interruption, send)
        except (_ClientLostError, EngineReplacedError):
            raise
        except QueryError as exc:
            last = _error_frame(exc)
        except MemoryError:
            self.worn_out = True  # The failed allocation may have left the process in a bad state.
            last = _error_frame(ResourceLimitError(_TOO_LARGE))
        except Exception:
            logger.exception("engine worker failed", extra={"fields": log_fields(request.query)})
            self.worn_out = True
            last = _error_frame(QueryError("The statement could not be run."))
        # The client may hang up after the last frame.
        self._watch.end()
        send(last)

    def _opened(self) -> StatementRunner:
        """
        Return the engine. Raises EngineReplacedError, or EngineUnavailableError if it cannot start.

        Opening the engine limits memory to what the process then uses, plus the allowance from `memory_limit`.
        """
        if self._runner is None:
            try:
                runner = StatementRunner(
                    self._config, backend_of(self._config), self._config.engine_dir / REPLACED_NAME
                )
            except EngineReplacedError:
                raise
            except Exception as exc:
                if not self._has_failed:  # Each statement tries again, until the process is replaced.
                    self._has_failed = True
                    is_expected = isinstance(exc, OSError | EngineUnavailableError)  # Its message is sufficient.
                    fields = {"error": str(exc)}
                    logger.exception("engine worker has no engine", exc_info=not is_expected, extra={"fields": fields})
                raise EngineUnavailableError("The engine cannot start: try again.") from exc
            self._runner = runner
            # Memory that the engine allocates on first use counts as idle memory. A cluster may be unreachable.
            with suppress(EngineUnavailableError), ExitStack() as held:
                runner.run(Query(sql="SELECT 1"), Interruption(), held).close()
            process_limits.give_memory_back()
            self._base = self._memory.use()
            self._left_bytes = self._base.resident
            self._memory.limit(self._allowance)
        return self._runner

    def _settle(self, last: Query, kept_bytes: int) -> None:
        """Return memory if statements up to *last* left more than *kept_bytes*. The process may then be worn out."""
        resident = self._memory.use().resident
        self._left_bytes = min(self._left_bytes, resident)  # A closed session may have freed its cache.
        if self._runner is None or resident < self._left_bytes + kept_bytes:
            return
        process_limits.give_memory_back()
        use = self._memory.use()
        self._left_bytes = use.resident
        cached = min(self._runner.cached_bytes, self._config.query.memory_limit_bytes)
        if (
            use.resident > self._base.resident + cached + WORN_BYTES
            or use.data > self._base.data + cached + self._allowance // 2
        ):
            fields = {"resident": use.resident, "data": use.data, **log_fields(last)}
            logger.info("engine worker keeps too much memory and is replaced", extra={"fields": fields})
            self.worn_out = True


class _ClientLostError(Exception):
    """The client has hung up, or does not read its response within the time limit."""


def _send(connection: socket.socket, deadline: float, *frames: bytes | memoryview) -> None:
    """
    Send *frames* without copying. The client must read them before *deadline*, a time on the monotonic clock.

    Raises:
        _ClientLostError: The client has hung up, or has not read the frames in time.
    """
    try:
        if rest := _unsent(connection, frames, socket.MSG_DONTWAIT):
            _wait_and_send(connection, max(deadline, time.monotonic() + LAST_WORD_S), rest)
    except OSError as exc:
        raise _ClientLostError from exc


def _wait_and_send(connection: socket.socket, until: float, rest: list[memoryview]) -> None:
    while rest:
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        connection.settimeout(left_s)
        rest = _unsent(connection, rest)
    connection.settimeout(None)


def _unsent(connection: socket.socket, frames: Sequence[bytes | memoryview], flags: int = 0) -> list[memoryview]:
    """Send as much as the socket accepts, and return the rest."""
    try:
        sent = connection.sendmsg(frames[:_MOST_PARTS], (), flags)
    except BlockingIOError:
        sent = 0
    rest = []
    for frame in frames:
        if sent < len(frame):
            rest.append(memoryview(frame)[sent:])
        sent = max(0, sent - len(frame))
    return rest


def _run(runner: StatementRunner, request: Request, interruption: Interruption, send: Callable[..., None]) -> bytes:
    """Run a statement and send its response, except the last frames, which are returned (all, if it is small)."""
    encoding = request.query.encoding
    with ExitStack() as held:
        result = runner.run(request.query, interruption, held)
    unsent = 0
    try:
        frames = [encode(Kind.HEADER, Header(result.data_version))]
        chunks: list[Parts] = []
        for chunk in result.parts():
            chunks.append(chunk)
            unsent += length(chunk)
            if not result.is_complete or unsent >= _SEND_BYTES:
                send(*frames, encode(Kind.PROGRESS, result.timings), *_framed(chunks, encoding))
                frames, chunks, unsent = [], [], 0
    except QueryError as error:
        error.timings = result.timings
        raise
    finally:
        result.close()
    last = encode(Kind.END, End(timings=result.timings))
    return b"".join([*frames, *_framed(chunks, encoding), last])


def _framed(chunks: Sequence[Parts], encoding: Encoding) -> Iterator[bytes | memoryview]:
    """Return the frames of *chunks*. A Flight message is one frame. Other chunks form a byte stream."""
    if encoding == "flight":
        return chain.from_iterable(encode_data(*chunk, limit=MAX_DATA_BYTES) for chunk in chunks)
    return encode_data(*chain.from_iterable(chunks))


def _described(runner: StatementRunner, request: Request, interruption: Interruption) -> bytes:
    with ExitStack() as held:
        description = runner.describe(request.query, interruption, held, speculate_s=request.speculate_s)
    return encode(Kind.END, End(description=description))


def _admitted(runner: StatementRunner, request: Request) -> bytes:
    return encode(Kind.END, End(statement=runner.admit(request.query.sql, request.relations)))


def _error_frame(error: QueryError) -> bytes:
    # `vars` contains the constructor arguments of some errors, such as `limit_s`.
    arguments = {name: value for name, value in vars(error).items() if type(value) in (int, float)}
    message = str(error).encode("utf-8", "replace").decode()
    failure = Failure(code=error.code, message=message, arguments=arguments, timings=timings_of(error))
    return encode(Kind.ERROR, failure)

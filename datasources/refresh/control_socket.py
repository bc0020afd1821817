"""
Ask the refresher from another process: one JSON line each way over a Unix socket.

A request is `{"call": "datasets"}`, `{"call": "loaded"}`, `{"call": "history", "name": ...}` or `{"call": "refresh",
"name": ..., "refresh_sql": ..., "mode": ..., "jitter_max_s": ...}`; a reply is `{"result": ...}` or `{"error": {"code":
..., "message": ...}}`, with the other attributes of the error. The socket is in the state directory, which only its
owner may enter.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from datasources.control import DatasetControl, DatasetState, DatasetStatus, RefreshRun
from datasources.errors import DatasetError, DatasetsUnavailableError
from datasources.refresh import error_codec
from datasources.refresh.history import run_of
from queryengine.errors import EngineBusyError, QueryError
from runtimeconf.model import RefreshMode
from system.errors import StateDirectoryError
from system.state_socket import StateSocket

logger = logging.getLogger(__name__)

SOCKET_NAME = "control.sock"

#: The longest request and reply, in bytes. A request is nearly all refresh_sql, escaped.
MAX_REQUEST_BYTES = 8 * 1024 * 1024
MAX_REPLY_BYTES = 64 * 1024 * 1024

#: The length of the listen queue.
_BACKLOG = 128

#: Seconds between two checks whether the socket file still exists.
_POLL_S = 1.0

#: Seconds that either side waits for the other; a caller of the HTTP API waits with it.
_TIMEOUT_S = 5.0

#: Requests that are answered at the same time; others wait in the listen queue.
_MAX_CONNECTIONS = 32

#: The most requests at a time that have a refresh_sql checked, which takes as long as the engine takes. The other
#: connections stay free for requests that are answered at once.
_MAX_CHECKED = 8

Call = Literal["datasets", "loaded", "history", "refresh"]
_T = TypeVar("_T")
_CALLS: tuple[Call, ...] = get_args(Call)


class ProtocolError(Exception):
    """A line is not a valid request or reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call; `name` is "" for `datasets` and `loaded`, which concern all datasets."""

    call: Call
    name: str = ""
    refresh_sql: str | None = None
    mode: RefreshMode | None = None
    jitter_max_s: float = 0.0


def encode_request(request: Request) -> bytes:
    """Return the line of *request*."""
    return _line(asdict(request))


def decode_request(line: bytes) -> Request:
    """
    Return the request of *line*.

    Raises:
        ProtocolError: It is not a valid request.
    """
    fields = _fields(line)
    if not fields.keys() <= {"call", "name", "refresh_sql", "mode", "jitter_max_s"}:
        raise ProtocolError("a request has the fields call, name, refresh_sql, mode and jitter_max_s")
    name, refresh_sql = fields.get("name", ""), fields.get("refresh_sql")
    mode, jitter_max_s = fields.get("mode"), fields.get("jitter_max_s", 0.0)
    call = next((call for call in _CALLS if call == fields.get("call")), None)
    if call is None:
        raise ProtocolError("the call is datasets, loaded, history or refresh")
    if not isinstance(name, str) or not isinstance(refresh_sql, str | None):
        raise ProtocolError("the name and the refresh_sql are strings")
    if mode not in (None, *get_args(RefreshMode)):
        raise ProtocolError("the mode is full, append or null")
    if type(jitter_max_s) not in (int, float) or not 0 <= jitter_max_s < 1e9:
        raise ProtocolError("the jitter_max_s is a number of seconds")
    return Request(call=call, name=name, refresh_sql=refresh_sql, mode=mode, jitter_max_s=jitter_max_s)


def encode_reply(**fields: Any) -> bytes:
    """Return the line of a reply: its `result`, or the fields of its `error`."""
    return _line(fields)


def decode_reply(line: bytes, name: str = "") -> Any:
    """
    Return the result in *line*, which answers a request about the dataset *name*.

    Raises:
        DatasetError, QueryError: The error in *line*.
        ProtocolError: *line* is not a reply.
    """
    fields = _fields(line)
    if "result" in fields:
        return fields["result"]
    try:
        # An error names the dataset as the caller wrote it.
        error = error_codec.decode({**fields["error"], "name": name})
    except (KeyError, TypeError, ValueError) as exc:
        raise ProtocolError("a reply has a result or an error") from exc
    raise error


def answer(control: DatasetControl, line: bytes, checks: threading.Semaphore | None = None) -> bytes:
    """
    Return the reply of *control* to the request in *line*, which may hold anything.

    A request whose refresh_sql is checked takes one slot of *checks*, if given, or is refused if none is free.
    """
    try:
        return encode_reply(result=_result(control, decode_request(line), checks))
    except ProtocolError as exc:
        error = {"code": "protocol_error", "message": f"The control request is malformed: {exc}."}
    except (DatasetError, QueryError) as exc:
        error = error_codec.encode(exc)
    except Exception:
        logger.exception("A control request failed")
        error = error_codec.encode(DatasetError("The refresher failed; see the log of the runtime."))
    return encode_reply(error=error)


def _result(control: DatasetControl, request: Request, checks: threading.Semaphore | None) -> Any:
    if request.call == "datasets":
        return [asdict(state) for state in control.datasets()]
    if request.call == "loaded":
        return control.is_loaded()
    if request.call == "history":
        return [asdict(run) for run in control.history(request.name)]
    slots = checks if request.refresh_sql is not None else None
    if slots is not None and not slots.acquire(blocking=False):
        raise EngineBusyError
    try:
        run = control.request_refresh(
            request.name, request.refresh_sql, mode=request.mode, jitter_max_s=request.jitter_max_s
        )
        return asdict(run)
    finally:
        if slots is not None:
            slots.release()


class ControlServer:
    """
    Answers for *control* on the socket of *state_dir*, in threads of its own.

    Raises:
        StateDirectoryError: The socket cannot be created.
    """

    def __init__(self, state_dir: Path, control: DatasetControl) -> None:
        self._path = state_dir / SOCKET_NAME
        self._control = control
        self._connections = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._checks = threading.BoundedSemaphore(_MAX_CHECKED)
        self._is_closed = threading.Event()
        self._is_reported = False
        try:
            self._socket = StateSocket(self._path, _BACKLOG)
        except OSError as exc:
            raise StateDirectoryError(
                f"The control socket cannot be made in the state directory: {exc.strerror or exc}."
            ) from exc
        self._thread = threading.Thread(target=self._accept, name="control-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accept no more requests; those in progress are answered."""
        self._is_closed.set()
        # A connection ends the wait in `accept` at once; `shutdown` would not.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as waker:
            waker.setblocking(False)
            waker.connect(str(self._path))
        self._thread.join()
        self._socket.close()

    def _accept(self) -> None:
        while True:
            self._connections.acquire()
            connection = self._next_connection()
            if connection is None:
                return
            threading.Thread(target=self._serve, args=(connection,), name="control-request", daemon=True).start()

    def _next_connection(self) -> socket.socket | None:
        """Wait for a client and keep the socket file in place meanwhile; None when closed."""
        while not self._is_closed.is_set():
            self._socket.listener.settimeout(_POLL_S)
            try:
                connection, _ = self._socket.listener.accept()
                if not self._is_closed.is_set():
                    return connection
                connection.close()
            except TimeoutError:
                self._restore_socket()
            except OSError:  # closed, or out of descriptors
                self._is_closed.wait(_POLL_S)
        return None

    def _restore_socket(self) -> None:
        if self._socket.is_there:
            return
        try:
            again = StateSocket(self._path, _BACKLOG)
        except OSError as exc:
            if not self._is_reported:
                logger.error("The control socket is gone and cannot be made again: %s", exc.strerror or exc)  # noqa: TRY400
            self._is_reported = True
            return
        logger.warning("The control socket was gone from the state directory: it is made again")
        self._is_reported = False
        self._socket.listener.close()
        self._socket = again

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError):
                connection.settimeout(_TIMEOUT_S)
                line = _read_line(connection, MAX_REQUEST_BYTES)
                connection.sendall(answer(self._control, line, self._checks))
        finally:
            self._connections.release()


class ControlClient:
    """
    The `DatasetControl` of a process that does not hold the lock: it asks the one that does.

    Args:
        state_dir: The directory of the socket.
        judging_s: Extra seconds to wait for the check of a `refresh_sql`.
    """

    def __init__(self, state_dir: Path, *, judging_s: float = 0.0) -> None:
        self._path = str(state_dir / SOCKET_NAME)
        self._judging_s = judging_s

    def datasets(self) -> tuple[DatasetState, ...]:
        """As `DatasetControl.datasets`; also raises `DatasetsUnavailableError`."""
        return self._ask(Request(call="datasets"), lambda result: tuple(map(_state_of, result)))

    def is_loaded(self) -> bool:
        """As `DatasetControl.is_loaded`; also raises `DatasetsUnavailableError`."""
        return self._ask(Request(call="loaded"), lambda result: result is True)

    def request_refresh(
        self, name: str, refresh_sql: str | None = None, *, mode: RefreshMode | None = None, jitter_max_s: float = 0.0
    ) -> RefreshRun:
        """As `DatasetControl.request_refresh`."""
        request = Request(call="refresh", name=name, refresh_sql=refresh_sql, mode=mode, jitter_max_s=jitter_max_s)
        return self._ask(request, run_of)

    def history(self, name: str) -> tuple[RefreshRun, ...]:
        """As `DatasetControl.history`."""
        return self._ask(Request(call="history", name=name), lambda result: tuple(map(run_of, result)))

    def _ask(self, request: Request, decode: Callable[[Any], _T]) -> _T:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(_TIMEOUT_S)
                connection.connect(self._path)
                connection.sendall(encode_request(request))
                connection.settimeout(_TIMEOUT_S + (0.0 if request.refresh_sql is None else self._judging_s))
                line = _read_line(connection, MAX_REPLY_BYTES)
            return decode(decode_reply(line, request.name))
        except (OSError, ProtocolError, TypeError, ValueError) as exc:
            raise DatasetsUnavailableError from exc


def _state_of(item: dict[str, Any]) -> DatasetState:
    state = DatasetState(**item)
    if state.status not in get_args(DatasetStatus):
        raise ValueError("not a state")
    return state


def _read_line(connection: socket.socket, limit: int) -> bytes:
    """Return at most *limit* bytes of one line; less than a line if the other side ends early."""
    with connection.makefile("rb") as stream:
        return stream.readline(limit)


def _line(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode("ascii") + b"\n"


def _fields(line: bytes) -> dict[str, Any]:
    if not line.endswith(b"\n"):
        raise ProtocolError("the line is cut short or too long")
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        raise ProtocolError("it is not JSON") from None
    if not isinstance(fields, dict):
        raise ProtocolError("it is not a JSON object")
    return fields

"""
Asking the refresher from another process: one JSON line there, one back, over a Unix socket.

A request is `{"call": "datasets"}`, `{"call": "loaded"}`, `{"call": "history", "name": ...}` or `{"call": "refresh",
"name": ..., "refresh_sql": ..., "mode": ..., "jitter_max_s": ...}`; a reply is `{"result": ...}` or `{"error": {"code":
..., "message": ...}}`, with more fields in the error where its class takes more. The socket lies in the state
directory, which only its owner may enter.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from datasources.control import DatasetControl, DatasetState, DatasetStatus, RefreshRun
from datasources.errors import (
    AccelerationDisabledError,
    DatasetError,
    DatasetsUnavailableError,
    TimeColumnMissingError,
    UnknownDatasetError,
)
from datasources.refresh.history import run_of
from queryengine.errors import EngineBusyError, QueryError
from queryengine.pool.client import ERRORS
from runtimeconf.model import RefreshMode
from system.errors import StateDirectoryError
from system.state_socket import StateSocket

logger = logging.getLogger(__name__)

SOCKET_NAME = "control.sock"

#: The longest request (a refresh_sql, escaped, makes nearly all of it) and the longest reply, in bytes.
MAX_REQUEST_BYTES = 8 * 1024 * 1024
MAX_REPLY_BYTES = 64 * 1024 * 1024

#: Connections that wait to be taken.
_BACKLOG = 128

#: Seconds between two looks whether the socket is still there.
_LOOK_S = 1.0

#: Seconds that either side waits for the other. A caller of the HTTP API waits behind it.
_TIMEOUT_S = 5.0

#: Requests that are answered at the same time; more wait in the listen queue.
_MAX_CONNECTIONS = 32

#: Of these, so many at most may have a refresh_sql judged, which takes as long as the engine takes: the rest is for
#: what is answered at once.
_MAX_JUDGED = 8

Call = Literal["datasets", "loaded", "history", "refresh"]
_CALLS: tuple[Call, ...] = get_args(Call)

#: What a request about a dataset of this name raises here, by the code that the other side gives.
_ERRORS: Mapping[str, Callable[[str], DatasetError]] = {
    UnknownDatasetError.code: UnknownDatasetError,
    AccelerationDisabledError.code: AccelerationDisabledError,
    TimeColumnMissingError.code: TimeColumnMissingError,
    DatasetsUnavailableError.code: lambda _name: DatasetsUnavailableError(),
}


class ProtocolError(Exception):
    """A line is not a request, or not a reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call; `name` is "" for `datasets` and `loaded`, which are about all of them."""

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
        ProtocolError: It is none.
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
        raise ProtocolError("the name and the refresh_sql are texts")
    if mode not in (None, *get_args(RefreshMode)):
        raise ProtocolError("the mode is full, append or null")
    if type(jitter_max_s) not in (int, float) or not 0 <= jitter_max_s < 1e9:
        raise ProtocolError("the jitter_max_s is a number of seconds")
    return Request(call=call, name=name, refresh_sql=refresh_sql, mode=mode, jitter_max_s=jitter_max_s)


def encode_error(code: str, message: str, **more: Any) -> bytes:
    """Return the line of a reply that says what is wrong; *more* is what the error is made of beside its message."""
    return _line({"error": {**more, "code": code, "message": message}})


def decode_reply(line: bytes, name: str = "") -> Any:
    """
    Return the result in *line*, which answers a request about the dataset *name*.

    Raises:
        DatasetError, QueryError: What the other side says.
        ProtocolError: It is no reply.
    """
    fields = _fields(line)
    if "result" in fields:
        return fields["result"]
    error = fields.get("error")
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        raise ProtocolError("a reply has a result or an error")
    raise _error_of(error, name)


def _error_of(fields: dict[str, Any], name: str) -> DatasetError | QueryError:
    code = str(fields.get("code"))
    if code in _ERRORS:
        return _ERRORS[code](name)
    if code not in ERRORS:
        return DatasetError(fields["message"])
    try:
        return ERRORS[code](fields)
    except (KeyError, TypeError, ValueError) as exc:
        raise ProtocolError("an error lacks what it is made of") from exc


def answer(control: DatasetControl, line: bytes, judged: threading.Semaphore | None = None) -> bytes:
    """
    Return the reply of *control* to the request in *line*, whatever that holds.

    With *judged*, a request that has a statement judged takes one place of it, or is told that there is none.
    """
    try:
        return _line({"result": _result(control, decode_request(line), judged)})
    except ProtocolError as exc:
        return encode_error("protocol_error", f"The control request is malformed: {exc}.")
    except DatasetError as exc:
        return encode_error(exc.code, str(exc))
    except QueryError as exc:
        return encode_error(exc.code, str(exc), **vars(exc))
    except Exception:
        # The next request may well be answered: the caller is told, and the log has the reason.
        logger.exception("A control request failed")
        return encode_error(DatasetError.code, "The refresher failed; the log of the runtime tells why.")


def _result(control: DatasetControl, request: Request, judged: threading.Semaphore | None) -> Any:
    if request.call == "datasets":
        return [asdict(state) for state in control.datasets()]
    if request.call == "loaded":
        return control.is_loaded()
    if request.call == "history":
        return [asdict(run) for run in control.history(request.name)]
    with _place(judged if request.refresh_sql is not None else None):
        return asdict(
            control.request_refresh(
                request.name, request.refresh_sql, mode=request.mode, jitter_max_s=request.jitter_max_s
            )
        )


@contextmanager
def _place(places: threading.Semaphore | None) -> Iterator[None]:
    """
    Hold one of *places*, if there are any to hold.

    Raises:
        EngineBusyError: None is free.
    """
    if places is None:
        yield
        return
    if not places.acquire(blocking=False):
        raise EngineBusyError
    try:
        yield
    finally:
        places.release()


class ControlServer:
    """
    Answers for *control* on the socket of *state_dir*, in threads of its own.

    Raises:
        StateDirectoryError: The socket cannot be made.
    """

    def __init__(self, state_dir: Path, control: DatasetControl) -> None:
        self._path = state_dir / SOCKET_NAME
        self._control = control
        self._places = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._judged = threading.BoundedSemaphore(_MAX_JUDGED)
        self._is_closed = threading.Event()
        self._is_missed = False
        try:
            self._socket = StateSocket(self._path, _BACKLOG)
        except OSError as exc:
            raise StateDirectoryError(
                f"The control socket cannot be made in the state directory: {exc.strerror or exc}."
            ) from exc
        self._thread = threading.Thread(target=self._accept, name="control-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no more requests; those under way are answered."""
        self._is_closed.set()
        with suppress(OSError):
            self._socket.listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _accept(self) -> None:
        while True:
            self._places.acquire()
            connection = self._next_connection()
            if connection is None:
                return
            threading.Thread(target=self._serve, args=(connection,), name="control-request", daemon=True).start()

    def _next_connection(self) -> socket.socket | None:
        """Wait for a client, and see meanwhile that the socket is where clients look for it; None when closed."""
        while not self._is_closed.is_set():
            self._socket.listener.settimeout(_LOOK_S)
            try:
                return self._socket.listener.accept()[0]
            except TimeoutError:
                self._make_again_if_gone()
            except OSError:  # closed, or no descriptor is left for now
                self._is_closed.wait(_LOOK_S)
        return None

    def _make_again_if_gone(self) -> None:
        if self._socket.is_there:
            return
        try:
            again = StateSocket(self._path, _BACKLOG)
        except OSError as exc:
            if not self._is_missed:
                logger.error("The control socket is gone and cannot be made again: %s", exc.strerror or exc)  # noqa: TRY400
            self._is_missed = True
            return
        logger.warning("The control socket was gone from the state directory: it is made again")
        self._is_missed = False
        self._socket.listener.close()
        self._socket = again

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError):
                connection.settimeout(_TIMEOUT_S)
                line = _read_line(connection, MAX_REQUEST_BYTES)
                connection.sendall(answer(self._control, line, self._judged))
        finally:
            self._places.release()


class ControlClient:
    """
    The `DatasetControl` of a process that does not hold the lock: it asks the one that does.

    Args:
        state_dir: Where the other process has its socket.
        judging_s: Seconds that it may take, beside its answer, to have a `refresh_sql` judged.
    """

    def __init__(self, state_dir: Path, *, judging_s: float = 0.0) -> None:
        self._path = str(state_dir / SOCKET_NAME)
        self._judging_s = judging_s

    def datasets(self) -> tuple[DatasetState, ...]:
        """As `DatasetControl.datasets`; also raises `DatasetsUnavailableError`."""
        result = self._ask(Request(call="datasets"))
        return _decoded(lambda: tuple(_state_of(item) for item in result))

    def is_loaded(self) -> bool:
        """As `DatasetControl.is_loaded`; also raises `DatasetsUnavailableError`."""
        return self._ask(Request(call="loaded")) is True

    def request_refresh(
        self, name: str, refresh_sql: str | None = None, *, mode: RefreshMode | None = None, jitter_max_s: float = 0.0
    ) -> RefreshRun:
        """As `DatasetControl.request_refresh`."""
        request = Request(call="refresh", name=name, refresh_sql=refresh_sql, mode=mode, jitter_max_s=jitter_max_s)
        result = self._ask(request)
        return _decoded(lambda: run_of(result))

    def history(self, name: str) -> tuple[RefreshRun, ...]:
        """As `DatasetControl.history`."""
        result = self._ask(Request(call="history", name=name))
        return _decoded(lambda: tuple(run_of(item) for item in result))

    def _ask(self, request: Request) -> Any:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(_TIMEOUT_S)
                connection.connect(self._path)
                connection.sendall(encode_request(request))
                connection.settimeout(_TIMEOUT_S + (0.0 if request.refresh_sql is None else self._judging_s))
                line = _read_line(connection, MAX_REPLY_BYTES)
            return decode_reply(line, request.name)
        except (OSError, ProtocolError) as exc:
            raise DatasetsUnavailableError from exc


_T = TypeVar("_T")


def _decoded(decode: Callable[[], _T]) -> _T:
    try:
        return decode()
    except (TypeError, ValueError) as exc:
        raise DatasetsUnavailableError from exc


def _state_of(item: dict[str, Any]) -> DatasetState:
    state = DatasetState(**item)
    if state.status not in get_args(DatasetStatus):
        raise ValueError("not a state")
    return state


def _read_line(connection: socket.socket, limit: int) -> bytes:
    """Return one line, at most *limit* bytes of it; less than a line when the other side ends early."""
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

"""
Sends calls to the refresher from another process, with one JSON line in each direction over a Unix socket.

A request is `{"call": "datasets"}`, `{"call": "sharing"}`, `{"call": "waiting_for", "generation": ...}`, `{"call":
"history", "name": ...}` or `{"call": "refresh", "name": ..., "admitted_sql": ..., "mode": ..., "jitter_max_s": ...,
"caller": ...}`. A reply is `{"result": ...}` or `{"error": {"code": ..., "message": ...}}`. The socket is in the state
directory. Only its owner may use it, because the refresher relies on its clients to check the SQL that they send.
"""

import json
import logging
import socket
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Unpack

import msgspec

from datasources.control import (
    MAX_CALLER_LENGTH,
    AdmittedSql,
    DatasetControl,
    DatasetState,
    Loaded,
    RefreshOptions,
    RefreshRun,
    SharingState,
)
from datasources.errors import DatasetError, DatasetsUnavailableError, error_fields, error_from
from runtimeconf.model import RefreshMode
from system.errors import StateDirectoryError
from system.state_socket import StateSocket

logger = logging.getLogger(__name__)

SOCKET_NAME = "control.sock"

#: The maximum sizes of requests and replies, in bytes. A request is mostly escaped SQL.
MAX_REQUEST_BYTES = 8 * 1024 * 1024
MAX_REPLY_BYTES = 64 * 1024 * 1024

#: The length of the listen queue.
_BACKLOG = 128

#: Seconds between checks that the socket file still exists.
_POLL_S = 1.0

#: Seconds that each side waits for the other. An HTTP client may be waiting for the reply.
_TIMEOUT_S = 5.0

#: The maximum number of concurrent requests. Others wait in the listen queue.
_MAX_CONNECTIONS = 32

_T = TypeVar("_T")


class ProtocolError(Exception):
    """A line is not a valid request or reply."""


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    One call. `name` is "" for calls that concern all datasets.

    The SQL field is called `admitted_sql` so that requests from another release, which may send unchecked SQL, are
    refused.
    """

    call: Literal["datasets", "sharing", "waiting_for", "history", "refresh"]
    name: str = ""
    admitted_sql: AdmittedSql | None = None
    mode: RefreshMode | None = None
    jitter_max_s: Annotated[float, msgspec.Meta(ge=0, lt=1e9)] = 0.0
    caller: Annotated[str, msgspec.Meta(max_length=MAX_CALLER_LENGTH)] = ""
    generation: int = 0  # of the configuration for `waiting_for` and for `admitted_sql`; 0 means any


def encode(fields: Mapping[str, Any]) -> bytes:
    """Return a request or reply as one line. A reply has a `result`, or the fields of an `error`."""
    return json.dumps(fields, separators=(",", ":")).encode("ascii") + b"\n"


def decode_request(line: bytes) -> Request:
    """
    Return the request in *line*.

    Raises:
        ProtocolError: The line is not a valid request.
    """
    try:
        return msgspec.convert(_fields(line), Request)
    except msgspec.ValidationError:
        raise ProtocolError("it does not have the required fields") from None


def decode_reply(line: bytes, name: str = "") -> Any:
    """
    Return the result in *line*, the reply to a request about the dataset *name*.

    Raises:
        DatasetError: The error in *line*.
        ProtocolError: *line* is not a reply.
    """
    fields = _fields(line)
    if "result" in fields:
        return fields["result"]
    try:
        error = error_from(fields["error"], name)
    except (KeyError, ValueError) as exc:
        raise ProtocolError("a reply has a result or an error") from exc
    raise error


def answer(control: DatasetControl, line: bytes) -> bytes:
    """Return the reply of *control* to the request in *line*, which is untrusted."""
    try:
        return encode({"result": _result(control, decode_request(line))})
    except ProtocolError as exc:
        error = {"code": "protocol_error", "message": f"The control request is malformed: {exc}."}
    except DatasetError as exc:
        error = error_fields(exc)
    except Exception:
        logger.exception("A control request failed")
        error = error_fields(DatasetError("The refresher failed; see the runtime log."))
    return encode({"error": error})


def _result(control: DatasetControl, request: Request) -> Any:
    result: object
    generation = getattr(control, "generation", 0)
    match request.call:
        case "datasets":
            result = control.datasets()
        case "sharing":
            result = control.sharing()
        case "waiting_for":
            if request.generation > generation:
                raise DatasetsUnavailableError  # This process was restarted and has not yet loaded the configuration.
            result = control.waiting_for() if request.generation in {0, generation} else None
        case "history":
            result = control.history(request.name)
        case "refresh":
            if request.admitted_sql is not None and request.generation not in {0, generation}:
                raise DatasetsUnavailableError  # It was admitted for the datasets of another configuration.
            result = control.request_refresh(
                request.name,
                request.admitted_sql,
                mode=request.mode,
                jitter_max_s=request.jitter_max_s,
                caller=request.caller,
            )
    return msgspec.to_builtins(result)


class ControlServer:
    """
    Serves `control` on the socket in *state_dir*, in separate threads. `control` can be replaced at any time.

    Raises:
        StateDirectoryError: The socket cannot be created.
    """

    def __init__(self, state_dir: Path, control: DatasetControl) -> None:
        self._path = state_dir / SOCKET_NAME
        self.control = control
        self._connections = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._is_closed = threading.Event()
        self._is_reported = False
        try:
            self._socket = StateSocket(self._path, _BACKLOG)
        except OSError as exc:
            raise StateDirectoryError(
                f"The control socket cannot be created in the state directory: {exc.strerror or exc}."
            ) from exc
        self._thread = threading.Thread(target=self._accept, name="control-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop accepting requests. Requests in progress still get replies."""
        self._is_closed.set()
        # A connection ends the wait in `accept` immediately; `shutdown` would not.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as waker:
            waker.setblocking(False)
            waker.connect(str(self._path))
        self._thread.join()
        self._socket.close()

    def _accept(self) -> None:
        """Until closed, serve each client in a thread and make sure that the socket file stays in place."""
        while not self._is_closed.is_set():
            self._connections.acquire()
            self._socket.listener.settimeout(_POLL_S)
            try:
                connection, _ = self._socket.listener.accept()
            except OSError as exc:
                self._connections.release()
                if isinstance(exc, TimeoutError):
                    self._restore_socket()
                else:  # out of descriptors
                    self._is_closed.wait(_POLL_S)
            else:
                threading.Thread(target=self._serve, args=(connection,), name="control-request", daemon=True).start()

    def _restore_socket(self) -> None:
        if self._socket.is_there:
            return
        try:
            again = StateSocket(self._path, _BACKLOG)
        except OSError as exc:
            if not self._is_reported:
                logger.error("The control socket is missing and cannot be recreated: %s", exc.strerror or exc)  # noqa: TRY400
            self._is_reported = True
            return
        logger.warning("The control socket was missing from the state directory and was recreated")
        self._is_reported = False
        self._socket.listener.close()
        self._socket = again

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError):
                connection.settimeout(_TIMEOUT_S)
                line = _read_line(connection, MAX_REQUEST_BYTES)
                connection.sendall(answer(self.control, line))
        finally:
            self._connections.release()


class ControlClient:
    """The `DatasetControl` of a process that does not hold the lock of *state_dir*. It asks the lock holder."""

    def __init__(
        self,
        state_dir: Path,
        awaited: Collection[str] | None = None,
        generation: int = 0,
        *,
        gets_stale: bool = False,
    ) -> None:
        self._path = str(state_dir / SOCKET_NAME)
        self._generation = generation
        self._loaded = Loaded(state_dir, lambda: self._is_loaded(generation), awaited, gets_stale=gets_stale)

    def datasets(self) -> tuple[DatasetState, ...]:
        """See `DatasetControl.datasets`. Also raises `DatasetsUnavailableError`."""
        return self._ask(Request(call="datasets"), tuple[DatasetState, ...])

    def sharing(self) -> SharingState | None:
        """See `DatasetControl.sharing`."""
        kind: Any = SharingState | None
        found: SharingState | None = self._ask(Request(call="sharing"), kind)
        return found

    def waiting_for(self) -> tuple[str, ...]:
        """See `DatasetControl.waiting_for`. Applies to the refresher's current configuration."""
        return self._ask(Request(call="waiting_for"), tuple[str, ...])

    def is_answered(self) -> bool:
        """Return False if a process holds the lock but does not respond. Return True if no process holds the lock."""
        try:
            self.waiting_for()
        except DatasetError as error:
            # BlockingIOError: the process accepts no connections, and its listen queue is full.
            return not isinstance(error.__cause__, TimeoutError | BlockingIOError)
        return True

    def is_loaded(self) -> bool:
        """See `DatasetControl.is_loaded`."""
        return self._loaded.check()

    def is_own(self) -> bool:
        """See `datasources.control.is_own`."""
        return self._is_loaded(self._generation) is not None

    def request_refresh(
        self, name: str, sql: AdmittedSql | None = None, **options: Unpack[RefreshOptions]
    ) -> RefreshRun:
        """See `DatasetControl.request_refresh`."""
        request = Request(call="refresh", name=name, admitted_sql=sql, generation=self._generation, **options)
        return self._ask(request, RefreshRun)

    def history(self, name: str) -> tuple[RefreshRun, ...]:
        """See `DatasetControl.history`."""
        return self._ask(Request(call="history", name=name), tuple[RefreshRun, ...])

    def _is_loaded(self, generation: int) -> bool | None:
        """Return `is_loaded` for the configuration *generation*; None if the refresher has a later configuration."""
        request = Request(call="waiting_for", generation=generation)
        kind: Any = tuple[str, ...] | None
        waiting_for = self._ask(request, kind)
        return None if waiting_for is None else not waiting_for

    def _ask(self, request: Request, kind: type[_T]) -> _T:
        """Return the result of *request*, converted to *kind*."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(_TIMEOUT_S)
                connection.connect(self._path)
                connection.sendall(encode(msgspec.to_builtins(request)))
                line = _read_line(connection, MAX_REPLY_BYTES)
            return msgspec.convert(decode_reply(line, request.name), kind)
        except (OSError, ProtocolError, msgspec.ValidationError) as exc:
            raise DatasetsUnavailableError from exc


def _read_line(connection: socket.socket, limit: int) -> bytes:
    """Return at most *limit* bytes of one line. The line is incomplete if the other side closes early."""
    with connection.makefile("rb") as stream:
        return stream.readline(limit)


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

"""
`mcp`: the Model Context Protocol over standard input and output, for agents and editors on this machine.

The protocol and the tools are those of `/v1/mcp`, in `mcpapi`. Their statements go to `/v1/sql`, so the runtime needs
no `runtime.mcp`.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TextIO

import mcpapi.messages as rpc
from mcpapi.errors import INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR, RpcError, ToolError
from mcpapi.messages import Message, RequestId
from mcpapi.server import MAX_BATCH, Server
from runtimeclient.client import RuntimeClient
from runtimeclient.commands.base import Command, Invocation
from runtimeclient.connection import STANDARD_INPUT, connect
from runtimeclient.distribution import version
from runtimeclient.errors import ClientError, NotAuthorisedError, RequestRefusedError, UsageError
from runtimeclient.http.endpoint import masked
from runtimeclient.http.results import JSON_WITH_SCHEMA, SqlResult
from runtimeclient.output.writer import TextStream

#: The length of one message.
MAX_MESSAGE_BYTES = 4 << 20
#: How many calls run at once; more wait.
MAX_CALLS = 8


class _Call:
    """One request, with a connection of its own, so that it can be cancelled: `mcpapi.tools.Runtime`."""

    def __init__(self, client: RuntimeClient) -> None:
        self._client = client
        self.is_cancelled = False

    def run(self, sql: str) -> "_Statement":
        try:
            return _Statement(self._client.sql(sql, JSON_WITH_SCHEMA), self._client.api_key)
        except ClientError as exc:
            raise _tool_error(exc, self._client.api_key) from exc

    def datasets(self) -> list[dict[str, Any]]:
        try:
            return [dict(item) for item in self._client.dataset_items()]
        except ClientError as exc:
            raise _tool_error(exc, self._client.api_key) from exc

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def cancel(self) -> None:
        """Break the connection, which stops the statement. The request gets no response."""
        self.is_cancelled = True
        self._client.break_off()


class _Statement:
    """A running statement: `mcpapi.results.Chunks`."""

    def __init__(self, result: SqlResult, api_key: str | None) -> None:
        self._result, self._api_key = result, api_key

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._result.chunks()
        except ClientError as exc:
            raise _tool_error(exc, self._api_key) from exc

    def close(self) -> None:
        self._result.close()


def _tool_error(exc: ClientError, api_key: str | None) -> ToolError:
    match exc:
        case RequestRefusedError(code=code, detail=detail):
            return ToolError(code, masked(detail, api_key))
        case NotAuthorisedError():
            return ToolError("not_authorised", masked(str(exc), api_key))
    return ToolError("connection_failed", masked(str(exc), api_key))


class StdioServer:
    """Answers the messages of one client until its input ends. *connect* makes the connection of one request."""

    def __init__(self, connect: Callable[[], RuntimeClient], out: TextStream) -> None:
        self._connect = connect
        self._out = out
        self._lock = threading.Lock()
        self._calls: dict[RequestId, _Call] = {}

    def serve(self, lines: Iterable[str | bytes | None]) -> None:
        """Answer each line; None is one that was too long."""
        with ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="mcp") as pool:
            try:
                for line in lines:
                    self._take(line, pool)
            finally:
                with self._lock:
                    running = list(self._calls.values())
                for call in running:
                    call.cancel()

    def _take(self, line: str | bytes | None, pool: ThreadPoolExecutor) -> None:
        try:
            values, is_batch = _messages(line)
        except RpcError as error:
            self._write(rpc.failure(None, error))
            return
        jobs = [job for job in map(self._begin, values) if job is not None]
        if jobs:
            pool.submit(self._finish, jobs, is_batch=is_batch)

    def _begin(self, value: Any) -> Callable[[], dict[str, Any] | None] | None:
        """Return what answers the message in *value*; None if it gets no response."""
        try:
            message = rpc.message_of(value)
            if message is None or message.is_notification:
                if message is not None and message.method == "notifications/cancelled":
                    self._cancel(message.params.get("requestId"))
                return None
            return partial(self._answer, message, self._register(message.id))
        except RpcError as error:
            return partial(rpc.failure, rpc.id_of(value), error)

    def _register(self, request_id: RequestId) -> _Call:
        try:
            call = _Call(self._connect())
        except ClientError as exc:
            raise RpcError(INTERNAL_ERROR, str(exc)) from exc
        with self._lock:
            if self._calls.setdefault(request_id, call) is not call:
                raise RpcError(INVALID_REQUEST, "Another request with this id is running.")
        return call

    def _answer(self, message: Message, call: _Call) -> dict[str, Any] | None:
        try:
            answer = rpc.result(message.id, Server(call, release=version() or "0").answer(message))
        except RpcError as error:
            answer = rpc.failure(message.id, error)
        except Exception:  # noqa: BLE001 (without a response, the client would wait for ever)
            answer = rpc.failure(message.id, RpcError(INTERNAL_ERROR, "The response of the runtime is unexpected."))
        finally:
            with self._lock:
                del self._calls[message.id]
            call.close()
        return None if call.is_cancelled else answer

    def _finish(self, jobs: Sequence[Callable[[], dict[str, Any] | None]], *, is_batch: bool) -> None:
        answers = [answer for job in jobs if (answer := job()) is not None]
        if is_batch and answers:
            self._write(answers)
        elif answers:
            self._write(answers[0])

    def _cancel(self, request_id: object) -> None:
        with self._lock:
            call = self._calls.get(request_id) if isinstance(request_id, str | int) else None
        if call is not None:
            call.cancel()

    def _write(self, value: object) -> None:
        text = rpc.encode(value).decode()
        with self._lock, suppress(BrokenPipeError, ValueError):  # The client has left.
            self._out.write(text + "\n")
            self._out.flush()


def _messages(line: str | bytes | None) -> tuple[list[Any], bool]:
    """Return the values in a line that should be messages, and whether they are a batch. Raises RpcError."""
    if line is None:
        raise RpcError(PARSE_ERROR, f"A message has at most {MAX_MESSAGE_BYTES:,} bytes.")
    value = rpc.parse(line)
    if not isinstance(value, list):
        return [value], False
    if not 0 < len(value) <= MAX_BATCH:
        raise RpcError(INVALID_REQUEST, f"A batch has 1 to {MAX_BATCH} messages.")
    return value, True


def _lines(stream: TextIO) -> Iterator[str | bytes | None]:
    """Yield each line that is not blank; None for one that is too long."""
    # Bytes if possible: messages are UTF-8, in every locale.
    source: Any = getattr(stream, "buffer", stream)
    while line := source.readline(MAX_MESSAGE_BYTES):
        is_long = len(line) == MAX_MESSAGE_BYTES
        while line[-1:] not in _LINE_ENDS and (rest := source.readline(MAX_MESSAGE_BYTES)):
            line, is_long = rest, True
        if is_long:
            yield None
        elif line.strip():
            yield line


_LINE_ENDS = ("\n", b"\n")


def _serve(invocation: Invocation) -> None:
    options, console = invocation.options, invocation.console
    if options.api_key_file == STANDARD_INPUT:
        raise UsageError(
            "mcp reads messages from standard input: give the key in a file, a profile or the environment."
        )
    if console.stdin is None:
        raise UsageError("There is no standard input.")
    invocation.connect().close()  # Errors in options and profile end the command before the first message.
    if console.is_interactive:
        console.message("This command is for programs, which write JSON-RPC messages. Press Ctrl-D to end it.")
    # A connection for each request: a key file or a profile that has changed takes effect with the next one.
    StdioServer(lambda: connect(options, invocation.environ)[0], console.stdout).serve(_lines(console.stdin))


_MCP = Command(
    name="mcp",
    summary="serve agents and editors over standard input (MCP)",
    description=(
        "Serve the Model Context Protocol over standard input and output, for an agent or an\n"
        "editor that starts this command. Its tools list, describe and query what the key may\n"
        "see. The runtime needs no configuration for it."
    ),
    examples=(
        ("--profile agent", "with the endpoint and the key of a profile"),
        ("--http-endpoint https://data.example.com --api-key-file agent.key", "with a key in a file"),
    ),
    call=_serve,
)

COMMANDS = {"mcp": _MCP}

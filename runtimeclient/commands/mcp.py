"""
`mcp`: the Model Context Protocol over standard input and output, for agents and editors on this machine.

The protocol and the tools are those of `/v1/mcp`, in `mcpapi`. Their statements go to `/v1/sql`, so the runtime needs
no `runtime.mcp`.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, TextIO

import mcpapi.messages as rpc
from mcpapi.errors import INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR, RpcError, ToolError
from mcpapi.messages import Message, RequestId
from mcpapi.server import METHODS_OF_RUNTIME, USER_AGENT, Server
from runtimeclient.commands.base import Command, Invocation
from runtimeclient.connection import STANDARD_INPUT, connect
from runtimeclient.distribution import version
from runtimeclient.errors import ClientError, NotAuthorisedError, RequestRefusedError, UsageError
from runtimeclient.http.api_keys import masked
from runtimeclient.http.results import JSON_WITH_SCHEMA
from runtimeclient.output.writer import TextStream

if TYPE_CHECKING:
    from runtimeclient.client import RuntimeClient

#: The length of one message.
MAX_MESSAGE_BYTES = 4 << 20
#: How many requests to the runtime run at once; more wait.
MAX_CALLS = 8


class _Call:
    """One request, with a connection of its own, so that it can be cancelled: `mcpapi.tools.Runtime`."""

    def __init__(self, connect: "Callable[[], RuntimeClient]") -> None:
        self._connect = connect
        self._client: RuntimeClient | None = None
        self.is_cancelled = False

    @contextmanager
    def run(self, sql: str) -> Iterator[Iterator[bytes]]:
        with self._connected() as client, closing(client.sql(sql, JSON_WITH_SCHEMA, user_agent=USER_AGENT)) as result:
            yield result.chunks()

    def datasets(self) -> list[dict[str, Any]]:
        with self._connected() as client:
            return [dict(item) for item in client.dataset_items()]

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()

    def cancel(self) -> None:
        """Break the connection, from any thread, which stops the statement. The request gets no response."""
        self.is_cancelled = True
        if self._client is not None:
            self._client.break_off()

    @contextmanager
    def _connected(self) -> "Iterator[RuntimeClient]":
        """Translate the errors of the block to ToolError."""
        try:
            if self._client is None:
                self._client = self._connect()
            if self.is_cancelled:  # Perhaps before there was a connection to break.
                self._client.break_off()
            yield self._client
        except ClientError as exc:
            match exc:
                case RequestRefusedError():
                    code, detail = exc.code, exc.detail
                case NotAuthorisedError():
                    code, detail = "not_authorised", str(exc)
                case _:
                    code, detail = "connection_failed", str(exc)
            api_key = None if self._client is None else self._client.api_key
            raise ToolError(code, masked(detail, api_key)) from exc


class StdioServer:
    """Answers the messages of one client until its input ends. *connect* makes the connection of one request."""

    def __init__(self, connect: "Callable[[], RuntimeClient]", out: TextStream) -> None:
        self._connect = connect
        self._out = out
        self._lock = Lock()
        self._calls: dict[RequestId, _Call] = {}

    def serve(self, lines: Iterable[str | bytes | None]) -> None:
        """Answer each line; None is one that was too long."""
        with ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="mcp") as pool:
            try:
                for line in lines:
                    self._take(line, pool)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                for call in list(self._calls.values()):
                    call.cancel()

    def _take(self, line: str | bytes | None, pool: ThreadPoolExecutor) -> None:
        value = None
        try:
            value = _parsed(line)
            message = rpc.message_of(value)
        except RpcError as error:
            self._write(rpc.failure(rpc.id_of(value), error))
            return
        if message is None:
            return
        if message.is_notification:
            if (running := self._calls.get(rpc.cancelled_by(message))) is not None:
                running.cancel()
        elif message.id in self._calls:
            refusal = RpcError(INVALID_REQUEST, "Another request with this id is running.")
            self._write(rpc.failure(message.id, refusal))
        else:
            call = self._calls[message.id] = _Call(self._connect)
            if message.method in METHODS_OF_RUNTIME:
                pool.submit(self._answer, message, call)
            else:  # At once, even while all threads are busy: clients use `ping` to find dead servers.
                self._answer(message, call)

    def _answer(self, message: Message, call: _Call) -> None:
        try:
            answer = rpc.result(message.id, Server(call, release=version() or "0").answer(message))
        except RpcError as error:
            answer = rpc.failure(message.id, error)
        except Exception:  # noqa: BLE001 (without a response, the client would wait forever)
            answer = rpc.failure(message.id, RpcError(INTERNAL_ERROR, "Unexpected response from the runtime."))
        finally:
            del self._calls[message.id]
            call.close()
        if not call.is_cancelled:
            self._write(answer)

    def _write(self, value: object) -> None:
        text = json.dumps(value, separators=(",", ":"))  # in ASCII, which no encoding of the output changes or refuses
        with self._lock, suppress(OSError, ValueError):  # The client has left.
            self._out.write(text + "\n")
            self._out.flush()


def _parsed(line: str | bytes | None) -> Any:
    if line is None:
        raise RpcError(PARSE_ERROR, f"A message may have at most {MAX_MESSAGE_BYTES:,} bytes.")
    return rpc.parse(line)


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

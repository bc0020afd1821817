"""The HTTP clients: wrk for many small statements, a plain socket for large results."""

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import quote, urlsplit

_SCRIPT = Path(__file__).with_name("statement.lua")
_BUFFER_BYTES = 1 << 20
#: Difference between the numbers of two consecutive requests, as in the script.
STRIDE = 7919
#: Bytes kept of the end of an answer, to check that it is complete.
_TAIL_BYTES = 16


class AnswerError(Exception):
    """A server refused the request, or its answer is incomplete."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """
    An HTTP endpoint that accepts a statement as the body of a POST, or appended to the URL of a GET.

    With `is_mcp`, it accepts the statement in a call of the tool `query`.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    method: Literal["POST", "GET"] = "POST"
    is_mcp: bool = False

    def text_of(self, sql: str) -> str:
        """Return the request body for a statement."""
        if not self.is_mcp:
            return sql
        params = {"name": "query", "arguments": {"sql": sql}}
        return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})


@dataclass(frozen=True, slots=True)
class Statement:
    """
    A statement as clients send it; `{}` is replaced by a different number in each request.

    The numbers are `lowest` to `lowest + count - 1`; all are used once before one repeats.
    """

    sql: str
    lowest: int = 1_000_000_000
    count: int = 1_000_000_007


@dataclass(frozen=True, slots=True)
class Load:
    """The result of sending one statement repeatedly."""

    requests: int
    seconds: float
    errors: int
    p50_ms: float
    p99_ms: float

    @property
    def per_s(self) -> float:
        """Successful answers per second."""
        return (self.requests - self.errors) / self.seconds


@dataclass(frozen=True, slots=True)
class Read:
    """The result of reading one large answer to its end."""

    seconds: float
    size_bytes: int
    objects: int


def send(endpoint: Endpoint, statement: Statement, connections: int, seconds: float) -> Load:
    """
    Send a statement over *connections* persistent connections, each as soon as the previous response has arrived.

    Raises:
        AnswerError: wrk is missing or failed, the server refuses the statement, or no answer arrived in time.
    """
    if shutil.which("wrk") is None:
        raise AnswerError("wrk is needed: apt-get install wrk")
    ask(endpoint, statement.sql.replace("{}", str(statement.lowest)))
    path = urlsplit(endpoint.url)._replace(scheme="", netloc="").geturl()
    headers = [part for name, value in endpoint.headers.items() for part in ("-H", f"{name}: {value}")]
    command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "30s", *headers]
    numbers = [str(statement.lowest), str(statement.count)]
    script = ["-s", str(_SCRIPT), endpoint.url, "--", endpoint.method, path, endpoint.text_of(statement.sql), *numbers]
    done = subprocess.run([*command, *script], capture_output=True, text=True, check=False)
    if done.returncode:
        raise AnswerError(f"wrk failed: {done.stderr.strip()[-500:]}")
    found = Load(**json.loads(done.stdout.splitlines()[-1]))
    if not found.requests:
        raise AnswerError(f"no answer within {found.seconds:.1f} s over {connections} connections")
    return found


def ask(endpoint: Endpoint, sql: str) -> Read:
    """
    Read one response to its end and count its JSON objects, which costs little compared with receiving it.

    The response is neither kept nor parsed, because parsing would take longer than any server.

    Raises:
        AnswerError: The status is not 200, or the answer is incomplete.
        OSError: There is no answer.
    """
    parts = urlsplit(endpoint.url)
    sql = endpoint.text_of(sql)
    body = sql.encode() if endpoint.method == "POST" else b""
    path = parts._replace(scheme="", netloc="").geturl() + ("" if body else quote(sql, safe=""))
    fields = {"Host": parts.netloc, "Connection": "close", "Content-Length": str(len(body)), **endpoint.headers}
    head = "".join([f"{endpoint.method} {path} HTTP/1.1\r\n", *(f"{k}: {v}\r\n" for k, v in fields.items()), "\r\n"])
    buffer = bytearray(_BUFFER_BYTES)
    with socket.create_connection((parts.hostname or "", parts.port or 80), timeout=120) as connection:
        began = time.perf_counter()
        connection.sendall(head.encode() + body)
        received = b""
        while b"\r\n\r\n" not in received:
            more = connection.recv(_BUFFER_BYTES)
            if not more:
                raise AnswerError("the header of the answer is incomplete")
            received += more
        header, _, begun = received.partition(b"\r\n\r\n")
        size, objects, tail = len(begun), begun.count(b"{"), begun[-_TAIL_BYTES:]
        while length := connection.recv_into(buffer):
            size += length
            objects += buffer.count(b"{", 0, length)
            tail = (tail + bytes(buffer[max(0, length - _TAIL_BYTES) : length]))[-_TAIL_BYTES:]
        seconds = time.perf_counter() - began
    _check(header.decode("latin-1"), size, tail, begun)
    return Read(seconds, size, objects)


def _check(header: str, size: int, tail: bytes, begun: bytes) -> None:
    status, *lines = header.split("\r\n")
    if status.split()[1] != "200":
        raise AnswerError(f"{status}: {begun[:300].decode(errors='replace')}")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if fields.get("transfer-encoding", "").lower() == "chunked":
        complete = tail.endswith(b"0\r\n\r\n")
    else:
        complete = size == int(fields.get("content-length", size))
    if not complete:
        raise AnswerError(f"the answer ends after {size} bytes")

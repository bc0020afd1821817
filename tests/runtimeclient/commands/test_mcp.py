"""`querykeep mcp`: messages in, messages out, against a fake runtime."""

import io
import json
import os
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mcpapi.server import USER_AGENT
from runtimeclient.commands.mcp import MAX_CALLS, MAX_MESSAGE_BYTES
from tests.runtimeclient.remote import API_KEY, VND, Remote, Reply, problem, refuse_other_keys

PATIENCE_S = 60
ROWS = Reply(
    body=b'{"schema":{"fields":[{"name":"a","data_type":"Int64"}]},"data":[{"a":1}],"row_count":1}', content_type=VND
)
PING = {"jsonrpc": "2.0", "id": "p", "method": "ping"}


class Lines(io.StringIO):
    """An output whose lines another thread can wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def write(self, text: str, /) -> int:
        self.lines.put(text)
        return super().write(text)


class Agent:
    """The client of a running command."""

    def __init__(self, stdin: io.TextIOWrapper, out: Lines) -> None:
        self._stdin = stdin
        self._out = out

    def send(self, *messages: object) -> None:
        for message in messages:
            self._stdin.write((message if isinstance(message, str) else json.dumps(message)) + "\n")
        self._stdin.flush()

    def receive(self) -> Any:
        return json.loads(self._out.lines.get(timeout=PATIENCE_S))

    def ask(self, message: object) -> Any:
        self.send(message)
        return self.receive()


@contextmanager
def started(remote: Remote, *options: str, **environ: str) -> Iterator[Agent]:
    """Run the command until the block ends, which closes its input."""
    reader, writer = os.pipe()
    out = Lines()
    with ThreadPoolExecutor(1) as pool, os.fdopen(reader) as stdin:
        done = pool.submit(remote.call, "mcp", *options, environ=environ, stdin=stdin, out=out)
        with os.fdopen(writer, "w", encoding="utf-8") as messages:
            yield Agent(messages, out)
        called = done.result(PATIENCE_S)
    assert (called.status, called.err) == (0, "")
    assert API_KEY not in called.out


def call_of(request_id: int | str = 1, /, tool: str = "query", **arguments: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments or {"sql": "SELECT 1"}}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["result"]["content"][0]["text"])


def test_messages_are_answered(remote: Remote) -> None:
    remote.on_sql(refuse_other_keys(ROWS))
    with started(remote, RUNTIME_API_KEY=API_KEY) as agent:
        agent.send("", "  ", {"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert agent.ask(PING) == {"jsonrpc": "2.0", "id": "p", "result": {}}
        assert text_of(agent.ask(call_of(sql="SELECT 'ä'"))) == "columns: a BIGINT\n[1]\n1 row."
        assert agent.ask({"jsonrpc": "2.0", "id": 1, "method": "x"})["error"]["code"] == -32601
    assert remote.statements == ["SELECT 'ä'"]
    assert remote.requests[-1].headers["User-Agent"] == USER_AGENT


@pytest.mark.parametrize(
    ("line", "code"),
    [
        pytest.param("{", -32700, id="not JSON"),
        pytest.param(json.dumps([PING]), -32600, id="a batch"),
        pytest.param("1", -32600, id="no object"),
        pytest.param(f'"{"x" * MAX_MESSAGE_BYTES}"', -32700, id="a long line"),
    ],
)
def test_a_wrong_line_is_refused_and_the_next_one_answered(remote: Remote, line: str, code: int) -> None:
    with started(remote) as agent:
        assert agent.ask(line)["error"]["code"] == code
        assert agent.ask(PING)["result"] == {}


def test_refusals_of_the_runtime_are_results(remote: Remote) -> None:
    remote.on_sql(problem(400, "sql_error", f"No table 'x'. {API_KEY}"))
    with started(remote, RUNTIME_API_KEY=API_KEY) as agent:
        refused = agent.ask(call_of())
        remote.on_sql(problem(401, "invalid_key", "No."))
        unauthorised = agent.ask(call_of())
        remote.on_sql(Reply(body=ROWS.body[:60], content_type=VND, is_cut=True))
        cut = agent.ask(call_of())
        remote.on_sql(Reply(body=b"<html>", content_type="text/html"))
        strange = agent.ask(call_of())

    assert refused["result"]["isError"]
    assert text_of(refused).startswith("sql_error: No table 'x'. ")
    assert text_of(unauthorised).startswith("not_authorised: ")
    assert text_of(cut).startswith("connection_failed: The result was cut off")
    assert "is not a runtime" in text_of(strange)


def test_an_answer_that_no_runtime_gives_is_an_error_and_not_the_end(remote: Remote) -> None:
    remote.on("GET", "/v1/datasets", Reply(body=b'[{"noname": 1}]'))
    with started(remote) as agent:
        assert agent.ask(call_of(tool="list_datasets", x=1))["result"]["isError"]
        assert agent.ask({**call_of(), "params": {"name": "list_datasets"}})["error"]["code"] == -32603
        remote.on_sql(Reply(body=ROWS.body.replace(b'"a":1', b'"a":"\\ud800"'), content_type=VND))
        assert agent.ask(call_of())["error"]["code"] == -32603
        assert agent.ask(PING)["result"] == {}


def test_nobody_listens(remote: Remote) -> None:
    with started(remote, "--http-endpoint", "http://127.0.0.1:1") as agent:
        assert text_of(agent.ask(call_of())).startswith("connection_failed: ")


def test_a_ping_is_answered_while_every_thread_is_busy(remote: Remote) -> None:
    may_answer = threading.Event()

    def answer(_: object) -> Reply:
        may_answer.wait(PATIENCE_S)
        return ROWS

    remote.on_sql(answer)
    with started(remote) as agent:
        agent.send(*(call_of(number) for number in range(MAX_CALLS + 2)))
        assert agent.ask(PING)["id"] == "p"
        assert agent.ask(call_of(0))["error"]["code"] == -32600
        agent.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": MAX_CALLS}})
        may_answer.set()
        answered = {agent.receive()["id"] for _ in range(MAX_CALLS + 1)}
    assert answered == {*range(MAX_CALLS), MAX_CALLS + 1}


def test_a_changed_key_file_takes_effect_with_the_next_request(remote: Remote, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("another-key-that-is-wrong")
    file.chmod(0o600)
    remote.on_sql(refuse_other_keys(ROWS))
    with started(remote, "--api-key-file", str(file)) as agent:
        assert text_of(agent.ask(call_of())).startswith("not_authorised: ")
        file.write_text(API_KEY)
        assert text_of(agent.ask(call_of())).endswith("\n1 row.")
        file.unlink()
        assert "cannot be read" in text_of(agent.ask(call_of()))


def test_the_key_cannot_come_from_the_input_that_has_the_messages(remote: Remote) -> None:
    done = remote.call("mcp", "--api-key-file", "-", stdin=io.StringIO())

    assert (done.status, done.out) == (2, "")
    assert "reads messages from standard input" in done.err
    assert remote.call("mcp", "--profile", "absent", stdin=io.StringIO()).status == 2

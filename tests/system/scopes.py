"""Runtimes whose keys have scopes, beside a runtime for each scope that declares nothing else."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import httpx

from flightapi.protocol import messages
from tests.clients.runtime import FlightServer, endpoint_of
from tests.flightapi.endpoint import (
    Endpoint,
    Refused,
    action,
    bearer,
    descriptor,
    executing,
    table_of,
    ticket_of,
    unpacked,
)
from tests.system.harness import K1, NO_ROOTS, PATIENCE_S, WRONG

Key = Literal["string", "all", "one", "view", "two", "none"]
Channel = Literal["json", "csv", "arrow", "flight", "prepared", "schema", "tables"]
Scopes = Mapping[Key, tuple[str, ...]]

KEYS: Mapping[Key, str] = {
    "string": K1,
    "all": "all-Zq8vT3mN6bX9cL2pR5sW7yD0fG4hJ1aE",
    "one": "one-Zq8vT3mN6bX9cL2pR5sW7yD0fG4hJ1aE",
    "view": "view-Zq8vT3mN6bX9cL2pR5sW7yD0fG4hJ1aE",
    "two": "two-Zq8vT3mN6bX9cL2pR5sW7yD0fG4hJ1aE",
    "none": WRONG,
}
TYPES: Mapping[Channel, str] = {
    "json": "application/json",
    "csv": "text/csv",
    "arrow": "application/vnd.apache.arrow.stream",
}
CHANNELS: tuple[Channel, ...] = ("json", "csv", "arrow", "flight", "prepared", "schema", "tables")


@dataclass
class Runtime:
    """A running runtime and a connection of each protocol."""

    server: FlightServer
    http: httpx.Client
    flight: Endpoint

    def answer(self, channel: Channel, sql: str, key: str) -> object:
        """Return all that a caller can tell of the answer."""
        if channel in TYPES:
            return self._over_http(sql, key, TYPES[channel])
        query = messages.CommandStatementQuery(query=sql)
        if channel == "tables":
            return self._fetched(messages.CommandGetTables(include_schema=True), key)
        if channel == "schema":
            return self._called("GetSchema", descriptor(query), key)
        if channel == "flight":
            return self._fetched(query, key)
        body = messages.pack(messages.ActionCreatePreparedStatementRequest(query=sql))
        prepared = self._called("DoAction", action("CreatePreparedStatement", body), key)
        if not isinstance(prepared, list):
            return prepared
        result = unpacked(messages.ActionCreatePreparedStatementResult, prepared[0])
        answer = self._fetched(executing(result.prepared_statement_handle), key)
        self.flight.close(result.prepared_statement_handle, bearer(key))
        # As above: a refusal begins with its status.
        is_refused = isinstance(answer, tuple) and isinstance(answer[0], str)
        return answer if is_refused else (result.dataset_schema, result.parameter_schema, answer)

    def _over_http(self, sql: str, key: str, accept: str) -> object:
        answer = self.http.post("/v1/sql", content=sql.encode(), headers={"X-API-Key": key, "Accept": accept})
        body: object = answer.content
        if answer.status_code != 200:
            body = {name: value for name, value in answer.json().items() if name not in {"request_id", "query_id"}}
        unlike = {"date", "x-request-id", "x-query-id", "x-cache", "content-length", "server-timing"}
        return answer.status_code, {name: text for name, text in answer.headers.items() if name not in unlike}, body

    def _fetched(self, command: Any, key: str) -> object:
        info = self._called("GetFlightInfo", descriptor(command), key)
        if not isinstance(info, list):
            return info
        parsed = messages.parse(messages.FlightInfo, info[0])
        answer = self._called("DoGet", ticket_of(parsed), key)
        if not isinstance(answer, list):  # A busy engine finds the same error only now.
            return answer
        table = table_of(answer)  # How its rows are divided into batches is nothing that is told.
        return parsed.schema, table.schema, repr(table.to_pylist())

    def _called(self, method: str, request: bytes, key: str) -> object:
        answer = self.flight.call(method, request, metadata=bearer(key))
        if isinstance(answer, Refused):
            return answer.status, answer.message, answer.trailing.get("x-error-code"), answer.messages
        return answer.messages


@dataclass
class Runtimes:
    """A runtime with all datasets and keys, and one for each scope, which knows K1 alone."""

    whole: Runtime
    scoped: Mapping[Key, Runtime]

    def compare(self, sql: str, channel: Channel) -> None:
        """Ask *sql* with every key. Each answer must be that of the runtime with the scope of the key alone."""
        asked = ("string", "all", *self.scoped, "none")
        found = {name: self.whole.answer(channel, sql, KEYS[name]) for name in asked}
        for name, runtime in {**self.scoped, "all": self.whole}.items():
            expected = [runtime.answer(channel, sql, K1)]
            answers = [found[name]]
            # Some statements fix neither the order of their rows nor the value that fails first, and a busy engine may
            # run them later: such an answer differs from itself too.
            while not any(answer in expected for answer in answers) and len(answers) < 20:
                expected.append(runtime.answer(channel, sql, K1))
                answers.append(self.whole.answer(channel, sql, KEYS[name]))
            assert len(answers) < 20 or any(one != expected[0] for one in expected), (name, answers[0], expected[0])
        assert found["none"] == self.whole.answer(channel, "SELECT 1", "nobody's")


@contextmanager
def started(
    scopes: Scopes, changes: Callable[[Key | None, Path], dict[str, Any]], make_directory: Callable[[], Path]
) -> Iterator[Runtimes]:
    """Start the runtime with all keys (None) and one for each of *scopes*, with the *changes* for each."""
    named = [
        {"name": name, "sha256": sha256(KEYS[name].encode()).hexdigest()}
        | ({"datasets": list(scopes[name])} if name in scopes else {})
        for name in ("all", *scopes)
    ]
    auth = {"api-key": {"enabled": True, "keys": [K1], "named_keys": named}}

    def server(name: Key | None, directory: Path, stack: ExitStack) -> Runtime:
        changed = changes(name, directory)
        if name is None:
            changed["runtime"] = {**changed["runtime"], "auth": auth}
        running = stack.enter_context(FlightServer(directory, changes=changed))
        http = stack.enter_context(httpx.Client(base_url=running.url, verify=NO_ROOTS, timeout=PATIENCE_S))
        return Runtime(running, http, stack.enter_context(endpoint_of(running)))

    with ExitStack() as stack, ThreadPoolExecutor() as threads:
        stacks: dict[Key | None, ExitStack] = {name: stack.enter_context(ExitStack()) for name in (None, *scopes)}
        # Not in the threads: the factory of pytest makes its own directory at the first call.
        directories = {name: make_directory() for name in stacks}
        begun = {name: threads.submit(server, name, directories[name], own) for name, own in stacks.items()}
        found = {name: runtime.result() for name, runtime in begun.items()}
        yield Runtimes(found[None], {name: found[name] for name in scopes})

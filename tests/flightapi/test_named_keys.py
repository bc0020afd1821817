"""Named keys over Flight SQL: nothing outside a scope exists, in statements, handles, tickets and metadata."""

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import pytest

from authkeys.access import Access
from authkeys.keys import KeySet
from flightapi.protocol import messages
from queryengine.engine import Query
from queryengine.pool.inprocess import InProcessEngine
from runtimeconf.model import DatasetRule, KeyLimits, NamedKey, RuntimeConfig, Scope
from runtimeconf.secret import Secret
from tests.flightapi.endpoint import (
    Endpoint,
    Metadata,
    Refused,
    action,
    bearer,
    descriptor,
    executing,
    schema_of,
    serving,
    table_of,
    ticket,
    ticket_of,
)
from tests.system.harness import K1

FEW, LIMITED, REFRESHER, SOME = (bearer(f"named-key-{number}-Zq8vT3mN6bX9cL2pR5sW7y") for number in range(4))


def named(name: str, metadata: Metadata, **fields: object) -> NamedKey:
    key = str(metadata[0][1]).removeprefix("Bearer ")
    return NamedKey(name=name, sha256=sha256(key.encode()).digest(), **fields)  # type: ignore[arg-type]


SOME_ROWS = Scope(
    relations=frozenset({"flights"}),
    rules=(DatasetRule(dataset="flights", row_filter="id < 3", columns=("id", "name"), masks=(("name", "'x'"),)),),
)
KEYS = (
    named("few", FEW, scope=Scope(relations=frozenset({"few"}))),
    named("limited", LIMITED, limits=KeyLimits(requests_per_minute=3)),
    named("some", SOME, scope=SOME_ROWS),
    named("ops", REFRESHER, rights=frozenset({"refresh"})),
)


@pytest.fixture(scope="module")
def endpoint(config: RuntimeConfig, engine: InProcessEngine) -> Iterator[Endpoint]:
    with serving(config, engine, Access(key_set=KeySet([Secret(K1)], b"salt", KEYS))) as running:
        yield running


def query(sql: str) -> bytes:
    return descriptor(messages.CommandStatementQuery(query=sql))


def tables(endpoint: Endpoint, metadata: Metadata | None = None) -> list[str]:
    info = endpoint.info(messages.CommandGetTables(include_schema=True), metadata)
    return [str(name) for name in endpoint.table(info, metadata).column("table_name").to_pylist()]


def test_what_is_outside_the_scope_does_not_exist(endpoint: Endpoint) -> None:
    assert endpoint.sql("SELECT count(*) AS n FROM few", FEW).to_pylist() == [{"n": 3}]
    assert endpoint.sql("SHOW TABLES", FEW).to_pylist() == [{"name": "few"}]
    assert tables(endpoint, FEW) == ["few"]
    assert tables(endpoint) == ["few", "flights", "unloaded"]

    for name in ("flights", "unloaded"):
        for method in ("GetFlightInfo", "GetSchema"):
            # The same text as an unscoped key's, whose schema may be cached.
            endpoint.call(method, query(f"FROM {name}"))
            outside = endpoint.fails(method, query(f"FROM {name}"), metadata=FEW)
            absent = endpoint.fails(method, query("FROM nowhere"), metadata=FEW)
            assert (outside.status, outside.message) == (absent.status, absent.message.replace("nowhere", name))


def test_neither_a_ticket_nor_a_handle_crosses(endpoint: Endpoint) -> None:
    info = endpoint.info(messages.CommandStatementQuery(query="SELECT max(id) AS n FROM flights"))
    prepared = endpoint.prepare("SELECT min(id) AS n FROM flights")

    assert endpoint.fails("DoGet", ticket_of(info), metadata=FEW).message == "Table 'flights' does not exist."
    handle = descriptor(executing(prepared.prepared_statement_handle))
    assert endpoint.fails("GetFlightInfo", handle, metadata=FEW).status == "NOT_FOUND"
    assert endpoint.table(info).to_pylist() == [{"n": 999}]


def test_a_key_without_the_right_to_query(endpoint: Endpoint) -> None:
    endpoint.call("GetSchema", query("SELECT 1"))  # the description is kept
    create = action(
        "CreatePreparedStatement", messages.pack(messages.ActionCreatePreparedStatementRequest(query="SELECT 1"))
    )

    for method, sent in (("GetFlightInfo", query("SELECT 1")), ("GetSchema", query("SELECT 1")), ("DoAction", create)):
        refused = endpoint.fails(method, sent, metadata=REFRESHER)
        assert (refused.status, refused.trailing["x-error-code"]) == ("PERMISSION_DENIED", "not_permitted")


def test_a_statement_and_a_list_of_tables_count_once_however_they_are_run(endpoint: Endpoint) -> None:
    tables(endpoint, LIMITED)
    info = endpoint.info(messages.CommandStatementQuery(query="SELECT 2 AS a"), LIMITED)
    endpoint.table(info, LIMITED)
    prepared = endpoint.prepare("SELECT 3 AS a", LIMITED)
    again = endpoint.info(executing(prepared.prepared_statement_handle), LIMITED)
    assert endpoint.table(again, LIMITED).to_pylist() == [{"a": 3}]

    for refused in (
        endpoint.fails("GetFlightInfo", query("SELECT 4"), metadata=LIMITED),
        endpoint.fails("DoGet", ticket_of(info), metadata=LIMITED),
    ):
        assert (refused.status, refused.trailing["x-error-code"]) == ("RESOURCE_EXHAUSTED", "rate_limited")


def test_a_key_expires_on_an_open_connection(config: RuntimeConfig, engine: InProcessEngine) -> None:
    expires = datetime.now(UTC) + timedelta(seconds=4)  # enough for two calls
    key_set = KeySet([], b"salt", [named("brief", FEW, expires_at=expires)])
    with serving(config, engine, Access(key_set=key_set)) as endpoint:
        info = endpoint.info(messages.CommandStatementQuery(query="SELECT range AS n FROM range(1000000)"), FEW)
        assert schema_of(info.schema).names == ["n"]
        running = endpoint.begin(messages.PATHS["DoGet"], [ticket_of(info)], FEW)
        next(running)
        while time.time() < expires.timestamp():
            time.sleep(0.01)

        assert isinstance(endpoint.call("DoGet", ticket_of(info), metadata=FEW), Refused)
        assert endpoint.fails("GetFlightInfo", query("SELECT 1"), metadata=FEW).status == "UNAUTHENTICATED"
        assert sum(1 for _ in running) > 1


def test_a_key_with_rules_sees_its_rows_and_columns_on_every_way(endpoint: Endpoint) -> None:
    whole = endpoint.sql("FROM flights LIMIT 1").column_names
    rows = [{"id": number, "name": "x"} for number in range(3)]
    text = "FROM runtime.main.flights ORDER BY id"

    assert whole == ["id", "name", "carrier"]
    assert endpoint.sql(text, SOME).to_pylist() == rows
    assert endpoint.sql(text).num_rows == 1000
    prepared = endpoint.prepare(text, SOME)
    info = endpoint.info(executing(prepared.prepared_statement_handle), SOME)
    assert schema_of(info.schema).names == ["id", "name"]
    assert endpoint.table(info, SOME).to_pylist() == rows
    assert endpoint.fails("DoGet", ticket_of(info), metadata=FEW).status in {"NOT_FOUND", "INVALID_ARGUMENT"}
    tables = endpoint.table(endpoint.info(messages.CommandGetTables(include_schema=True), SOME), SOME).to_pylist()
    assert [(one["table_name"], schema_of(one["table_schema"]).names) for one in tables] == [
        ("flights", ["id", "name"])
    ]
    assert "carrier" in endpoint.fails("GetFlightInfo", query("SELECT carrier FROM flights"), metadata=SOME).message


class Recorder:
    """An engine that notes the scopes of the statements that it runs."""

    def __init__(self, engine: InProcessEngine) -> None:
        self._engine = engine
        self.scopes: list[Scope | None] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, query: Query, *others: Any) -> Any:
        self.scopes.append(query.scope)
        return self._engine.run(query, *others)


def test_a_scope_never_meets_the_engine_of_another_configuration(
    config: RuntimeConfig, engine: InProcessEngine
) -> None:
    former, newer = Recorder(engine), Recorder(engine)
    scope = Scope(relations=frozenset({"flights"}))
    arrived = threading.Event()
    with serving(config, former, Access(key_set=KeySet([], b"salt", KEYS[:1]))) as endpoint:

        def late() -> Iterator[bytes]:
            arrived.wait()
            time.sleep(0.2)  # `arrived` is set before the key is accepted.
            endpoint.server.adopt(config, newer, Access(key_set=KeySet([], b"salt", [named("few", FEW, scope=scope)])))
            yield ticket(b"SELECT count(*) AS n FROM flights")

        endpoint.server.before_call(arrived.set)
        answer = list(endpoint.begin(messages.PATHS["DoGet"], late(), FEW))

    assert table_of(answer).to_pylist() == [{"n": 1000}]
    assert (former.scopes, newer.scopes) == ([], [scope])

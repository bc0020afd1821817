"""Every RPC over a socket: statements, prepared statements, uploads, errors."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
import trustme
from msgspec.structs import replace

from authkeys.access import build
from flightapi.calls import IdleClock
from flightapi.descriptions import StatementRequest
from flightapi.open_calls import OpenCalls
from flightapi.prepared import Prepared, PreparedStatements
from flightapi.protocol import messages
from flightapi.protocol.messages import PATHS, pack
from flightapi.server import FlightServer
from flightapi.service import FlightService
from queryengine.engine import Description
from queryengine.pool.inprocess import InProcessEngine
from runtimeconf.model import AuthConfig, FlightConfig, RuntimeConfig, TlsConfig
from runtimeconf.secret import Secret
from system.addresses import Address
from tests.flightapi.endpoint import (
    FINGERPRINTS,
    OPEN,
    Clock,
    Endpoint,
    Outcomes,
    action,
    bearer,
    descriptor,
    executing,
    row_of,
    schema_of,
    serving,
    table_of,
    ticket,
    ticket_of,
    upload,
)
from tests.queryengine.publishing import ENDLESS
from tests.system.harness import K1, K2


def test_a_statement(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    info = endpoint.info(messages.CommandStatementQuery(query="SELECT id, name FROM flights WHERE id < 2 ORDER BY id"))
    answer = endpoint.works("DoGet", ticket_of(info))

    assert table_of(answer.messages).to_pylist() == [{"id": 0, "name": "n0"}, {"id": 1, "name": "n1"}]
    (line,) = [record.fields for record in caplog.records if record.name == "flightapi.queries"]  # type: ignore[attr-defined]
    assert (line["protocol"], line["outcome"], line["rows"]) == ("flight-sql", "ok", 2)
    assert line["fingerprint"] == FINGERPRINTS[0]
    assert (line["query_id"], line["request_id"]) == (answer.trailing["x-query-id"], answer.trailing["x-request-id"])


def test_a_ticket_is_answered_for_any_key(endpoint: Endpoint) -> None:
    info = endpoint.info(messages.CommandStatementQuery(query="SELECT 1 AS a"), bearer(K1))

    assert endpoint.table(info, bearer(K2)).to_pylist() == [{"a": 1}]


def test_get_schema_runs_nothing(endpoint: Endpoint) -> None:
    command = messages.CommandStatementQuery(query=f"SELECT 1 AS a, ({ENDLESS}) AS b")

    (message,) = endpoint.works("GetSchema", descriptor(command)).messages

    result = messages.parse(messages.SchemaResult, message)
    assert schema_of(result.schema).names == ["a", "b"]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        pytest.param("SELECT nope FROM flights", ("INVALID_ARGUMENT", '"nope" not found'), id="binder"),
        pytest.param("SELEC 1", ("INVALID_ARGUMENT", "yntax error"), id="syntax"),
        pytest.param("", ("INVALID_ARGUMENT", "empty"), id="empty"),
        pytest.param("DROP TABLE flights", ("PERMISSION_DENIED", "is read-only"), id="write"),
        pytest.param("SELECT * FROM read_csv('/etc/passwd')", ("PERMISSION_DENIED", "not allowed"), id="file"),
        pytest.param("SELECT * FROM unloaded", ("UNAVAILABLE", "not loaded yet"), id="not loaded"),
        pytest.param("SELECT $1", ("INVALID_ARGUMENT", "1 parameter, and 0 are given"), id="no parameter"),
    ],
)
@pytest.mark.parametrize("way", ["GetFlightInfo", "GetSchema", "DoGet"])
def test_a_bad_statement_has_a_status_and_a_message(
    endpoint: Endpoint, way: str, sql: str, expected: tuple[str, str], outcomes: Outcomes
) -> None:
    request = ticket(sql.encode()) if way == "DoGet" else descriptor(messages.CommandStatementQuery(query=sql))

    refused = endpoint.fails(way, request)

    status, part = expected
    assert refused.status == status
    assert part in refused.message
    assert refused.trailing["x-error-code"] == outcomes()[0]
    assert len(str(refused.trailing["x-request-id"])) == 32


def test_an_error_while_streaming_ends_the_answer(endpoint: Endpoint, outcomes: Outcomes) -> None:
    fails_late = "SELECT CAST(CASE WHEN range = 2999999 THEN 'x' ELSE '1' END AS INTEGER) AS a FROM range(3000000)"

    refused = endpoint.fails("DoGet", ticket(fails_late.encode()))

    assert refused.status == "INVALID_ARGUMENT"
    assert len(refused.messages) > 2
    assert outcomes() == ["sql_error"]


def test_the_request_id_is_the_callers_or_a_new_one(endpoint: Endpoint) -> None:
    own = endpoint.works("DoGet", ticket(b"SELECT 1"), metadata=(*bearer(K1), ("x-request-id", "mine-1")))
    twice = endpoint.works(
        "DoGet", ticket(b"SELECT 1"), metadata=(*bearer(K1), ("x-request-id", "a"), ("x-request-id", "b"))
    )

    assert own.trailing["x-request-id"] == "mine-1"
    assert len(str(twice.trailing["x-request-id"])) == 32


@pytest.mark.parametrize(
    ("methods", "requests", "status"),
    [
        pytest.param(
            ["PollFlightInfo", "ListFlights", "DoExchange", "/x/Y", "/grpc.health.v1.Health/Check"],
            [b""],
            "UNIMPLEMENTED",
            id="unsupported",
        ),
        pytest.param(
            ["GetFlightInfo", "GetSchema", "DoGet", "DoAction", "ListActions"],
            [],
            "INVALID_ARGUMENT",
            id="without a message",
        ),
        pytest.param(
            ["GetFlightInfo", "GetSchema", "DoGet", "DoPut", "DoAction"],
            [b"\xff\xff\xff"],
            "INVALID_ARGUMENT",
            id="with an invalid message",
        ),
    ],
)
def test_calls_that_cannot_be_answered(
    endpoint: Endpoint, methods: list[str], requests: list[bytes], status: str
) -> None:
    assert {endpoint.fails(method, *requests).status for method in methods} == {status}


def test_tables_with_their_schemas(endpoint: Endpoint, outcomes: Outcomes) -> None:
    tables = endpoint.table(endpoint.info(messages.CommandGetTables(include_schema=True)))

    schemas = {row["table_name"]: schema_of(row["table_schema"]).names for row in tables.to_pylist()}
    assert schemas == {"few": ["id", "name", "carrier"], "flights": ["id", "name", "carrier"], "unloaded": []}
    assert set(outcomes()) == {"dataset_not_loaded"}  # metadata runs no statement


def test_without_an_engine_there_are_no_schemas(config: RuntimeConfig) -> None:
    engine = InProcessEngine(config)
    engine.close()
    with serving(config, engine) as endpoint:
        info = endpoint.info(messages.CommandGetTables(include_schema=True))

        assert endpoint.fails("DoGet", ticket_of(info)).status == "UNAVAILABLE"


# Prepared statements.


def test_a_prepared_statement(endpoint: Endpoint) -> None:
    prepared = endpoint.prepare("SELECT id FROM flights WHERE id = 5")

    info = endpoint.info(executing(prepared.prepared_statement_handle))

    assert schema_of(prepared.dataset_schema) == schema_of(info.schema)
    assert prepared.parameter_schema == b""
    assert prepared.is_update is False
    assert endpoint.table(info).to_pylist() == [{"id": 5}]


@pytest.mark.parametrize(
    ("sql", "row", "expected"),
    [
        ("SELECT id, ? AS b FROM flights WHERE id = ?", row_of(a="x", b=5), {"id": 5, "b": "x"}),
        ("SELECT id FROM flights WHERE id = $id AND name = $name", row_of(name="n7", id=7), {"id": 7}),
        ("SELECT id FROM flights WHERE id = :id AND name = :name", row_of(name="n7", id=7), {"id": 7}),
        ("SELECT id FROM flights WHERE id = :id AND name = :name", row_of(**{":name": "n7", ":id": 7}), {"id": 7}),
    ],
    ids=["by position", "by name", "by name after a colon", "by name with a colon"],
)
def test_parameters_are_bound(endpoint: Endpoint, sql: str, row: pa.Table, expected: dict[str, object]) -> None:
    prepared = endpoint.prepare(sql)
    handle = endpoint.bind(prepared.prepared_statement_handle, row)

    assert len(schema_of(prepared.parameter_schema)) == 2
    assert set(schema_of(prepared.parameter_schema).names) in ({"$1", "$2"}, {"id", "name"})
    assert endpoint.table(endpoint.info(executing(handle))).to_pylist() == [expected]


def test_a_new_row_replaces_the_bound_parameters(endpoint: Endpoint) -> None:
    handle = endpoint.prepare("SELECT $1 + 1 AS a").prepared_statement_handle
    answers = []
    for value in (1, 2):
        endpoint.bind(handle, row_of(a=value))
        answers += endpoint.table(endpoint.info(executing(handle))).to_pylist()
    endpoint.bind(handle, row_of(a=1).slice(0, 0))  # without a row, no parameters are bound

    refused = endpoint.fails("GetFlightInfo", descriptor(executing(handle)))

    assert answers == [{"a": 2}, {"a": 3}]
    assert (refused.status, refused.trailing["x-error-code"]) == ("INVALID_ARGUMENT", "invalid_parameters")


def test_a_closed_handle_is_not_found_but_its_ticket_answered(endpoint: Endpoint) -> None:
    handle = endpoint.prepare("SELECT 1 AS a").prepared_statement_handle
    info = endpoint.info(executing(handle))
    for _ in range(2):
        assert endpoint.close(handle) == []

    assert endpoint.table(info).to_pylist() == [{"a": 1}]
    assert endpoint.fails("GetFlightInfo", descriptor(executing(handle))).status == "NOT_FOUND"
    assert endpoint.fails("DoPut", *upload(handle, row_of(a=1))).status == "NOT_FOUND"


def test_another_keys_handle_is_not_found(endpoint: Endpoint) -> None:
    handle = endpoint.prepare("SELECT $1 AS a").prepared_statement_handle
    endpoint.bind(handle, row_of(a=1))
    info = endpoint.info(executing(handle))

    assert endpoint.fails("GetFlightInfo", descriptor(executing(handle)), metadata=bearer(K2)).status == "NOT_FOUND"
    assert endpoint.fails("DoGet", ticket_of(info), metadata=bearer(K2)).status == "NOT_FOUND"
    endpoint.close(handle, bearer(K2))
    assert endpoint.table(info).to_pylist() == [{"a": 1}]


def test_an_invalid_statement_cannot_be_prepared(endpoint: Endpoint) -> None:
    for sql in ("SELECT nope", "SELECT nope + $1", "DROP TABLE flights", ""):
        request = pack(messages.ActionCreatePreparedStatementRequest(query=sql))
        refused = endpoint.fails("DoAction", action("CreatePreparedStatement", request))

        assert refused.status in {"INVALID_ARGUMENT", "PERMISSION_DENIED"}


def test_a_schema_that_depends_on_the_values(endpoint: Endpoint) -> None:
    prepared = endpoint.prepare("SELECT * FROM unnest($1) t(a)")
    handle = endpoint.bind(prepared.prepared_statement_handle, row_of(a=[1, 2]))

    assert prepared.dataset_schema == b""
    assert endpoint.table(endpoint.info(executing(handle))).to_pylist() == [{"a": 1}, {"a": 2}]


def test_the_session_actions(endpoint: Endpoint) -> None:
    (closed,) = endpoint.works("DoAction", action("CloseSession")).messages

    assert messages.parse(messages.CloseSessionResult, messages.parse(messages.Result, closed).body).status == 1


# An endpoint of its own.


def test_messages_over_the_limit_are_refused(config: RuntimeConfig, engine: InProcessEngine) -> None:
    with serving(config, engine, max_message_bytes=10_000) as endpoint:
        handle = endpoint.prepare("SELECT $1 AS a").prepared_statement_handle
        schema, batch = upload(handle, row_of(a="x" * 6_000))

        assert endpoint.fails("DoGet", ticket(b"SELECT 1 -- " + b"x" * 10_000)).status == "RESOURCE_EXHAUSTED"
        assert endpoint.fails("DoPut", schema, batch, batch).status == "RESOURCE_EXHAUSTED"
        assert endpoint.sql("SELECT 1 AS a").to_pylist() == [{"a": 1}]


def test_an_internal_error_is_only_logged(
    config: RuntimeConfig, engine: InProcessEngine, caplog: pytest.LogCaptureFixture
) -> None:
    class BrokenEngine:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("secret path /etc")

    with serving(config, BrokenEngine()) as endpoint:
        refused = endpoint.fails("DoGet", ticket(b"SELECT 1"))

    assert (refused.status, refused.trailing["x-error-code"]) == ("INTERNAL", "internal_error")
    assert "secret" not in refused.message
    request_id = refused.trailing["x-request-id"]
    (record,) = [record for record in caplog.records if record.name == "flightapi.calls"]
    assert record.fields == {"request_id": request_id}  # type: ignore[attr-defined]
    assert "secret path" in str(record.exc_info)


# The port, the certificate and the compression of the server.


@pytest.fixture
def secure(config: RuntimeConfig, tmp_path: Path) -> RuntimeConfig:
    """A configuration with a certificate for localhost."""
    issued = trustme.CA().issue_cert("localhost")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    tls = TlsConfig(enabled=True, certificate_file=certificate, key_file=key)
    return replace(config, tls=tls, flight=FlightConfig(bind=Address("127.0.0.1", 0)))


@pytest.mark.parametrize("name", ["certificate.pem", "key.pem"])
@pytest.mark.parametrize("content", [b"", b"nonsense", None])
def test_a_certificate_that_went_bad_since_it_was_checked(
    secure: RuntimeConfig, engine: InProcessEngine, name: str, content: bytes | None
) -> None:
    assert secure.tls.key_file is not None
    file = secure.tls.key_file.with_name(name)
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)

    with pytest.raises(OSError, match=r"^The certificate of runtime\.tls cannot be (used|read): .*\.$"):
        FlightServer(secure, engine, OPEN)


def test_two_servers_do_not_share_a_port(config: RuntimeConfig, engine: InProcessEngine, endpoint: Endpoint) -> None:
    taken = replace(config, flight=FlightConfig(bind=Address("127.0.0.1", endpoint.port)))

    with pytest.raises(OSError, match=rf"^Cannot listen on 127\.0\.0\.1:{endpoint.port} for Flight SQL\.$"):
        FlightServer(taken, engine, OPEN)


def test_compressed_messages_are_refused(endpoint: Endpoint) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{endpoint.port}", compression=grpc.Compression.Gzip) as channel:
        packed = Endpoint(endpoint.port, endpoint.server, channel)

        refused = packed.fails("DoGet", b"x" * 100_000)

    assert refused.status in {"UNIMPLEMENTED", "INTERNAL"}


def test_a_key_that_is_removed_before_the_message_comes_is_refused(
    config: RuntimeConfig, engine: InProcessEngine
) -> None:
    arrived = threading.Event()
    removed = build(replace(config, auth=AuthConfig(enabled=True, keys=(Secret(K2),))))
    with serving(config, engine) as endpoint:

        def late() -> Iterator[bytes]:
            arrived.wait()
            time.sleep(0.2)  # `arrived` is set before the key is accepted.
            endpoint.server.adopt(config, engine, removed)
            yield descriptor(messages.CommandStatementQuery(query="SELECT 1"))

        endpoint.server.before_call(arrived.set)
        with pytest.raises(grpc.RpcError) as refused:
            list(endpoint.begin(PATHS["GetFlightInfo"], late(), bearer(K1)))

    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_what_nobody_uses_expires_as_the_server_ticks(config: RuntimeConfig, engine: InProcessEngine) -> None:
    idle_clock = IdleClock()
    service = FlightService(config, engine, OPEN, idle_clock, PreparedStatements(), open_calls=OpenCalls(1))
    clock = Clock()
    kept = (service._descriptions, service._results, service._prepared)
    for one in kept:
        one._clock = clock
    description = Description(schema=b"", parameters=(), is_schema_cacheable=True)
    service._descriptions.of("SELECT 1", None, lambda: description)
    service._results.keep(StatementRequest("key", b"ticket", "SELECT 1"), description, service._results.data_version())
    service._prepared.add("key", Prepared("SELECT 1", takes_parameters=False))
    asked: list[float] = []

    def describe() -> Description:
        asked.append(clock.now)
        return description

    expected = {4.9: (1, 1), 5.1: (0, 1), 9.9: (0, 1), 10.1: (0, 1), 599.9: (0, 1), 600.1: (0, 0)}
    for clock.now, left in expected.items():
        service.expire()
        assert (len(service._results), len(service._prepared)) == left
        service._descriptions.of("SELECT 1", None, describe)
    idle_clock.close()
    assert asked == [10.1, 599.9]

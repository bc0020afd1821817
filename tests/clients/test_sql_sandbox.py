"""Checks S01 to S33 over Flight SQL: the same outcome and message as over HTTP, for each kind of request."""

from pathlib import Path
from typing import Any

import pytest

from flightapi.protocol import messages
from flightapi.protocol.messages import pack
from tests.blackbox.test_sql_sandbox import CHECKSUM, UNCHANGED
from tests.blackbox.test_sql_sandbox import REFUSED as REFUSED_OF_ORDERS
from tests.clients.runtime import FlightServer, endpoint_of
from tests.corpus import each
from tests.flightapi.endpoint import (
    Answer,
    Endpoint,
    Refused,
    action,
    descriptor,
    executing,
    ticket,
    ticket_of,
    unpacked,
)
from tests.system.harness import K1, K2

VERDICTS = {400: "INVALID_ARGUMENT", 403: "PERMISSION_DENIED"}
OF_ORDERS = [sql for sqls in REFUSED_OF_ORDERS.values() for sql in sqls]


def run_command(endpoint: Endpoint, command: Any) -> Answer | Refused:
    """GetFlightInfo, then DoGet."""
    told = endpoint.call("GetFlightInfo", descriptor(command))
    if isinstance(told, Refused):
        return told
    return endpoint.call("DoGet", ticket_of(messages.parse(messages.FlightInfo, told.messages[0])))


def run_statement(endpoint: Endpoint, sql: str) -> Answer | Refused:
    return run_command(endpoint, messages.CommandStatementQuery(query=sql))


def run_prepared(endpoint: Endpoint, sql: str) -> Answer | Refused:
    """Prepare, execute, close."""
    request = pack(messages.ActionCreatePreparedStatementRequest(query=sql))
    created = endpoint.call("DoAction", action("CreatePreparedStatement", request))
    if isinstance(created, Refused):
        return created
    prepared = unpacked(messages.ActionCreatePreparedStatementResult, created.messages[0])
    try:
        return run_command(endpoint, executing(prepared.prepared_statement_handle))
    finally:
        endpoint.close(prepared.prepared_statement_handle)


def run_text(endpoint: Endpoint, sql: str) -> Answer | Refused:
    """DoGet of a ticket that is the text of the statement."""
    return endpoint.call("DoGet", ticket(sql.encode()))


WAYS = [run_statement, run_prepared, run_text]


def same_message(told: str, over_http: str) -> bool:
    """Compare messages. Flight cuts very long ones, because gRPC sends them in metadata, whose size clients limit."""
    return told == over_http or (len(told) > 2500 and told.endswith("...") and over_http.startswith(told[:-3]))


def assert_same_refusal(server: FlightServer, sql: str, *leaks: str) -> None:
    over_http = server.sql(sql, K1)
    assert over_http.status_code in VERDICTS, over_http.text
    with endpoint_of(server) as endpoint:
        for way in WAYS:
            refused = way(endpoint, sql)
            assert isinstance(refused, Refused), way
            assert refused.status == VERDICTS[over_http.status_code], way
            assert same_message(refused.message, over_http.json()["detail"]), way
            for leak in (str(server.directory), "site-packages", "Traceback", ".duckdb'", K1, *leaks):
                assert leak not in f"{refused.message}{refused.trailing}"


@each("sql", OF_ORDERS)
def test_refused_without_effect(flight: FlightServer, trap: str, tmp_path: Path, sql: str) -> None:
    filled = sql.replace("{tmp}", str(tmp_path)).replace("{trap}", trap)

    assert_same_refusal(flight, filled)

    assert list(tmp_path.iterdir()) == []
    assert flight.rows(CHECKSUM, K2) == UNCHANGED
    assert flight.rows("SELECT abs(-1) AS a", K2) == [{"a": 1}]


@each(
    "sql",
    [
        pytest.param("   ", id="blanks"),
        pytest.param(";;;", id="semicolons"),
        pytest.param("-- only comment", id="line comment"),
        pytest.param("/* a /* b */ c */ ;", id="nested comment"),
        pytest.param("SELECT * FROM ordres", id="unknown table"),
        pytest.param("SELECT 1 / 'a'", id="failed conversion"),
        pytest.param("SELECT CAST('x' AS INTEGER)", id="failed cast"),
        pytest.param("SELECT nope FROM orders", id="unknown column"),
        pytest.param("SELECT error('mine')", id="own error"),
        pytest.param("SELECT error('\u00e9\\n100%')", id="own error beyond ASCII"),
        pytest.param("SELECT CAST(name AS INTEGER) FROM orders", id="failed cast of a column"),
        pytest.param("SELECT nope(1)", id="unknown function"),
        pytest.param("SELEC 1", id="no SQL"),
        pytest.param("SELECT * FROM orders WHERE", id="half a statement"),
        pytest.param("SELECT 9223372036854775807 + 1", id="overflow"),
        pytest.param("SELECT sum(name) FROM orders", id="sum of text"),
        pytest.param("SELECT ?", id="a parameter that is not there"),
        pytest.param("(" * 5000 + "1", id="unclosed brackets"),
        pytest.param("SELECT " + "x" * 3000 + " FROM orders", id="a long name"),
    ],
)
def test_s27_same_message(flight: FlightServer, sql: str) -> None:
    assert_same_refusal(flight, sql, "_s0", "_s1", ".duckdb")


def test_s24_only_declared_names_are_listed(flight: FlightServer) -> None:
    with endpoint_of(flight) as endpoint:
        for sql in (
            "SELECT name FROM (SHOW TABLES)",
            "SELECT table_name FROM information_schema.tables",
            "SELECT DISTINCT table_name FROM information_schema.columns",
        ):
            assert set(endpoint.sql(sql)[0].to_pylist()) == {"orders", "big_orders"}

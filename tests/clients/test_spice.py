"""@spiceai/spice for Node: Flight over TLS. Without TLS it sends no key over Flight and falls back to HTTP."""

from pathlib import Path

import pytest

from tests.clients import spice
from tests.clients.runtime import FlightServer, flight_table, plain_flight
from tests.system.harness import K1, WRONG


def test_rows_and_parameters_over_tls(flight_tls: FlightServer, tmp_path: Path) -> None:
    rows, by_position, by_name, quote = spice.ask(
        tmp_path,
        spice.options_of(flight_tls, K1),
        [
            {"sql": "SELECT id, name, amount FROM orders ORDER BY id LIMIT 2"},
            {"sql": "SELECT name FROM orders WHERE id = $1 AND name = $2", "parameters": [7, "name 7"]},
            {"sql": "SELECT name FROM orders WHERE id = $id", "parameters": {"id": 8}},
            {"sql": "SELECT $1 AS a", "parameters": ["it's; DROP TABLE orders"]},
        ],
    )

    assert rows["rows"] == [{"id": "0", "name": "name 0", "amount": 0}, {"id": "1", "name": "name 1", "amount": 0.125}]
    assert by_position["rows"] == [{"name": "name 7"}]
    assert by_name["rows"] == [{"name": "name 8"}]
    assert quote["rows"] == [{"a": "it's; DROP TABLE orders"}]


@pytest.mark.parametrize("key", [WRONG, None], ids=["wrong key", "no key"])
@pytest.mark.parametrize(
    ("kind", "told", "refusals"),
    [
        pytest.param("flight_tls", "'code': 16", 1, id="with TLS, once"),
        pytest.param("flight", "401", 2, id="without TLS, over HTTP too"),
    ],
)
def test_without_a_valid_key_it_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, told: str, *, refusals: int, key: str | None
) -> None:
    server: FlightServer = request.getfixturevalue(kind)
    before = server.refused_calls()

    (answer,) = spice.ask(tmp_path, spice.options_of(server, key), [{"sql": "SELECT 1 AS n"}])

    assert told in str(answer["error"])
    assert "API key" in answer["error"]["message"]
    assert WRONG not in answer["error"]["message"]
    assert server.refused_calls() - before == refusals


@pytest.mark.parametrize(
    ("sql", "code", "sentence"),
    [
        pytest.param("SELECT nope FROM orders", 3, "nope", id="an error"),
        pytest.param("SELEC 1", 3, "SELEC", id="no SQL"),
        pytest.param("DELETE FROM orders", 7, "DELETE", id="a write"),
    ],
)
def test_a_refusal_is_not_retried(flight_tls: FlightServer, tmp_path: Path, sql: str, code: int, sentence: str) -> None:
    before = flight_tls.failed_statements()
    with plain_flight(flight_tls) as client, pytest.raises(Exception, match=sentence):
        flight_table(client, sql)
    once = flight_tls.failed_statements() - before

    (answer,) = spice.ask(tmp_path, spice.options_of(flight_tls, K1), [{"sql": sql}])

    assert answer["error"]["code"] == code
    assert sentence in answer["error"]["message"]
    assert once > 0
    assert flight_tls.failed_statements() - before == 2 * once


def test_without_tls_it_falls_back_to_http(flight: FlightServer, tmp_path: Path) -> None:
    before = flight.refused_calls()

    answer, with_parameters = spice.ask(
        tmp_path,
        spice.options_of(flight, K1),
        [
            {"sql": "SELECT id, name FROM orders ORDER BY id LIMIT 2"},
            {"sql": "SELECT name FROM orders WHERE id = $1", "parameters": [7]},
        ],
    )

    assert [row["name"] for row in answer["rows"]] == ["name 0", "name 1"]
    assert with_parameters["rows"] == [{"name": "name 7"}]
    assert [line for line in answer["log"] if "falling back to HTTP" in line]
    assert flight.refused_calls() - before == 2  # over Flight

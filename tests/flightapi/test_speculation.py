"""Speculative execution: who gets a result, for how long it waits, and that it is never stale."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from flightapi import speculation
from flightapi.protocol import messages
from flightapi.speculation import BACKOFF_S, BUDGET_S, SpeculationBudget
from queryengine.pool.inprocess import InProcessEngine
from tests.flightapi.endpoint import (
    Clock,
    Endpoint,
    Outcomes,
    bearer,
    descriptor,
    executing,
    row_of,
    schema_of,
    serving,
    table_of,
    ticket_of,
)
from tests.queryengine.conftest import config_of
from tests.queryengine.publishing import Publisher
from tests.system.harness import K2

PATIENCE_S = 60.0


def test_a_statement_over_the_budget_is_not_tried_again_for_a_while() -> None:
    clock = Clock()
    budget = SpeculationBudget(clock)
    budget.back_off("SELECT a FROM t WHERE a > 10 AND b = 'x'")

    assert budget.of("SELECT a FROM t WHERE a > 7 AND b = 'it'") == 0.0
    assert budget.of("SELECT a FROM t") == BUDGET_S
    clock.now = BACKOFF_S
    assert budget.of("SELECT a FROM t WHERE a > 7 AND b = 'it'") == BUDGET_S


def test_back_offs_are_bounded_and_long_texts_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculation, "MAX_BACKOFFS", 1)
    budget = SpeculationBudget()
    budget.back_off("FROM a")
    budget.back_off("FROM b")

    budgets = [budget.of(sql) for sql in ("FROM a", "FROM b", "FROM c" + " " * speculation.MAX_CHARACTERS)]
    assert budgets == [BUDGET_S, 0.0, 0.0]


# Over a socket.


@dataclass
class Served:
    """An endpoint whose engine can be stopped, so that later results must be speculative ones."""

    endpoint: Endpoint
    stop_engine: Callable[[], None]
    publish: Callable[..., object]

    def ask(self, sql: str) -> bytes:
        """Return the ticket of a statement."""
        return ticket_of(self.endpoint.info(messages.CommandStatementQuery(query=sql)))

    def rows(self, ticket: bytes) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = table_of(self.endpoint.works("DoGet", ticket).messages).to_pylist()
        return rows


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    publisher = Publisher(tmp_path)
    publisher.publish(flights="SELECT 1 AS id")
    # Every statement that ends finishes within the budget, however slow the machine is.
    monkeypatch.setattr(speculation, "BUDGET_S", PATIENCE_S)
    config = config_of(tmp_path, ("flights",))
    with closing(InProcessEngine(config)) as engine, serving(config, engine) as endpoint:
        yield Served(endpoint, engine.close, publisher.publish)


def test_get_flight_info_runs_a_statement_for_its_ticket_and_key(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    ticket = served.ask("SELECT id, random() < 2 AS b FROM flights")
    served.stop_engine()

    assert served.endpoint.fails("DoGet", ticket, metadata=bearer(K2)).status == "UNAVAILABLE"
    caplog.clear()
    answer = served.endpoint.works("DoGet", ticket)
    again = served.endpoint.fails("DoGet", ticket)

    assert table_of(answer.messages).to_pylist() == [{"id": 1, "b": True}]
    assert again.status == "UNAVAILABLE"
    lines = [record.fields for record in caplog.records if record.name == "flightapi.queries"]  # type: ignore[attr-defined]
    assert [(line["outcome"], line.get("rows")) for line in lines] == [("ok", 1), ("engine_unavailable", 0)]
    assert lines[0]["query_id"] == answer.trailing["x-query-id"]


def test_data_published_after_get_flight_info_or_a_prepare_is_seen(served: Served) -> None:
    ticket = served.ask("FROM flights")
    handle = served.endpoint.prepare("FROM flights").prepared_statement_handle
    served.publish(flights="SELECT 'x' AS name, 2 AS id")

    info = served.endpoint.info(executing(handle))
    assert schema_of(info.schema).names == ["name", "id"]
    assert served.rows(ticket) == served.rows(ticket_of(info)) == [{"name": "x", "id": 2}]


def test_a_deterministic_statement_runs_when_it_is_prepared(served: Served) -> None:
    handle = served.endpoint.prepare("FROM flights").prepared_statement_handle
    served.stop_engine()

    info = served.endpoint.info(executing(handle))

    assert served.rows(ticket_of(info)) == [{"id": 1}]
    assert served.endpoint.fails("GetFlightInfo", descriptor(executing(handle))).status == "UNAVAILABLE"


def test_no_other_statement_runs_when_it_is_prepared(served: Served) -> None:
    statements = ("SELECT now() AS t", "SELECT random() AS r FROM flights", "SELECT $1 AS a")
    handles = [served.endpoint.prepare(sql).prepared_statement_handle for sql in statements]
    served.stop_engine()

    for handle in handles:
        assert served.endpoint.fails("GetFlightInfo", descriptor(executing(handle))).status == "UNAVAILABLE"


def test_parameters_bound_after_get_flight_info_count(served: Served) -> None:
    handle = served.endpoint.prepare("SELECT $1 AS a").prepared_statement_handle
    served.endpoint.bind(handle, row_of(a=1))
    first, second = (ticket_of(served.endpoint.info(executing(handle))) for _ in range(2))

    assert served.rows(first) == [{"a": 1}]
    served.endpoint.bind(handle, row_of(a=2))
    assert served.rows(second) == [{"a": 2}]


def test_a_speculative_failure_is_reported_at_once(served: Served, outcomes: Outcomes) -> None:
    command = messages.CommandStatementQuery(query="SELECT ('x' || id)::INTEGER AS a FROM flights")

    refused = served.endpoint.fails("GetFlightInfo", descriptor(command))

    assert (refused.status, refused.trailing["x-error-code"]) == ("INVALID_ARGUMENT", "sql_error")
    assert outcomes() == ["sql_error"]


def test_get_schema_does_not_speculate(served: Served) -> None:
    command = messages.CommandStatementQuery(query="FROM flights")
    served.endpoint.works("GetSchema", descriptor(command))
    served.stop_engine()

    assert served.endpoint.fails("GetFlightInfo", descriptor(command)).status == "UNAVAILABLE"

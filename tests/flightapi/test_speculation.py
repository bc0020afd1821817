"""Answers that are there before they are asked for: whose they are, for how long, and that none is wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from flightapi import speculation
from flightapi.protocol import messages
from flightapi.speculation import AHEAD_S, IN_VAIN_S, WAITING_S, AnswersAhead, Asked
from queryengine.engine import Answer, ArrowParameters, Description, QueryTimings
from queryengine.pool.inprocess import InProcessEngine
from tests.flightapi.endpoint import (
    Endpoint,
    action,
    bearer,
    descriptor,
    executing,
    row_of,
    serving,
    table_of,
    ticket_of,
)
from tests.queryengine.conftest import config_of
from tests.queryengine.publishing import ENDLESS, Publisher
from tests.system.harness import K2

PATIENCE_S = 60.0

ASKED = Asked("key", b"ticket", "FROM flights")
ANSWER = Answer(chunks=(b"schema", b"rows"), timings=QueryTimings(rows=1))
FOUND = Description(schema=b"schema", parameters=(), is_steady=True, answer=ANSWER)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    publisher = Publisher(tmp_path)
    publisher.publish(flights="SELECT 1 AS id")
    return publisher


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def answers(publisher: Publisher, clock: Clock) -> AnswersAhead:
    return AnswersAhead(publisher.state_dir, clock)


def test_an_answer_is_taken_once(answers: AnswersAhead) -> None:
    answers.keep(ASKED, FOUND, answers.published())

    assert [answers.take(ASKED), answers.take(ASKED)] == [ANSWER, None]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(replace(ASKED, fingerprint="other"), id="key"),
        pytest.param(replace(ASKED, name=b"other"), id="ticket"),
        pytest.param(replace(ASKED, sql="FROM planes"), id="statement"),
        pytest.param(replace(ASKED, parameters=ArrowParameters(b"row")), id="parameters"),
    ],
)
def test_nobody_else_gets_it(answers: AnswersAhead, other: Asked) -> None:
    answers.keep(ASKED, FOUND, answers.published())

    assert answers.take(other) is None
    assert answers.pass_on(other, ASKED) is None


def test_no_answer_is_given_over_other_data(answers: AnswersAhead, publisher: Publisher) -> None:
    before = answers.published()
    answers.keep(ASKED, FOUND, before)
    publisher.publish(flights="SELECT 2 AS id")
    answers.keep(replace(ASKED, name=b"late"), FOUND, before)

    assert answers.take(ASKED) is None
    assert answers.pass_on(replace(ASKED, name=b"late"), ASKED) is None


def test_an_answer_waits_for_a_while(answers: AnswersAhead, clock: Clock) -> None:
    names = [replace(ASKED, name=name) for name in (b"a", b"b", b"c")]
    for asked in names:
        answers.keep(asked, FOUND, answers.published())

    clock.now = WAITING_S - 1
    assert answers.take(names[0]) == ANSWER
    clock.now = WAITING_S
    assert answers.take(names[1]) is None
    answers.expire()
    assert len(answers) == 0


def test_what_is_passed_on_waits_no_longer(answers: AnswersAhead, clock: Clock) -> None:
    answers.keep(ASKED, FOUND, answers.published())
    clock.now = WAITING_S - 1

    assert answers.pass_on(ASKED, replace(ASKED, name=b"other")) == FOUND

    assert answers.take(ASKED) is None
    clock.now = WAITING_S
    assert answers.take(replace(ASKED, name=b"other")) is None


def test_what_waits_has_a_limit(answers: AnswersAhead, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculation, "MAX_BYTES", 10_000)
    with_row = replace(ASKED, parameters=ArrowParameters(bytes(5_000)))
    names = [replace(ASKED, name=bytes([number])) for number in range(4)]

    for asked in names:
        answers.keep(asked, FOUND, answers.published())
    answers.keep(with_row, FOUND, answers.published())

    assert len(answers) < 5
    assert answers.take(names[0]) is None
    assert answers.take(with_row) == ANSWER


def test_without_an_answer_nothing_waits(answers: AnswersAhead) -> None:
    answers.keep(ASKED, replace(FOUND, answer=None), answers.published())

    assert len(answers) == 0


def test_what_was_in_vain_is_not_tried_again_at_once(answers: AnswersAhead, clock: Clock) -> None:
    answers.was_in_vain("SELECT a FROM t WHERE a > 10 AND b = 'x'")

    assert answers.limit_s("SELECT a FROM t WHERE a > 7 AND b = 'it'") == 0.0
    assert answers.limit_s("SELECT a FROM t") == AHEAD_S
    clock.now = IN_VAIN_S
    assert answers.limit_s("SELECT a FROM t WHERE a > 7 AND b = 'it'") == AHEAD_S


def test_shapes_are_forgotten_in_the_end(answers: AnswersAhead, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculation, "MAX_SHAPES", 1)
    answers.was_in_vain("FROM a")
    answers.was_in_vain("FROM b")

    assert [answers.limit_s("FROM a"), answers.limit_s("FROM b")] == [AHEAD_S, 0.0]


def test_a_long_text_is_not_run_ahead(answers: AnswersAhead) -> None:
    assert answers.limit_s("SELECT 1" + " " * speculation.MAX_CHARACTERS) == 0.0


# Over a socket.


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is: a statement that ends is run ahead to its end."""
    monkeypatch.setattr(speculation, "AHEAD_S", PATIENCE_S)


class Served:
    """An endpoint whose engine can be stopped: what is answered after that was there before."""

    def __init__(self, endpoint: Endpoint, engine: InProcessEngine, publisher: Publisher) -> None:
        self.endpoint = endpoint
        self.stop_engine = engine.close
        self.publish: Callable[..., object] = publisher.publish

    def ask(self, sql: str) -> bytes:
        """Return the ticket of a statement."""
        return ticket_of(self.endpoint.info(messages.CommandStatementQuery(query=sql)))

    def rows(self, ticket: bytes) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = table_of(self.endpoint.works("DoGet", ticket).messages).to_pylist()
        return rows


@pytest.fixture
def served(publisher: Publisher, _patient: None) -> Iterator[Served]:
    config = config_of(publisher.state_dir, ("flights",))
    with ExitStack() as stack:
        engine = stack.enter_context(closing(InProcessEngine(config)))
        yield Served(stack.enter_context(serving(config, engine)), engine, publisher)


def test_the_answer_is_there_before_it_is_asked_for(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    ticket = served.ask("SELECT id, random() < 2 AS b FROM flights")
    served.stop_engine()

    with caplog.at_level(logging.INFO):
        answer = served.endpoint.works("DoGet", ticket)
        again = served.endpoint.fails("DoGet", ticket)

    assert table_of(answer.messages).to_pylist() == [{"id": 1, "b": True}]
    assert again.status == "UNAVAILABLE"
    lines = [record.fields for record in caplog.records if record.name == "flightapi.queries"]  # type: ignore[attr-defined]
    assert [(line["outcome"], line.get("rows")) for line in lines] == [("ok", 1), ("engine_unavailable", None)]
    assert lines[0]["query_id"] == answer.trailing["x-query-id"]


def test_another_key_has_the_statement_run_anew(served: Served) -> None:
    ticket = served.ask("FROM flights")
    served.stop_engine()

    assert served.endpoint.fails("DoGet", ticket, metadata=bearer(K2)).status == "UNAVAILABLE"


def test_data_that_is_published_meanwhile_is_seen(served: Served) -> None:
    ticket = served.ask("FROM flights")
    served.publish(flights="SELECT 2 AS id")

    assert served.rows(ticket) == [{"id": 2}]


def test_a_steady_statement_is_run_when_it_is_prepared(served: Served) -> None:
    handle = served.endpoint.prepare("FROM flights").prepared_statement_handle
    served.stop_engine()

    info = served.endpoint.info(executing(handle))

    assert served.rows(ticket_of(info)) == [{"id": 1}]
    assert served.endpoint.fails("GetFlightInfo", descriptor(executing(handle))).status == "UNAVAILABLE"


@pytest.mark.parametrize("sql", ["SELECT now() AS t", "SELECT random() AS r FROM flights", "SELECT $1 AS a"])
def test_no_other_is(served: Served, sql: str) -> None:
    handle = served.endpoint.prepare(sql).prepared_statement_handle
    served.stop_engine()

    assert served.endpoint.fails("GetFlightInfo", descriptor(executing(handle))).status == "UNAVAILABLE"


def test_a_prepared_statement_sees_what_was_published_since(served: Served) -> None:
    handle = served.endpoint.prepare("FROM flights").prepared_statement_handle
    served.publish(flights="SELECT 2 AS id")

    assert served.rows(ticket_of(served.endpoint.info(executing(handle)))) == [{"id": 2}]


def test_parameters_that_are_bound_meanwhile_count(served: Served) -> None:
    handle = served.endpoint.prepare("SELECT $1 AS a").prepared_statement_handle
    served.endpoint.bind(handle, row_of(a=1))
    first, second = (ticket_of(served.endpoint.info(executing(handle))) for _ in range(2))

    assert served.rows(first) == [{"a": 1}]
    served.endpoint.bind(handle, row_of(a=2))
    assert served.rows(second) == [{"a": 2}]


def test_a_cancelled_ticket_gives_nothing(served: Served) -> None:
    info = served.endpoint.info(messages.CommandStatementQuery(query="FROM flights"))
    served.endpoint.works("DoAction", action("CancelFlightInfo", _cancelling(info)))

    assert served.endpoint.fails("DoGet", ticket_of(info)).status == "CANCELLED"


def _cancelling(info: object) -> bytes:
    return bytes(messages.CancelFlightInfoRequest(info=info).SerializeToString())


def test_a_statement_that_fails_when_it_is_run_says_so_at_once(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    command = messages.CommandStatementQuery(query="SELECT ('x' || id)::INTEGER AS a FROM flights")

    with caplog.at_level(logging.INFO):
        refused = served.endpoint.fails("GetFlightInfo", descriptor(command))

    assert (refused.status, refused.trailing["x-error-code"]) == ("INVALID_ARGUMENT", "sql_error")
    outcomes = [record.fields["outcome"] for record in caplog.records if record.name == "flightapi.queries"]  # type: ignore[attr-defined]
    assert outcomes == ["sql_error"]


def test_get_schema_leaves_nothing_behind(served: Served) -> None:
    command = messages.CommandStatementQuery(query="FROM flights")
    served.endpoint.works("GetSchema", descriptor(command))
    served.stop_engine()

    assert served.endpoint.fails("GetFlightInfo", descriptor(command)).status == "UNAVAILABLE"


def test_a_long_statement_is_described_soon(endpoint: Endpoint) -> None:
    for _ in range(2):  # run ahead in vain, and then not at all
        info = endpoint.info(messages.CommandStatementQuery(query=f"SELECT 1 AS a, ({ENDLESS}) AS b"))

        assert info.endpoint

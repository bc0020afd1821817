"""What counts as a request of a key with `requests_per_minute`: a statement once, whatever calls it takes."""

from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from authkeys.access import Access
from authkeys.keys import KeySet
from authkeys.principal import Principal
from flightapi import commands
from flightapi.protocol import messages
from flightapi.request_counts import CREDIT_S, MAX_CLAIMS_OF_KEY, RequestCounts, Step
from queryengine.errors import RateLimitError
from queryengine.pool.inprocess import InProcessEngine
from queryengine.pool.statement_queue import WINDOW_S, RateLimits
from runtimeconf.model import KeyLimits, RuntimeConfig
from tests.flightapi.endpoint import (
    Answer,
    Clock,
    Endpoint,
    Metadata,
    action,
    bearer,
    descriptor,
    executing,
    row_of,
    serving,
    ticket,
    ticket_of,
    unpacked,
    upload,
)
from tests.flightapi.test_named_keys import named

LIMIT = 8


class Limited:
    """A caller whose every RPC may be refused, and how many of its RPCs of each kind were answered."""

    def __init__(self, endpoint: Endpoint, metadata: Metadata) -> None:
        self.endpoint = endpoint
        self.metadata = metadata
        self.answered: dict[str, int] = {}
        self.is_refused = False

    def call(self, method: str, *requests: bytes) -> bytes | None:
        """Return the first message of the answer; None if the call is one too many."""
        answer = self.endpoint.call(method, *requests, metadata=self.metadata)
        if isinstance(answer, Answer):
            self.answered[method] = self.answered.get(method, 0) + 1
            return answer.messages[0] if answer.messages else b""
        assert (answer.status, answer.trailing["x-error-code"]) == ("RESOURCE_EXHAUSTED", "rate_limited"), answer
        self.is_refused = True
        return None

    def info(self, command: object) -> bytes | None:
        """Return the ticket of a command."""
        message = self.call("GetFlightInfo", descriptor(command))
        return message and ticket_of(messages.parse(messages.FlightInfo, message))

    def run(self, command: object) -> None:
        if found := self.info(command):
            self.call("DoGet", found)

    def prepare(self, sql: str) -> bytes | None:
        body = messages.pack(messages.ActionCreatePreparedStatementRequest(query=sql))
        message = self.call("DoAction", action("CreatePreparedStatement", body))
        return message and unpacked(messages.ActionCreatePreparedStatementResult, message).prepared_statement_handle


@pytest.fixture(scope="module")
def limited(config: RuntimeConfig, engine: InProcessEngine) -> Iterator[Callable[[], Limited]]:
    """Makes callers with keys of their own, each with `requests_per_minute: 8`."""
    keys = [bearer(f"request-counts-{number}-Zq8vT3mN6bX9cL2pR5sW7y") for number in range(40)]
    limits = KeyLimits(requests_per_minute=LIMIT)
    key_set = KeySet([], b"salt", [named(f"k{number}", key, limits=limits) for number, key in enumerate(keys)])
    numbers = count()
    with serving(config, engine, Access(key_set=key_set)) as endpoint:
        yield lambda: Limited(endpoint, keys[next(numbers)])


def query(number: int) -> object:
    return messages.CommandStatementQuery(query=f"SELECT {number} AS a")


def statements(caller: Limited, number: int) -> None:
    caller.run(query(number))


def lists_of_tables(caller: Limited, _: int) -> None:
    caller.run(messages.CommandGetTables(include_schema=True))


def plain_tickets(caller: Limited, number: int) -> None:
    caller.call("DoGet", ticket(f"SELECT {number}".encode()))


def commands_as_tickets(caller: Limited, number: int) -> None:
    caller.call("DoGet", ticket(messages.pack(query(number))))


def schemas(caller: Limited, number: int) -> None:
    caller.call("GetSchema", descriptor(query(number)))


def prepared_once(caller: Limited, number: int) -> None:
    if handle := caller.prepare(f"SELECT {number} AS a"):
        caller.run(executing(handle))


def prepared_with_parameters(caller: Limited, number: int) -> None:
    handle = caller.prepare("SELECT $1::INTEGER AS a")
    if handle and caller.call("DoPut", *upload(handle, row_of(a=pa.array([number])))) is not None:
        caller.run(executing(handle))


@pytest.mark.parametrize(
    "converse",
    [
        statements,
        lists_of_tables,
        plain_tickets,
        commands_as_tickets,
        schemas,
        prepared_once,
        prepared_with_parameters,
    ],
)
def test_as_many_conversations_as_the_limit(
    limited: Callable[[], Limited], converse: Callable[[Limited, int], None]
) -> None:
    caller = limited()

    for number in range(2 * LIMIT):
        converse(caller, number)

    assert set(caller.answered.values()) == {LIMIT}


def test_executions_of_one_prepared_statement_count_each(limited: Callable[[], Limited]) -> None:
    caller = limited()
    handle = caller.prepare("SELECT $1::INTEGER AS a")
    assert handle

    for number in range(2 * LIMIT):
        if caller.call("DoPut", *upload(handle, row_of(a=pa.array([number])))) is not None:
            caller.run(executing(handle))

    assert caller.answered == {"DoAction": 1, "DoPut": LIMIT, "GetFlightInfo": LIMIT, "DoGet": LIMIT}


def test_parameters_that_are_never_used_count(limited: Callable[[], Limited]) -> None:
    caller = limited()
    handle = caller.prepare("SELECT $1::INTEGER AS a")
    assert handle

    while not caller.is_refused:
        caller.call("DoPut", *upload(handle, row_of(a=pa.array([1]))))

    assert caller.answered["DoPut"] == LIMIT


def test_a_ticket_is_fetched_once_for_its_request(limited: Callable[[], Limited]) -> None:
    caller = limited()
    found = caller.info(query(1))
    assert found

    while not caller.is_refused:
        caller.call("DoGet", found)

    assert caller.answered["DoGet"] == LIMIT


def forged(found: bytes, sql: str) -> bytes:
    """Return a ticket of *sql* with the id of the ticket *found*."""
    plan = commands.plan_ticket(found)
    assert isinstance(plan, commands.Statement)
    return ticket(commands.ticket(commands.Statement(sql), plan.ticket_id))


def test_a_ticket_pays_for_no_other_statement(limited: Callable[[], Limited]) -> None:
    caller = limited()

    while not caller.is_refused:
        if found := caller.info(query(1)):
            caller.call("DoGet", forged(found, "SELECT 2 AS a"))

    assert caller.answered == {"GetFlightInfo": LIMIT // 2, "DoGet": LIMIT // 2}


def test_a_ticket_pays_for_no_other_parameters(limited: Callable[[], Limited]) -> None:
    caller = limited()
    handle = caller.prepare("SELECT $1::INTEGER AS a")
    assert handle

    while not caller.is_refused:
        caller.call("DoPut", *upload(handle, row_of(a=pa.array([1]))))
        if found := caller.info(executing(handle)):
            caller.call("DoPut", *upload(handle, row_of(a=pa.array([2]))))
            caller.call("DoGet", found)

    # One for each first DoPut with its GetFlightInfo, one for each second DoPut, and one for each DoGet.
    assert caller.answered["DoGet"] <= LIMIT // 3 + 1


def test_a_ticket_of_another_key_pays_for_nothing(limited: Callable[[], Limited]) -> None:
    giver, caller = limited(), limited()
    found = [giver.info(query(number)) for number in range(LIMIT)]

    for one in (*found, *found):
        if one:
            caller.call("DoGet", one)

    assert caller.answered == {"DoGet": LIMIT}


def test_an_unknown_handle_counts(limited: Callable[[], Limited]) -> None:
    caller = limited()
    statuses = [
        caller.endpoint.fails("GetFlightInfo", descriptor(executing(b"unknown")), metadata=caller.metadata).status
        for _ in range(LIMIT + 1)
    ]

    assert statuses == ["NOT_FOUND"] * LIMIT + ["RESOURCE_EXHAUSTED"]


class Engine:
    """Counts requests as the engine does, on a clock that a test sets."""

    def __init__(self, clock: Clock) -> None:
        self.count_request = RateLimits(clock).take


CALLER = Principal(fingerprint="k", limits=KeyLimits(requests_per_minute=5))


def test_a_credit_expires() -> None:
    clock = Clock()
    counts = RequestCounts(Engine(clock), clock)
    for number in range(4):
        counts.grant(CALLER, b"%d" % number, counts.count(CALLER, Step.DESCRIBE))

    clock.now += CREDIT_S
    counts.count(CALLER, Step.FETCH, b"0")

    with pytest.raises(RateLimitError):
        counts.count(CALLER, Step.FETCH, b"1")
    counts.expire()
    assert len(counts) == 0


def test_credits_are_bounded_for_each_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flightapi.request_counts.MAX_CLAIMS_OF_KEY", 2)
    clock = Clock()
    counts = RequestCounts(Engine(clock), clock)

    for number in range(4):
        counts.grant(CALLER, b"%d" % number, counts.count(CALLER, Step.DESCRIBE))

    assert MAX_CLAIMS_OF_KEY > len(counts) == 2


@given(
    steps=st.lists(
        st.tuples(st.floats(0, 20, allow_nan=False), st.sampled_from([Step.DESCRIBE, Step.FETCH]), st.integers(0, 5)),
        max_size=150,
    )
)
def test_no_minute_has_more_results_than_the_limit(steps: list[tuple[float, Step, int]]) -> None:
    clock = Clock()
    counts = RequestCounts(Engine(clock), clock)
    fetched: list[float] = []

    for pause, step, number in steps:
        clock.now += pause
        try:
            counted = counts.count(CALLER, step, b"%d" % number if step is Step.FETCH else b"")
        except RateLimitError:
            continue
        if step is Step.DESCRIBE:
            counts.grant(CALLER, b"%d" % number, counted)
        else:
            fetched.append(clock.now)

    # A request may be fetched up to a second after the time at which it counts.
    for begin in fetched:
        assert sum(begin <= moment < begin + WINDOW_S - 1 for moment in fetched) <= 5


def test_a_key_without_a_limit_is_not_counted() -> None:
    counts = RequestCounts(SimpleNamespace())

    assert counts.count(Principal(fingerprint="k"), Step.FETCH) is None

import pytest
from grpc import StatusCode

from authkeys.errors import AuthKeysError
from datasources.errors import DatasetError, SourceError
from flightapi.error_table import (
    HIDDEN_DETAIL,
    MAX_ENCODED_BYTES,
    MAX_MESSAGE_BYTES,
    STATUSES,
    code_of,
    refusal_of,
    shortened,
)
from flightapi.errors import FlightApiError, InvalidRequestError, NotFoundError, ReadOnlyError, UnsupportedError
from queryengine.errors import (
    EngineWorkerDiedError,
    QueryCancelledError,
    QueryError,
    QueryTimeoutError,
    ResourceLimitError,
    SqlError,
    StatementError,
)
from sqlapi import error_table as http
from tests.corpus import each
from tests.sqlapi.test_error_table import with_subclasses

#: The statuses that clients retry by themselves.
RETRIED = {StatusCode.UNKNOWN, StatusCode.INTERNAL, StatusCode.UNAVAILABLE, StatusCode.ABORTED}


@pytest.mark.parametrize("root", [QueryError, FlightApiError])
def test_every_error_of_a_statement_has_its_own_row(root: type[Exception]) -> None:
    assert set(with_subclasses(root)) <= set(STATUSES)


@pytest.mark.parametrize("root", [AuthKeysError, DatasetError])
def test_every_other_error_has_a_status(root: type[Exception]) -> None:
    assert all(set(kind.__mro__) & set(STATUSES) for kind in with_subclasses(root))


def test_faults_of_the_caller_are_not_retried() -> None:
    roots = (
        StatementError,
        QueryTimeoutError,
        QueryCancelledError,
        ResourceLimitError,
        EngineWorkerDiedError,
        InvalidRequestError,
        NotFoundError,
        ReadOnlyError,
        UnsupportedError,
    )

    assert not {STATUSES[kind] for root in roots for kind in with_subclasses(root)} & RETRIED


def test_message_and_code_equal_those_of_http() -> None:
    for error in (SqlError("Table nope does not exist."), QueryTimeoutError(3), SourceError("/secret/path")):
        ours, theirs = refusal_of(error), http.refusal_of(error)

        assert (ours.message, ours.code) == (theirs.detail, theirs.code)


def test_an_unexpected_error_reveals_nothing() -> None:
    refusal = refusal_of(KeyError("/secret/path"))

    assert (refusal.status, refusal.message, refusal.is_internal) == (StatusCode.INTERNAL, HIDDEN_DETAIL, True)
    assert code_of(KeyError("x")) == "internal_error"


@each("letter", ["a", "é", "€", "\N{GRINNING FACE}", "\n", "%"])
@pytest.mark.parametrize("before", ["", "x"])
def test_a_long_message_is_cut_between_characters(letter: str, before: str) -> None:
    for count in (1, 700, 1000, 1499, 1500, 2999, 3000, 3001, 100_000):
        message = before + letter * count

        short = shortened(message)

        plain = short.encode()
        encoded = sum(3 if byte < 0x20 or byte > 0x7E or byte == ord("%") else 1 for byte in plain)
        assert len(plain) <= MAX_MESSAGE_BYTES
        assert encoded <= MAX_ENCODED_BYTES
        assert short == message or (short.endswith("...") and message.startswith(short[:-3]))
        if short != message:
            assert len(plain) > MAX_MESSAGE_BYTES - 10 or encoded > MAX_ENCODED_BYTES - 30


@pytest.mark.parametrize(
    ("message", "short"),
    [("a" * 2997 + "\N{GRINNING FACE}", "a" * 2997 + "..."), ("a\ud800b", "a?b")],
    ids=["a character at the cut", "invalid Unicode"],
)
def test_a_message_is_cut_between_characters_and_can_be_sent(message: str, short: str) -> None:
    assert shortened(message) == short

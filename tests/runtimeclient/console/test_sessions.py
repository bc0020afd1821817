"""Tokens and sessions of the console, at any time."""

import time

import pytest

from runtimeclient.console.sessions import Sessions


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time; tests set it."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_token_works_once_within_ten_minutes(clock: list[float]) -> None:
    sessions = Sessions()
    early, late = sessions.make_token(), sessions.make_token()

    clock[0] += 599
    session = sessions.open(early)
    assert session is not None
    assert sessions.is_open(session)
    assert sessions.open(early) is None

    clock[0] += 2
    assert sessions.open(late) is None
    assert sessions.is_open(session), "only links expire"


@pytest.mark.parametrize("secret", [None, "", "guess", "\ud800", "x" * 100_000])
def test_other_secrets_open_nothing(secret: str | None) -> None:
    sessions = Sessions()
    token = sessions.make_token()

    assert not sessions.is_open(secret)
    assert secret is None or sessions.open(secret) is None
    assert not sessions.is_open(token), "a token is no session"


def test_the_time_without_a_page_counts_from_its_last_request(clock: list[float]) -> None:
    sessions = Sessions()
    session = sessions.open(sessions.make_token())

    clock[0] += 3000
    sessions.is_open("guess")
    assert sessions.idle_s() == 3000
    sessions.is_open(session)
    assert sessions.idle_s() == 0


def test_links_and_sessions_are_bounded() -> None:
    sessions = Sessions()
    first = sessions.make_token()

    opened = [sessions.open(sessions.make_token()) for _ in range(100)]

    assert sum(map(sessions.is_open, opened)) == 64
    for _ in range(100):
        sessions.make_token()
    assert sessions.open(first) is None

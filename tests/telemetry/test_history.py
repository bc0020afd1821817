from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from telemetry.history import COLUMNS, History, entry
from tests.telemetry.events_of import statement


def ids(history: History, key: str, limit: int = 1000) -> list[int]:
    return [int(row["id"], 16) for row in history.answer(key, limit)]


def test_an_entry_says_when_how_long_and_how_it_ended() -> None:
    ended = statement(
        1, code="query_timeout", cache="miss", trace_id="4bf92f3577b34da6a3ce929d0e0e4736", sql="SELECT 1"
    )

    shown = entry(ended)

    assert tuple(shown) == COLUMNS
    assert shown == {
        "id": f"{1:032x}",
        "request_id": "request-1",
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "started": "2026-01-01T00:00:01.000Z",
        "protocol": "http",
        "outcome": "query_timeout",
        "queued_ms": 1.0,
        "parse_ms": 2.0,
        "run_ms": 8.0,
        "encode_ms": 4.0,
        "total_ms": 15.0,
        "rows": 3,
        "bytes": 30,
        "cache": "miss",
        "statement": "d" * 16,
        "sql": "SELECT 1",
    }
    unknown = entry(statement(cache="", statement="", request_id=""))
    assert [name for name in COLUMNS if unknown[name] is None] == [
        "request_id",
        "trace_id",
        "cache",
        "statement",
        "sql",
    ]


def test_a_key_gets_its_own_statements_newest_first() -> None:
    history = History(100)
    history.take([statement(1), statement(2, fingerprint="bb"), statement(3), statement(4)])

    assert ids(history, "aa") == [4, 3, 1]
    assert ids(history, "aa", limit=2) == [4, 3]
    assert ids(history, "bb") == [2]
    assert ids(history, "cc") == ids(history, "") == []


def test_statements_of_several_processes_are_in_the_order_in_which_they_finished() -> None:
    history = History(100)
    history.take([statement(5), statement(1, total_ms=5500), statement(7)])
    history.take([statement(4), statement(6), statement(6, request_id="equal")])
    history.take([statement(2), statement(8)])  # 2 finished too long before the last one: the clock was put back
    assert ids(history, "aa") == [8, 2, 7, 1, 6, 6, 5, 4]


@given(st.lists(st.sampled_from("aaaaaabbc"), max_size=80), st.integers(1, 12), st.integers(1, 30))
def test_a_key_with_fewer_statements_loses_none_to_one_with_more(keys: list[str], max_entries: int, batch: int) -> None:
    history = History(max_entries)
    events = [statement(number, fingerprint=key) for number, key in enumerate(keys)]
    for first in range(0, len(events), batch):
        history.take(events[first : first + batch])

    kept = {key: ids(history, key) for key in "abc"}
    assert sum(map(len, kept.values())) == min(len(keys), max_entries)
    most = max(map(len, kept.values()))
    for key, sent in Counter(keys).items():
        newest = [number for number in range(len(keys)) if keys[number] == key][::-1]
        assert kept[key] == newest[: len(kept[key])]
        assert len(kept[key]) >= min(sent, most - 1)  # who has lost one had as many as anybody


def test_a_smaller_size_and_no_text_hold_at_once() -> None:
    history = History(100)
    history.take([statement(number, sql="SELECT 'secret'") for number in range(10)])

    history.resize(3)
    history.forget_sql()

    assert ids(history, "aa") == [9, 8, 7]
    assert "secret" not in str(history.answer("aa", 10))

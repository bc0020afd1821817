import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.statistics import COLUMNS, PHASES, Statistics
from tests.telemetry.events_of import statement


def rows(statistics: Statistics, key: str = "aa", limit: int = 1000) -> list[dict[str, Any]]:
    return list(statistics.answer(key, limit)["statements"])


def test_statements_of_one_digest_are_counted_together_for_each_key() -> None:
    statistics = Statistics()
    statistics.take(
        [
            statement(1, sql="SELECT 1"),
            statement(2, code="sql_error", rows=0, bytes=0, total_ms=25.0, run_ms=18.0, sql="SELECT 2"),
            statement(
                3, cache="hit", total_ms=2.0, queued_ms=0.0, parse_ms=0.0, run_ms=0.0, encode_ms=0.0, sql="SELECT 3"
            ),
            statement(4, fingerprint="bb"),
        ]
    )

    (row,) = rows(statistics)
    assert tuple(row) == COLUMNS
    assert row | {"statement": "d" * 16, "calls": 3, "errors": 1, "cache_hits": 1, "rows": 6, "bytes": 60} == row
    assert (row["last"], row["sql"]) == ("2026-01-01T00:00:03.000Z", "SELECT 3")
    assert [row[f"mean_{phase}"] for phase in PHASES] == [1.0, 2.0, 13.0, 4.0, 14.0]
    assert [row["calls"] for row in rows(statistics, "bb")] == [1]
    assert rows(statistics, "") == []


def test_a_caller_that_leaves_early_is_no_error() -> None:
    statistics = Statistics()
    statistics.take([statement(code=code) for code in ("client_closed_request", "query_cancelled", "ok", "sql_error")])

    (row,) = rows(statistics)

    assert (row["calls"], row["errors"]) == (4, 2)


def test_a_phase_without_times_has_no_mean() -> None:
    statistics = Statistics()
    statistics.take([statement(cache="hit")])

    (row,) = rows(statistics)

    assert (row["mean_run_ms"], row["p95_run_ms"]) == (None, None)
    assert (row["mean_total_ms"], row["p95_total_ms"]) == (15.0, 15.0)


def test_the_statements_that_took_longest_in_all_come_first() -> None:
    statistics = Statistics()
    for digest, times in {"often": [5.0] * 9, "slow": [40.0], "fast": [1.0]}.items():
        statistics.take([statement(statement=digest, total_ms=time_ms) for time_ms in times])

    assert [row["statement"] for row in rows(statistics)] == ["often", "slow", "fast"]
    assert [row["statement"] for row in rows(statistics, limit=2)] == ["often", "slow"]


@given(st.lists(st.floats(0.0, 2_000_000.0), min_size=1, max_size=60))
def test_the_percentile_is_at_most_a_quarter_too_high(times: list[float]) -> None:
    statistics = Statistics()
    statistics.take([statement(run_ms=time_ms) for time_ms in times])

    (row,) = rows(statistics)

    exact = sorted(times)[math.ceil(0.95 * len(times)) - 1]
    assert row["mean_run_ms"] == pytest.approx(sum(times) / len(times), abs=0.001)
    if exact <= 800_000:
        assert exact - 0.001 <= row["p95_run_ms"] <= max(0.01, exact * 1.26) + 0.001
    else:
        assert row["p95_run_ms"] <= max(times) + 0.001


def test_more_calls_than_fit_into_32_bits_are_counted() -> None:
    statistics = Statistics()
    statistics.take([statement()])
    (only,) = statistics._of_key["aa"].values()
    for times in only.times:
        for bucket, count in enumerate(times._buckets):
            times._buckets[bucket] = count * (2**32 - 1)

    statistics.take([statement(), statement()])

    assert {sum(times._buckets) for times in only.times} == {2**32 + 1}
    assert rows(statistics)[0]["calls"] == 3


def test_many_digests_of_one_key_push_out_its_own_least_recently_used() -> None:
    statistics = Statistics(max_statements=10)
    statistics.take([statement(fingerprint="quiet", statement=str(number)) for number in range(3)])
    for number in range(1000):
        statistics.take([statement(statement="kept"), statement(statement=str(number))])

    assert [row["statement"] for row in rows(statistics, "quiet")] == ["0", "1", "2"]
    assert {row["statement"] for row in rows(statistics)} == {"kept", *map(str, range(994, 1000))}
    assert statistics.answer("aa", 1)["evicted"] == 994
    assert statistics.answer("quiet", 1)["evicted"] == 0


def test_the_text_can_be_forgotten() -> None:
    statistics = Statistics()
    statistics.take([statement(sql="SELECT 'secret'")])

    statistics.forget_sql()

    assert rows(statistics)[0]["sql"] is None

"""The requests of a key within a minute."""

from hypothesis import given
from hypothesis import strategies as st

from queryengine.pool.statement_queue import WINDOW_S, RateLimits


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@given(
    per_minute=st.integers(1, 20),
    pauses=st.lists(st.floats(0, 40, allow_nan=False) | st.just(0.0), min_size=1, max_size=100),
)
def test_no_minute_has_more_than_the_limit_and_none_is_refused_below_it(per_minute: int, pauses: list[float]) -> None:
    clock = Clock()
    limits = RateLimits(clock)
    allowed: list[float] = []
    for pause in pauses:
        clock.now += pause
        answer = limits.take("k", per_minute)
        within = [moment for moment in allowed if moment > clock.now - WINDOW_S]
        counted = [moment for moment in allowed if int(moment) >= int(clock.now) - WINDOW_S]
        assert answer.is_allowed is (len(counted) < per_minute)
        assert len(within) <= per_minute
        assert answer.remaining == max(0, per_minute - len(counted) - answer.is_allowed)
        assert 1 <= answer.reset_s <= WINDOW_S + 1
        allowed += [clock.now] * answer.is_allowed


def test_keys_are_counted_by_themselves() -> None:
    limits = RateLimits(Clock())

    assert [limits.take(key, 1).is_allowed for key in ("a", "b", "a")] == [True, True, False]

from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from datasources.refresh.schedule import jitter_s, pause_s
from runtimeconf.model import AccelerationConfig

MINUTE = 60.0


#: The pauses before the first retries of a dataset without data, and of one that is served, without jitter.
WITHOUT_DATA = [2, 2, 4, 4, 8, 8, 16, 16, 32, 32, 60, 60]
WITH_DATA = [5, 10, 20, 40, 80, 160, 300, 300]

INTERVALS = [
    pytest.param(AccelerationConfig(refresh_check_interval_s=0.1), 0.1, id="100 ms"),
    pytest.param(AccelerationConfig(refresh_check_interval_s=MINUTE), MINUTE, id="a minute"),
    pytest.param(AccelerationConfig(refresh_check_interval_s=1440 * MINUTE), 1440 * MINUTE, id="a day"),
    pytest.param(AccelerationConfig(retention_check_interval_s=30), 30, id="retention"),
]


def pauses(acceleration: AccelerationConfig, count: int, **how: Any) -> list[float | None]:
    """Return the pauses after 1, 2, ... *count* failures in a row."""
    return [pause_s(acceleration, failures, **how) for failures in range(1, count + 1)]


@pytest.mark.parametrize(
    "acceleration",
    [
        *(case.values[0] for case in INTERVALS),
        AccelerationConfig(refresh_cron="0 0 29 2 *"),
        AccelerationConfig(),
        AccelerationConfig(enabled=False),
        AccelerationConfig(enabled=False, refresh_check_interval_s=0.1),
    ],
)
def test_a_dataset_without_data_is_tried_again_after_2_s_up_to_60_s_whatever_the_interval(
    acceleration: AccelerationConfig,
) -> None:
    assert pauses(acceleration, 12, has_data=False, must_load=True) == WITHOUT_DATA
    assert pause_s(acceleration, 10_000, has_data=False, must_load=True) == 60


@given(st.floats(0, 20))
def test_a_source_that_comes_back_within_20_s_is_noticed_within_8_s(outage_s: float) -> None:
    tried_at = list(accumulate(WITHOUT_DATA))

    assert next(at for at in tried_at if at >= outage_s) - outage_s <= 8


@pytest.mark.parametrize(("acceleration", "interval_s"), INTERVALS)
def test_r16_a_dataset_that_is_served_is_tried_again_ever_less_often_and_never_later_than_the_interval(
    acceleration: AccelerationConfig, interval_s: float
) -> None:
    expected = [min(pause, interval_s) for pause in WITH_DATA]

    for must_load in (True, False):
        assert pauses(acceleration, 8, has_data=True, must_load=must_load) == expected
        late = pauses(acceleration, 8, has_data=True, must_load=must_load, chance=1.0)
        assert late == [min(1.5 * pause, interval_s) for pause in WITH_DATA]
        assert pause_s(acceleration, 10_000, has_data=True, must_load=must_load) == expected[-1]
        assert pause_s(acceleration, 0, has_data=True, must_load=must_load) == interval_s


@pytest.mark.parametrize(
    "acceleration",
    [
        AccelerationConfig(),
        AccelerationConfig(enabled=False),
        AccelerationConfig(enabled=False, refresh_check_interval_s=0.1),
    ],
)
def test_without_an_interval_only_what_must_load_is_tried_again(acceleration: AccelerationConfig) -> None:
    assert pauses(acceleration, 3, has_data=True, must_load=False) == [None] * 3
    assert pause_s(acceleration, 0, has_data=True, must_load=True) is None
    assert pauses(acceleration, 8, has_data=True, must_load=True) == WITH_DATA


@pytest.mark.parametrize(
    ("acceleration", "most_s"),
    [
        pytest.param(AccelerationConfig(refresh_check_interval_s=50), 0, id="off by default"),
        pytest.param(AccelerationConfig(refresh_check_interval_s=50, refresh_jitter_max_s=9), 0, id="off"),
        pytest.param(AccelerationConfig(refresh_check_interval_s=50, refresh_jitter_enabled=True), 5, id="a tenth"),
        pytest.param(
            AccelerationConfig(refresh_check_interval_s=50, refresh_jitter_enabled=True, refresh_jitter_max_s=9),
            9,
            id="as written",
        ),
        pytest.param(
            AccelerationConfig(retention_check_interval_s=7, refresh_jitter_enabled=True, refresh_jitter_max_s=9),
            7,
            id="no longer than expired rows may wait",
        ),
        pytest.param(AccelerationConfig(refresh_jitter_enabled=True), 0, id="no interval"),
        pytest.param(
            AccelerationConfig(enabled=False, refresh_check_interval_s=50, refresh_jitter_enabled=True),
            0,
            id="an interval that is off",
        ),
    ],
)
def test_the_jitter(acceleration: AccelerationConfig, most_s: float) -> None:
    assert jitter_s(acceleration, 0.0) == 0
    assert jitter_s(acceleration, 0.5) == most_s / 2
    assert jitter_s(acceleration, 1.0) == most_s


@pytest.mark.parametrize(
    ("settings", "tried"),
    [
        pytest.param({"refresh_retry_enabled": False}, 0, id="never"),
        pytest.param({"refresh_retry_max_attempts": 0}, 0, id="at most never"),
        pytest.param({"refresh_retry_max_attempts": 3}, 3, id="three times"),
    ],
)
@pytest.mark.parametrize("interval_s", [None, 3600.0])
@pytest.mark.parametrize("has_data", [False, True])
def test_a_load_is_tried_again_as_often_as_declared_and_then_at_the_interval(
    settings: dict[str, Any], tried: int, interval_s: float | None, has_data: bool
) -> None:
    acceleration = AccelerationConfig(refresh_check_interval_s=interval_s, **settings)

    expected = (WITH_DATA if has_data else WITHOUT_DATA)[:tried] + [interval_s] * (5 - tried)

    assert pauses(acceleration, 5, has_data=has_data, must_load=True) == expected


def test_a_schedule_of_cron_counts_from_the_time_of_day() -> None:
    acceleration = AccelerationConfig(refresh_cron="* * * * *")

    pause = pause_s(acceleration, 0, has_data=True, must_load=False)

    assert pause is not None
    assert 0 < pause <= MINUTE
    assert pause_s(replace(acceleration, enabled=False), 0, has_data=True, must_load=False) is None
    once_in_four_years = AccelerationConfig(refresh_cron="0 0 29 2 *")
    assert pauses(once_in_four_years, 8, has_data=True, must_load=False) == WITH_DATA


def test_rows_expire_at_least_at_each_retention_check() -> None:
    acceleration = AccelerationConfig(retention_check_interval_s=30)

    assert pause_s(acceleration, 0, has_data=True, must_load=False) == 30
    assert pause_s(replace(acceleration, refresh_check_interval_s=20), 0, has_data=True, must_load=False) == 20
    assert pause_s(replace(acceleration, refresh_check_interval_s=40), 0, has_data=True, must_load=False) == 30

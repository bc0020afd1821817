from dataclasses import replace
from itertools import pairwise

import pytest

from datasources.refresh.schedule import jitter_s, pause_s
from runtimeconf.model import AccelerationConfig

MINUTE = 60.0


@pytest.mark.parametrize(
    ("interval_s", "pauses_s"),
    [
        pytest.param(0.1, [0.1, 0.1, 0.2, 0.4, 0.8, 0.8], id="eight intervals"),
        pytest.param(2 * MINUTE, [120, 120, 240, 480, 600, 600], id="ten minutes"),
        pytest.param(1440 * MINUTE, [86400] * 6, id="one interval"),
    ],
)
def test_r16_the_pause_grows_with_failures_in_a_row(interval_s: float, pauses_s: list[float]) -> None:
    acceleration = AccelerationConfig(refresh_check_interval_s=interval_s)

    for must_load in (True, False):
        assert [pause_s(acceleration, failures, must_load=must_load) for failures in range(6)] == pauses_s
    assert pause_s(acceleration, 10_000, must_load=True) == pauses_s[-1]


@pytest.mark.parametrize(
    "acceleration",
    [
        AccelerationConfig(),
        AccelerationConfig(enabled=False),
        AccelerationConfig(enabled=False, refresh_check_interval_s=0.1),
    ],
)
def test_without_an_interval_only_what_must_load_is_tried_again(acceleration: AccelerationConfig) -> None:
    assert [pause_s(acceleration, failures, must_load=False) for failures in (0, 3)] == [None, None]

    pauses = [pause_s(acceleration, failures, must_load=True) or 0.0 for failures in range(1, 8)]
    assert pauses == [2, 4, 8, 16, 32, 60, 60]
    assert all(shorter <= longer for shorter, longer in pairwise(pauses))


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
def test_a_first_load_is_tried_again_as_often_as_declared(settings: dict[str, int], tried: int) -> None:
    acceleration = AccelerationConfig(**settings)  # type: ignore[arg-type]

    pauses = [pause_s(acceleration, failures, must_load=True) for failures in range(6)]

    assert [pause is not None for pause in pauses] == [True] * (1 + tried) + [False] * (5 - tried)


def test_a_schedule_of_cron_counts_from_the_time_of_day() -> None:
    acceleration = AccelerationConfig(refresh_cron="* * * * *")

    pause = pause_s(acceleration, 0, must_load=False)

    assert pause is not None
    assert 0 < pause <= MINUTE
    assert pause_s(replace(acceleration, enabled=False), 0, must_load=False) is None
    assert pause_s(AccelerationConfig(refresh_cron="0 0 29 2 *"), 1, must_load=True) == 2, "no data yet"


def test_rows_expire_at_least_at_each_retention_check() -> None:
    acceleration = AccelerationConfig(retention_check_interval_s=30)

    assert pause_s(acceleration, 0, must_load=False) == 30
    assert pause_s(replace(acceleration, refresh_check_interval_s=20), 0, must_load=False) == 20
    assert pause_s(replace(acceleration, refresh_check_interval_s=40), 0, must_load=False) == 30

import pytest
from msgspec.structs import replace

from datasources.refresh.entries import last_check
from system.wallclock import utc_in
from tests.queryengine.test_manifest import FLIGHTS


@pytest.mark.parametrize(
    ("created_s", "checked_s", "expected_s"),
    [
        pytest.param(-60, None, -60, id="never checked"),
        pytest.param(-60, -30, -30, id="checked"),
        pytest.param(-60, -90, -60, id="an older history"),
        pytest.param(5, -30, 5, id="another node's clock"),
        pytest.param(86_400, -30, -30, id="created while the clock was ahead"),
        pytest.param(-60, 86_400, -60, id="checked while the clock was ahead"),
    ],
)
def test_a_time_in_the_future_is_not_the_last_check(
    created_s: float, checked_s: float | None, expected_s: float
) -> None:
    times = {seconds: utc_in(seconds) for seconds in (created_s, checked_s) if seconds is not None}

    found = last_check(replace(FLIGHTS, created_at=times[created_s]), None if checked_s is None else times[checked_s])

    assert found == times[expected_s]

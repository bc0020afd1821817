from system.wallclock import seconds_since, utc_in, utc_now


def test_the_times_are_those_of_snapshots() -> None:
    before = utc_now()
    now = utc_in(0)

    assert before <= now <= utc_now()
    assert len(now) == len(before)
    assert utc_in(-60) < before < utc_in(60)


def test_the_age_of_a_time() -> None:
    assert 59 < seconds_since(utc_in(-60)) < 90
    assert seconds_since(utc_in(60)) == 0

from system.wallclock import seconds_since, utc_in, utc_now


def test_times_are_in_order_and_have_an_age() -> None:
    before = utc_now()
    now = utc_in(0)

    assert before <= now <= utc_now()
    assert len(now) == len(before)
    assert utc_in(-60) < before < utc_in(60)
    assert 59 < seconds_since(utc_in(-60)) < 90
    assert seconds_since(utc_in(60)) == 0

import math

from queryengine.pool.slots import SHORT_MS, Durations


def test_a_statement_is_short_if_one_like_it_was() -> None:
    durations = Durations()
    assert not durations.is_short("SELECT 1")

    durations.learn("SELECT name FROM flights WHERE id = 7", SHORT_MS / 2)

    assert durations.is_short("SELECT name FROM flights WHERE id = 7")
    assert durations.is_short("SELECT name  FROM flights\nWHERE id = 1234")
    assert not durations.is_short("SELECT id FROM flights WHERE id = 7")


def test_the_last_time_counts() -> None:
    durations = Durations()
    for run_ms in (1.0, math.inf):
        durations.learn("SELECT 'a'", run_ms)

    assert not durations.is_short("SELECT 'b'")
    durations.learn("SELECT 'c'", 1.0)
    assert durations.is_short("SELECT 'b'")

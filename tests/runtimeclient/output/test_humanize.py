from datetime import UTC, datetime

from runtimeclient.output.text import age, duration, plural, size
from tests.corpus import each


@each(
    ("shown", "text"),
    [
        *[
            (duration(seconds), text)
            for seconds, text in (
                *((-1, "0 ms"), (0, "0 ms"), (0.0004, "0 ms"), (0.412, "412 ms"), (0.9996, "1.0 s"), (3.24, "3.2 s")),
                *((59.94, "59.9 s"), (59.96, "1 min"), (125, "2 min 5 s"), (3599.6, "1 h"), (11_520, "3 h 12 min")),
                *((86_400, "1 d"), (187_000, "2 d 3 h")),
            )
        ],
        *[
            (age(moment, datetime(2026, 11, 21, 12, tzinfo=UTC)), text)
            for moment, text in (
                ("2026-11-21T11:59:48.4Z", "12 s"),
                ("2026-11-21T11:00:00Z", "1 h"),
                ("2026-11-21T11:00:00", "1 h"),
                ("2026-11-21T12:00:00+02:00", "2 h"),
                ("2026-11-21T12:00:05Z", "0 s"),
                ("2026-11-21T11:59:00.2Z", "1 min"),
                ("yesterday", "yesterday"),
            )
        ],
        *[
            (size(count), text)
            for count, text in (
                *((0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (12_345_678, "12.3 MB"), (123_456_789, "123 MB")),
                (10**18, "1000 PB"),
            )
        ],
        *[(plural(count, "row"), text) for count, text in ((0, "0 rows"), (1, "1 row"), (1_234_567, "1,234,567 rows"))],
    ],
)
def test_quantities_are_in_the_units_that_fit(shown: str, text: str) -> None:
    assert shown == text

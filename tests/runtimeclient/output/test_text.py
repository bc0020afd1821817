import unicodedata
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeclient.output.text import age, duration, one_line, plural, size, visible
from tests.corpus import each


@each(
    ("text", "shown"),
    [
        pytest.param("\x1b]0;pwn\x07", r"\x1b]0;pwn\x07", id="X12 window title"),
        pytest.param("\x1b[2J", r"\x1b[2J", id="X12 clear the screen"),
        pytest.param("a\rb", r"a\rb", id="X12 carriage return"),
        pytest.param("\x07", r"\x07", id="X12 bell"),
        pytest.param("\u202egpj.exe", r"\u202egpj.exe", id="X12 right-to-left override"),
        pytest.param("a\nb\tc", r"a\nb\tc", id="line break and tab"),
        pytest.param("\x00\x7f\x9b2J", r"\x00\x7f\x9b2J", id="NUL, DEL, 8-bit CSI"),
        pytest.param("\u2066a\u2069", r"\u2066a\u2069", id="isolates"),
        pytest.param("a\u200bb\ufeff\u00ad", r"a\u200bb\ufeff\xad", id="invisible"),
        pytest.param("ad\u200dmin", r"ad\u200dmin", id="a joiner between Latin letters"),
        pytest.param("\u200d", r"\u200d", id="a joiner that joins nothing"),
        pytest.param("👩\u200d\u200d💻", "👩\u200d\\u200d💻", id="two joiners"),
        pytest.param("a\u2028b\u2029", r"a\u2028b\u2029", id="line and paragraph separators"),
        pytest.param("\ud800", r"\ud800", id="lone surrogate"),
        pytest.param("\U000e0041\ue000\uffff", r"\U000e0041\ue000\uffff", id="tag, private, no character"),
        pytest.param("a\u3164\u2800\u034f", r"a\u3164\u2800\u034f", id="printable, and blank"),
        pytest.param("a\U000e0100\ufe01", r"a\U000e0100\ufe01", id="selectors that can hide a text"),
        pytest.param("❤\ufe0f", "❤\ufe0f", id="a selector of emoji style"),
        pytest.param("é 日本 \u3000 \xa0", "é 日本 \u3000 \xa0", id="letters and wide spaces"),
        pytest.param(
            "👩\u200d💻 \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
            "👩\u200d💻 \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
            id="joiners where they belong",
        ),
        pytest.param("\U0001fae8", "\U0001fae8", id="an emoji that this Python may not know"),
        pytest.param(r"C:\n", r"C:\n", id="a backslash stays"),
    ],
)
def test_x12_control_and_invisible_characters_are_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text())
def test_x12_no_text_leaves_a_control_or_bidi_character(text: str) -> None:
    shown = visible(text)

    assert not any(unicodedata.category(character) in {"Cc", "Cs", "Co", "Zl", "Zp"} for character in shown)
    assert not set(shown) & set(
        "\u061c\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"
    )
    shown.encode()


def test_a_message_becomes_one_line_without_the_caret_below_it_escaped_and_cut() -> None:
    message = "Parser Error: syntax error\n\nLINE 1: SELEC 1\n        ^\r\n"

    line = one_line("\x1b[31m" + "x" * 100_000)

    assert one_line(message) == "Parser Error: syntax error LINE 1: SELEC 1"
    assert line.startswith(r"\x1b[31mxxx")
    assert len(line) == 4003


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

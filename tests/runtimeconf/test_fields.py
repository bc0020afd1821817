"""Single values: how their text becomes a number, a duration, a size, an address, or a fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeconf.fields import (
    AddressField,
    BooleanField,
    ChoiceField,
    DurationField,
    Field,
    HostField,
    IntegerField,
    ListField,
    SizeField,
    TextField,
)
from runtimeconf.validation import Validation, YamlPath
from runtimeconf.yaml_reader import Entry, Mapping, Node, Scalar, Sequence
from system.addresses import Address


def read(field: Field[Any], node: Node, *, is_sensitive: bool = False) -> tuple[Any, list[str]]:
    """The value of *node*, and the faults as messages."""
    validation = Validation(file=Path("runtime.yaml"), environ={}, known_paths={})
    value = field.read(node, YamlPath(validation, "a.b", is_sensitive))
    return value, [fault.message for fault in validation.faults]


def plain(text: str) -> Scalar:
    return Scalar(1, text, is_plain=True)


def quoted(text: str) -> Scalar:
    return Scalar(1, text, is_plain=False)


@pytest.mark.parametrize("text", ["true", "True", "TRUE"])
def test_true(text: str) -> None:
    assert read(BooleanField(), plain(text)) == (True, [])


@pytest.mark.parametrize("text", ["false", "False", "FALSE"])
def test_false(text: str) -> None:
    assert read(BooleanField(), plain(text)) == (False, [])


@pytest.mark.parametrize("text", ["yes", "no", "on", "off", "y", "1", "0", "ture", "tRUE", "true ", "enabled"])
def test_c22_nothing_else_is_a_boolean(text: str) -> None:
    assert read(BooleanField(), plain(text)) == (None, [f"must be true or false; found {text!r}"])


@pytest.mark.parametrize("text", ["true", "false"])
def test_c22_a_quoted_boolean_is_a_text(text: str) -> None:
    assert read(BooleanField(), quoted(text)) == (None, [f"must be true or false; found {text!r} (without quotes)"])


@pytest.mark.parametrize(
    ("node", "found"),
    [
        pytest.param(plain(""), "is empty: it must be true or false, or be left out", id="nothing"),
        pytest.param(plain("null"), "is empty: it must be true or false, or be left out", id="null"),
        pytest.param(quoted(""), "must be true or false; found ''", id="an empty text"),
        pytest.param(Sequence(1, ()), "must be true or false; found a list", id="a list"),
        pytest.param(Mapping(1, ()), "must be true or false; found a mapping", id="a mapping"),
        pytest.param(
            Mapping(1, (Entry(1, "${ secrets", plain("x }")),)),
            'must be true or false; found a mapping (quote a text that holds ": ", or leave the space out)',
            id="a broken reference",
        ),
        pytest.param(
            plain("\x1b[31m" + "x" * 100), f"must be true or false; found '\\x1b[31m{'x' * 52}...'", id="long, coloured"
        ),
    ],
)
def test_a_fault_shows_the_value_found(node: Node, found: str) -> None:
    assert read(BooleanField(), node) == (None, [found])


@pytest.mark.parametrize(
    ("node", "found"),
    [
        (plain("12"), "a number"),
        (plain("1_000.5"), "a number"),
        (quoted("12"), "a text"),
        (plain("canary"), "a text"),
        (quoted("true"), "a text"),
        (Sequence(1, ()), "a list"),
    ],
)
def test_below_sensitive_paths_only_the_type_is_shown(node: Node, found: str) -> None:
    _, (message,) = read(ChoiceField("a", "b"), node, is_sensitive=True)

    assert message == f"must be a or b; found {found}"


def test_below_sensitive_paths_a_boolean_is_shown_by_type() -> None:
    assert read(IntegerField(1, 2), plain("true"), is_sensitive=True)[1] == [
        "must be a whole number from 1 to 2; found true or false"
    ]


def test_an_anchored_value_is_not_shown() -> None:
    node = Scalar(1, "canary", is_plain=True, may_be_shown=False)

    assert read(BooleanField(), node)[1] == ["must be true or false; found a text"]


@pytest.mark.parametrize(("text", "value"), [("1", 1), ("64", 64), ("7", 7)])
def test_integers(text: str, value: int) -> None:
    assert read(IntegerField(1, 64), plain(text)) == (value, [])


@pytest.mark.parametrize(
    "text", ["0", "65", "-1", "+4", "04", "4.0", "1_0", "0x4", "0o4", "4 ", "\u0664", "9" * 5000, "1e1"]
)
def test_c19_invalid_integers(text: str) -> None:
    value, (message,) = read(IntegerField(1, 64), plain(text))

    assert value is None
    assert message.startswith("must be a whole number from 1 to 64; found ")
    assert len(message) < 200


def test_a_quoted_integer_is_a_text() -> None:
    assert read(IntegerField(1, 64), quoted("4"))[1] == [
        "must be a whole number from 1 to 64; found '4' (without quotes)"
    ]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30.0),
        ("500ms", 0.5),
        ("1m", 60.0),
        ("1h", 3600.0),
        ("1d", 86400.0),
        ("2.5s", 2.5),
        ("0.001s", 0.001),
        ("30 s", 30.0),
        ("1ms", 0.001),
    ],
)
@pytest.mark.parametrize("write", [plain, quoted])
def test_durations(write: Any, text: str, seconds: float) -> None:
    assert read(DurationField("1ms", "1d"), write(text)) == (seconds, [])


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("30", " (add a unit, one of ms, s, m, h, d)"),
        ("30x", " (the units are ms, s, m, h, d)"),
        ("30S", " (the units are ms, s, m, h, d)"),
        ("5 minutes", " (the units are ms, s, m, h, d)"),
        ("0s", ""),
        ("0.5ms", ""),
        ("25h", ""),
        ("-1s", ""),
        ("1e3s", ""),
        (".5s", ""),
        ("1_0s", ""),
        ("1:30", ""),
        ("infs", ""),
        ("nan", ""),
        ("1m30s", ""),
        ("\u0663s", ""),
        ("9" * 19 + "s", ""),
    ],
)
def test_invalid_durations(text: str, hint: str) -> None:
    value, (message,) = read(DurationField("1ms", "1d"), plain(text))

    assert value is None
    assert message == (f"must be a duration such as 30s, 500ms, 1.5m, 1h or 1d, from 1ms to 1d; found {text!r}{hint}")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("1048576", 1048576),
        ("10B", 10),
        ("1kB", 1000),
        ("1KB", 1000),
        ("16MB", 16_000_000),
        ("1KiB", 1024),
        ("128MiB", 128 * 1024**2),
        ("1GiB", 1024**3),
        ("1.5GiB", 3 * 2**29),
        ("1 GiB", 1024**3),
        ("1TiB", 1024**4),
        ("1TB", 10**12),
    ],
)
@pytest.mark.parametrize("write", [plain, quoted])
def test_sizes(write: Any, text: str, size: int) -> None:
    assert read(SizeField("1B", "1TiB"), write(text)) == (size, [])


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("0", ""),
        ("2TiB", ""),
        ("1.5", " (not a whole number of bytes)"),
        ("1gib", " (the units are B, kB, MB, GB, TB, KB, KiB, MiB, GiB, TiB)"),
        ("1Gb", " (the units are B, kB, MB, GB, TB, KB, KiB, MiB, GiB, TiB)"),
        ("-1", ""),
        ("1_000", ""),
        ("0x10", ""),
        ("1e6", ""),
    ],
)
def test_invalid_sizes(text: str, hint: str) -> None:
    value, (message,) = read(SizeField("1B", "1TiB"), plain(text))

    assert value is None
    if text not in {"0x10", "1e6"}:
        assert message == (
            f"must be a size in bytes such as 1048576, 128MiB or 1GiB, from 1B to 1TiB; found {text!r}{hint}"
        )


@given(st.integers(0, 10**6), st.integers(0, 999), st.sampled_from([("s", 1), ("m", 60), ("h", 3600), ("d", 86400)]))
def test_any_duration_is_its_number_times_its_unit(whole: int, thousandths: int, unit: tuple[str, int]) -> None:
    name, factor = unit
    milliseconds = (whole * 1000 + thousandths) * factor
    value, messages = read(DurationField("1ms", "365d"), plain(f"{whole}.{thousandths:03}{name}"))

    if 1 <= milliseconds <= 365 * 86_400_000:
        assert (value, messages) == (milliseconds / 1000, [])
    else:
        assert (value, len(messages)) == (None, 1)


@given(st.integers(0, 10**15), st.sampled_from([("", 1), ("B", 1), ("kB", 1000), ("KiB", 1024), ("TiB", 1024**4)]))
def test_any_size_is_its_number_times_its_unit(number: int, unit: tuple[str, int]) -> None:
    name, factor = unit
    value, messages = read(SizeField("1B", "1TiB"), plain(f"{number}{name}"))

    if 1 <= number * factor <= 2**40:
        assert (value, messages) == (number * factor, [])
    else:
        assert (value, len(messages)) == (None, 1)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8090", Address("127.0.0.1", 8090)),
        ("0.0.0.0:0", Address("0.0.0.0", 0)),
        ("[::1]:8090", Address("::1", 8090)),
        ("[0:0::1]:8090", Address("::1", 8090)),
        ("[fe80::1%eth0]:1", Address("fe80::1%eth0", 1)),
        ("localhost:65535", Address("localhost", 65535)),
        ("Host-1.Example.ORG:80", Address("host-1.example.org", 80)),
        ("a_b:80", Address("a_b", 80)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert read(AddressField(), plain(text)) == (address, [])


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("8090", ""),
        (":8090", ""),
        ("127.0.0.1", ""),
        ("127.0.0.1:", ""),
        ("127.0.0.1:65536", ""),
        ("127.0.0.1:-1", ""),
        ("127.0.0.1:http", ""),
        ("::1:8090", " (put an IPv6 host in brackets)"),
        ("[::1]", ""),
        ("[::g]:80", " (not an IPv6 address)"),
        ("[127.0.0.1]:80", ""),
        ("127.1:80", " (not an IPv4 address)"),
        ("1.2.3.256:80", " (not an IPv4 address)"),
        ("a..b:80", " (not a host name)"),
        ("-a:80", " (not a host name)"),
        ("a b:80", " (not a host name)"),
        ("*:80", " (not a host name)"),
        ("http://a:80", ""),
        (f"{'a.' * 127}a:80", " (not a host name)"),
        ("\u0661.2.3.4:80", " (not an IPv4 address)"),
        ("a:\u0668\u0660", ""),
    ],
)
def test_invalid_addresses(text: str, hint: str) -> None:
    value, (message,) = read(AddressField(), plain(text))

    assert value is None
    assert message.startswith("must be an address such as 127.0.0.1:8090 or [::1]:8090")
    assert message.endswith(hint or "'")


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("localhost", "localhost"),
        ("Example.ORG.", "example.org"),
        ("127.0.0.1", "127.0.0.1"),
        ("[::1]", "[::1]"),
        ("::1", "[::1]"),
        ("0:0::1", "[::1]"),
        ("example.org:8090", "example.org:8090"),
        ("[::1]:08", "[::1]:8"),
        ("*", "*"),
    ],
)
def test_host_names(text: str, host: str) -> None:
    assert read(HostField(), plain(text)) == (host, [])


@pytest.mark.parametrize(
    "text", ["", "a/b", "http://a", "a:0", "a:65536", "a:b", "*.example.org", ".example.org", "[a]", "1.2.3", "a b"]
)
def test_invalid_host_names(text: str) -> None:
    value, (message,) = read(HostField(), quoted(text))

    assert value is None
    assert message.startswith("must be a host name or IP address")


@pytest.mark.parametrize("write", [plain, quoted])
def test_choices_are_read_as_source_text(write: Any) -> None:
    assert read(ChoiceField("2.0", "1.10"), write("1.10")) == ("1.10", [])
    assert read(ChoiceField("2.0", "1.10"), write("1.1"))[1] == [
        "must be 2.0 or 1.10; found '1.1' (did you mean 1.10?)"
    ]


def test_a_choice_of_three_and_of_one() -> None:
    assert read(ChoiceField("a", "b", "c"), plain("xyz"))[1] == ["must be a, b or c; found 'xyz'"]
    assert read(ChoiceField("full"), plain("append"))[1] == ["must be full; found 'append'"]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        pytest.param("  ", "it is blank", id="blank"),
        pytest.param("a\nb", "it holds a control character", id="two lines"),
        pytest.param("x" * 11, "it is longer than 10 characters", id="too long"),
        pytest.param(
            "${ env:x }", "a secret reference is resolved in API keys and dataset params only", id="reference"
        ),
    ],
)
def test_texts_that_are_refused(text: str, hint: str) -> None:
    assert read(TextField("a name", max_length=10), quoted(text)) == (
        None,
        [f"must be a name; found {text!r} ({hint})"],
    )


def test_a_text_field_may_allow_line_breaks() -> None:
    assert read(TextField("SQL", may_have_lines=True), quoted("SELECT 1\n-- x\n")) == ("SELECT 1\n-- x\n", [])


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (plain("abc"), "must be a list, one item a line after a dash; found 'abc'"),
        (plain(""), "is empty: it must be a list, one item a line after a dash, or be left out"),
        (Mapping(1, ()), "must be a list, one item a line after a dash; found a mapping"),
    ],
)
def test_invalid_lists(node: Node, message: str) -> None:
    assert read(ListField(BooleanField()), node) == (None, [message])


def test_a_list_keeps_its_good_items_and_names_each_bad_one() -> None:
    node = Sequence(1, (plain("true"), plain("x"), plain("false"), plain("y")))
    validation = Validation(file=Path("runtime.yaml"), environ={}, known_paths={})

    assert ListField(BooleanField()).read(node, YamlPath(validation, "a")) == (True, False)
    assert [fault.yaml_path for fault in validation.faults] == ["a[1]", "a[3]"]


def test_a_list_may_require_items() -> None:
    value, messages = read(ListField(BooleanField(), minimum=1), Sequence(1, ()))

    assert (value, messages) == ((), ["is an empty list: give at least 1, or leave it out"])

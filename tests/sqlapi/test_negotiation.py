import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlapi.errors import NotAcceptableError
from sqlapi.negotiation import OFFERS, choose, parse_media_type, split_list
from tests.corpus import each

PLAIN, JSON, CSV, ARROW, VND, NDJSON, JSONL, _ = (offer.media_type for offer in OFFERS)


@each(
    ("accept", "media_type"),
    [
        pytest.param(None, PLAIN, id="no header"),
        pytest.param("", PLAIN, id="empty"),
        pytest.param("*/*", PLAIN, id="anything"),
        pytest.param("text/*", PLAIN, id="any text"),
        pytest.param("application/*", JSON, id="any application"),
        pytest.param("text/plain", PLAIN, id="plain"),
        pytest.param("application/json", JSON, id="json"),
        pytest.param("text/csv", CSV, id="csv"),
        pytest.param("application/vnd.apache.arrow.stream", ARROW, id="arrow"),
        pytest.param("application/vnd.spiceai.sql.v1+json", VND, id="vnd"),
        pytest.param("application/x-ndjson", NDJSON, id="ndjson"),
        pytest.param("application/jsonl", JSONL, id="its other name"),
        pytest.param("Application/JSON", JSON, id="case"),
        pytest.param(" \ttext/csv\t ", CSV, id="white space"),
        pytest.param("application/json; charset=utf-8", JSON, id="parameters are not looked at"),
        pytest.param('application/json;x="a,b;q=0"', JSON, id="quoted comma"),
        pytest.param('application/json;x="a\\"b"; q=1', JSON, id="quoted quote"),
        pytest.param("text/csv;q=0.5, application/json", JSON, id="quality"),
        pytest.param("text/csv;q=0.5, application/json;q=0.4", CSV, id="quality of both"),
        pytest.param("text/csv;Q=0.001, */*;q=0", CSV, id="smallest quality"),
        pytest.param("text/plain;q=0, */*", JSON, id="anything but the default"),
        pytest.param("text/*;q=0, */*", JSON, id="anything but text"),
        pytest.param("text/*;q=0, text/csv, */*;q=0.1", CSV, id="the most specific range decides"),
        pytest.param("*/*;q=0.1, application/*;q=0.5, application/vnd.apache.arrow.stream", ARROW, id="specificity"),
        pytest.param("application/json, text/plain, */*", JSON, id="first named among equals"),
        pytest.param("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", PLAIN, id="a browser"),
        pytest.param("*/*, text/csv", CSV, id="named beats covered"),
        pytest.param("text/csv;q=0, text/csv, */*;q=0.1", PLAIN, id="of two equal ranges the first counts"),
        pytest.param("application/json;q=nonsense", PLAIN, id="malformed quality alone"),
        pytest.param("application/json;q=2, text/csv", CSV, id="quality over 1"),
        pytest.param("application/json;q=-1, text/csv", CSV, id="negative quality"),
        pytest.param("application/json;q=0.1234, text/csv;q=0.1", CSV, id="too many digits"),
        pytest.param("json", PLAIN, id="no media type"),
        pytest.param("*/json, text/csv", CSV, id="half a wildcard"),
        pytest.param(",,, ,", PLAIN, id="commas"),
        pytest.param('"', PLAIN, id="open quote"),
        pytest.param('text/csv;x="', PLAIN, id="open quote after a type"),
        pytest.param("text/csv;", CSV, id="trailing semicolon"),
        pytest.param("text/csv;;q=0.5;", CSV, id="empty parameters"),
        pytest.param("text/csv garbage", PLAIN, id="garbage after a type"),
        pytest.param("text/csv\xe9", PLAIN, id="not a token"),
    ],
)
def test_choose(accept: str | None, media_type: str) -> None:
    assert choose(accept).media_type == media_type


@each(
    "accept",
    [
        *(
            "application/vnd.apache.parquet",
            "text/html",
            "application/xml, image/*",
            "application/vnd.spiceai.sql.v2+json",
        ),
        *("*/*;q=0", "*/*;q=0.000", "application/json;q=0", "text/*;q=0, application/*;q=0.0, */*"),
    ],
)
def test_accept_without_an_available_type_is_an_error(accept: str) -> None:
    with pytest.raises(NotAcceptableError, match=r"Accept names no type .* text/csv"):
        choose(accept)


media_ranges = st.sampled_from(["*/*", "text/*", "application/*", "image/png", *(offer.media_type for offer in OFFERS)])
qualities = st.one_of(st.none(), st.decimals(0, 1, places=3).map(str), st.sampled_from(["0", "1", "0.", "x", ""]))
items = st.builds(lambda name, q: name if q is None else f"{name};q={q}", media_ranges, qualities)


@given(st.one_of(st.text(), st.lists(st.one_of(items, st.text())).map(",".join)))
def test_any_accept_header_gives_an_offer_or_an_error(accept: str) -> None:
    try:
        offer = choose(accept)
    except NotAcceptableError:
        return
    assert offer in OFFERS


@given(st.lists(st.builds(lambda m, q: (m, q), st.sampled_from(OFFERS), st.integers(0, 1000)), min_size=1))
def test_the_highest_quality_wins(wanted: list[tuple[object, int]]) -> None:
    quality: dict[str, int] = {}
    for offer, thousandths in wanted:
        quality.setdefault(offer.media_type, thousandths)  # type: ignore[attr-defined]
    accept = ",".join(f"{name};q={value / 1000:.3f}" for name, value in quality.items())

    if not any(quality.values()):
        with pytest.raises(NotAcceptableError):
            choose(accept)
    else:
        assert quality[choose(accept).media_type] == max(quality.values())


@each(
    ("text", "expected"),
    [
        ("text/plain", ("text/plain", {})),
        ("Text/PLAIN ; Charset=UTF-8", ("text/plain", {"charset": "UTF-8"})),
        ('application/json;charset="utf-8"', ("application/json", {"charset": "utf-8"})),
        ('a/b;x="\\"q\\\\"', ("a/b", {"x": '"q\\'})),
        ("a/b;x=1;X=2", ("a/b", {"x": "1"})),
        ("a/b;", ("a/b", {})),
        *((text, None) for text in ("", "text", "text/", "/plain", "text/plain charset=utf-8", "text/plain; charset")),
        *((text, None) for text in ("text/plain; charset=", "text/plain, application/json", 'a/b;x="open')),
    ],
)
def test_parse_media_type(text: str, expected: tuple[str, dict[str, str]] | None) -> None:
    assert parse_media_type(text) == expected


@each(
    ("text", "items"),
    [
        ("", []),
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        (",a,,b,", ["a", "b"]),
        ('a;x="1,2",b', ['a;x="1,2"', "b"]),
        ('a;x="1\\",2",b', ['a;x="1\\",2"', "b"]),
        ('a;x="1,b', ['a;x="1,b']),
    ],
)
def test_split_list(text: str, items: list[str]) -> None:
    assert split_list(text) == items


@each("piece", ['"', '\\"', ";", 'a/b;c="', ",", '"\\', "; "])
def test_long_headers_take_linear_time(piece: str) -> None:
    text = "a/b" + piece * 50_000

    began = time.process_time()
    split_list(text)
    parse_media_type(text)

    assert time.process_time() - began < 30

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlapi.errors import CrossSiteRequestError, InvalidHostError
from sqlapi.hosts import Authority, check_host, check_same_site, parse_authority
from tests.corpus import each


@each(
    ("text", "expected"),
    [
        ("localhost", Authority("localhost", None)),
        ("LocalHost:8090", Authority("localhost", 8090)),
        ("example.com.", Authority("example.com", None)),
        ("example.com.:80", Authority("example.com", 80)),
        ("127.0.0.1:1", Authority("127.0.0.1", 1)),
        ("my_service-1:65535", Authority("my_service-1", 65535)),
        ("[::1]", Authority("[::1]", None)),
        ("[0:0:0:0:0:0:0:1]:8090", Authority("[::1]", 8090)),
        ("[::ffff:127.0.0.1]", Authority("[::ffff:127.0.0.1]", None)),
    ],
)
def test_well_formed(text: str, expected: Authority) -> None:
    found = parse_authority(text)

    assert found is not None
    assert found.port == expected.port
    assert found == parse_authority(f"{expected.host}" + (f":{expected.port}" if expected.port else ""))


MALFORMED = [
    pytest.param("", id="A38 empty"),
    pytest.param(" ", id="A38 blank"),
    pytest.param("a,b", id="A38 two hosts"),
    pytest.param("localhost,localhost", id="A38 the same host twice"),
    pytest.param("a@b", id="A38 user"),
    pytest.param("localhost:99999", id="A38 port out of range"),
    pytest.param("localhost:65536", id="A38 port just out of range"),
    pytest.param("localhost:0", id="A38 port 0"),
    pytest.param("localhost:", id="A38 no port"),
    pytest.param("localhost:80:80", id="A38 two ports"),
    pytest.param("localhost:８０", id="A38 digits of another script"),  # noqa: RUF001 (meant)
    pytest.param("x" * 10_240, id="A38 10 KB"),
    pytest.param("a..b", id="A38 empty label"),
    pytest.param(".a", id="A38 leading dot"),
    pytest.param("a/b", id="A38 slash"),
    pytest.param("a b", id="A38 space"),
    pytest.param("http://localhost", id="A38 URL"),
    pytest.param("localhost\n", id="A38 line feed"),
    pytest.param("localhost\x00", id="A38 NUL"),
    pytest.param("ex\xe4mple", id="A38 Latin-1"),
    pytest.param("[::1", id="A38 open bracket"),
    pytest.param("::1", id="A38 bare IPv6"),
    pytest.param("[::g]", id="A38 not hexadecimal"),
    pytest.param("[1:2]", id="A38 short IPv6"),
    pytest.param("[fe80::1%eth0]", id="A38 zone"),
]


@each("text", MALFORMED)
@each("auth_on", [True, False])
def test_malformed_is_refused_always(text: str, auth_on: bool) -> None:
    for allowed in (None, ("*",), ("localhost",)):
        with pytest.raises(InvalidHostError) as raised:
            check_host(text, allowed, auth_on=auth_on)
        assert str(raised.value) == str(InvalidHostError())


@each(
    ("host", "allowed", "auth_on", "is_taken"),
    [
        pytest.param("localhost", None, False, True, id="A39 loopback by name"),
        pytest.param("LOCALHOST.:8090", None, False, True, id="A39 loopback by name, otherwise written"),
        pytest.param("127.0.0.1:8090", None, False, True, id="A39 loopback by address"),
        pytest.param("[::1]:1", None, False, True, id="A39 loopback by IPv6"),
        pytest.param("[0::1]", None, False, True, id="A39 loopback by IPv6, otherwise written"),
        pytest.param("attacker.test", None, False, False, id="A39 another name"),
        pytest.param("localhost.attacker.test", None, False, False, id="A39 a name that begins alike"),
        pytest.param("attackerlocalhost", None, False, False, id="A39 a name that ends alike"),
        pytest.param("127.0.0.2", None, False, False, id="A39 another loopback address"),
        pytest.param("0.0.0.0", None, False, False, id="A39 all addresses"),
        pytest.param("127.1", None, False, False, id="A39 a short address"),
        pytest.param("attacker.test", None, True, True, id="with authentication any host"),
        pytest.param("attacker.test", ("localhost",), True, False, id="with authentication and a list"),
        pytest.param("localhost", ("sql.example",), False, False, id="a list replaces the default"),
        pytest.param("SQL.example:99", ("sql.example",), False, True, id="any port"),
        pytest.param("sql.example:99", ("sql.example:99",), True, True, id="this port"),
        pytest.param("sql.example:98", ("sql.example:99",), True, False, id="another port"),
        pytest.param("sql.example", ("sql.example:99",), True, False, id="no port"),
        pytest.param("[0::1]:99", ("[::1]:99",), False, True, id="this port of an IPv6 address"),
        pytest.param("a.sql.example", ("sql.example",), True, False, id="no subdomains"),
        pytest.param("anything:1", ("*",), False, True, id="a star takes all"),
        pytest.param("a.sql.example", ("*.sql.example",), False, False, id="no patterns"),
        pytest.param("localhost", (), True, False, id="an empty list takes none"),
    ],
)
def test_check_host(host: str, allowed: tuple[str, ...] | None, auth_on: bool, is_taken: bool) -> None:
    if is_taken:
        assert check_host(host, allowed, auth_on=auth_on) == parse_authority(host)
    else:
        with pytest.raises(InvalidHostError):
            check_host(host, allowed, auth_on=auth_on)


@given(st.text())
def test_any_text_is_a_valid_authority_or_malformed(text: str) -> None:
    authority = parse_authority(text)

    assert authority is None or (authority.host and "," not in authority.host and "@" not in authority.host)


LOCAL = Authority("localhost", 8090)


@each(
    ("host", "origin", "fetch_site"),
    [
        pytest.param(LOCAL, None, None, id="no browser"),
        pytest.param(LOCAL, "http://localhost:8090", None, id="A40 same origin"),
        pytest.param(LOCAL, "HTTP://LOCALHOST:8090", "same-origin", id="A40 same origin, otherwise written"),
        pytest.param(LOCAL, None, "none", id="A40 typed by the user"),
        pytest.param(Authority("sql.example", None), "https://sql.example", None, id="A40 behind a TLS proxy"),
        pytest.param(Authority("sql.example", None), "http://sql.example:80", None, id="A40 implied port"),
    ],
)
def test_same_site(host: Authority, origin: str | None, fetch_site: str | None) -> None:
    check_same_site(host, origin, fetch_site)


@each(
    ("origin", "fetch_site"),
    [
        pytest.param("https://evil.test", None, id="A40 another host"),
        pytest.param("http://localhost:3000", None, id="A40 another port"),
        pytest.param("http://localhost", None, id="A40 the implied port"),
        pytest.param("null", None, id="A40 null"),
        pytest.param("", None, id="A40 empty"),
        pytest.param("localhost:8090", None, id="A40 no scheme"),
        pytest.param("file://", None, id="A40 file"),
        pytest.param("chrome-extension://localhost:8090", None, id="A40 extension"),
        pytest.param("http://localhost:8090, http://evil.test", None, id="A40 two origins"),
        pytest.param("http://localhost:8090/", None, id="A40 a path"),
        pytest.param(None, "cross-site", id="A40 cross-site"),
        pytest.param(None, "same-site", id="A40 same-site"),
        pytest.param("http://localhost:8090", "cross-site", id="A40 one of them is enough"),
        pytest.param(None, "", id="A40 empty site"),
        pytest.param(None, "SAME-ORIGIN", id="A40 unknown site"),
    ],
)
def test_cross_site(origin: str | None, fetch_site: str | None) -> None:
    with pytest.raises(CrossSiteRequestError):
        check_same_site(LOCAL, origin, fetch_site)

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeclient.connection import DEFAULT_ENDPOINT
from runtimeclient.errors import UsageError
from runtimeclient.http.endpoint import parse_endpoint


@pytest.mark.parametrize(
    ("text", "url", "is_tls", "is_loopback"),
    [
        (DEFAULT_ENDPOINT, "http://127.0.0.1:8090", False, True),
        ("http://localhost:8090/", "http://localhost:8090", False, True),
        ("https://runtime.example", "https://runtime.example", True, False),
        ("https://runtime.example/querykeep/", "https://runtime.example/querykeep", True, False),
        ("HTTP://[::1]:8090", "http://[::1]:8090", False, True),
        ("http://[2001:db8::1]:8090", "http://[2001:db8::1]:8090", False, False),
        ("http://192.0.2.1:1", "http://192.0.2.1:1", False, False),
    ],
)
def test_takes_a_base_url(text: str, url: str, is_tls: bool, is_loopback: bool) -> None:
    endpoint = parse_endpoint(text)

    assert (endpoint.url, endpoint.is_tls, endpoint.is_loopback) == (url, is_tls, is_loopback)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.2",
        "127.1",
        "0x7f000001",
        "2130706433",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
        "[::]",
        "LOCALHOST.",
        "a.localhost",
        "ip6-localhost",
    ],
)
def test_recognises_every_loopback_address(host: str) -> None:
    assert parse_endpoint(f"http://{host}:8090").is_loopback


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must start with http://"),
        ("127.0.0.1:8090", "did you mean http://127.0.0.1:8090?"),
        ("localhost:8090", "did you mean http://localhost:8090?"),
        ("grpc://localhost:50051", "must start with http://"),
        ("file:///etc/passwd", "must start with http://"),
        ("http://", "must have a host"),
        ("http:///v1", "must have a host"),
        ("http://localhost:0", "must be from 1 to 65535"),
        ("http://localhost:65536", "from 1 to 65535"),
        ("http://localhost:x", "not a URL"),
        ("http://local host", "must have a host"),
        ("http://localhost\r\nX-Evil: 1", "not a URL"),
        ("http://[::1", "not a URL"),
        ("http://\udcff", "not a URL"),
        ("http://localhost/\udcff", "not a URL"),
        ("http://localhost/?a=1", "must not have a query string"),
        ("http://localhost#a", "must not have a query string"),
        ("http://localhost?", "must not have a query string"),
        ("http://user:hunter2@localhost:8090", "must not contain a user name or password"),
        ("user:hunter2@localhost", "must not contain a user name or password"),
        ("http://user:hunter2/x@localhost", "must not contain a user name or password"),
        ("@hunter2", "must not contain a user name or password"),
        ("http://localhost/?api_key=hunter2", "must not have a query string"),
        ("http://localhost#hunter2", "must not have a query string"),
    ],
)
def test_rejects_other_urls_and_does_not_repeat_a_password(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_endpoint(text)

    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)


@given(
    st.text(st.characters(), max_size=40)
    | st.text(alphabet="htp:/@[]%?#.019 \\é\u3002", max_size=30).map("http://".__add__)
)
def test_any_text_is_a_url_or_a_usage_error(text: str) -> None:
    try:
        endpoint = parse_endpoint(text)
    except UsageError:
        return
    assert endpoint.url.startswith(("http://", "https://"))
    assert not endpoint.url.endswith("/")

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from system.client_address import client_address

TRUSTED = ("127.0.0.1/32", "10.0.0.0/8", "fd00::/8")


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "expected"),
    [
        pytest.param("127.0.0.1", "", "127.0.0.1", id="empty"),
        pytest.param("127.0.0.1", "198.51.100.7", "198.51.100.7", id="one proxy"),
        pytest.param("198.51.100.7", "192.0.2.1", "198.51.100.7", id="no proxy of ours"),
        pytest.param("127.0.0.1", "192.0.2.1, 198.51.100.7", "198.51.100.7", id="what the client claims"),
        pytest.param("127.0.0.1", "192.0.2.1,198.51.100.7 ,\t10.1.1.1", "198.51.100.7", id="two proxies"),
        pytest.param("127.0.0.1", "10.1.1.2, 10.1.1.1", "10.1.1.2", id="a client among the proxies"),
        pytest.param("::ffff:127.0.0.1", "2001:DB8::0:7", "2001:db8::7", id="IPv6"),
        pytest.param("fd00::1", "::ffff:198.51.100.7", "198.51.100.7", id="IPv4 in IPv6"),
        pytest.param("127.0.0.1", "nonsense, 198.51.100.7", "198.51.100.7", id="malformed where it does not count"),
        pytest.param("127.0.0.1", "198.51.100.7, nonsense", "127.0.0.1", id="malformed"),
        pytest.param("127.0.0.1", "198.51.100.7, nonsense, 10.1.1.1", "127.0.0.1", id="malformed behind a proxy"),
        pytest.param("127.0.0.1", "198.51.100.7,", "127.0.0.1", id="an empty item"),
        pytest.param("127.0.0.1", "198.51.100.7:4711", "127.0.0.1", id="with a port"),
        pytest.param("127.0.0.1", "[2001:db8::7]", "127.0.0.1", id="in brackets"),
        pytest.param("127.0.0.1", "fe80::1%\u202eeth0", "127.0.0.1", id="with a zone"),
        pytest.param("127.0.0.1", "unknown", "127.0.0.1", id="a word of the standard"),
        pytest.param("", "198.51.100.7", "", id="no peer"),
    ],
)
def test_client_address(peer: str, forwarded_for: str, expected: str) -> None:
    assert client_address(peer, forwarded_for, TRUSTED) == expected
    assert client_address(peer, forwarded_for, ()) == peer


ADDRESSES = st.one_of(
    st.ip_addresses().map(str), st.sampled_from(["127.0.0.1", "10.2.3.4", "fd00::5", "::ffff:10.0.0.1"])
)


@given(
    peer=ADDRESSES | st.text(max_size=20),
    hops=st.lists(ADDRESSES | st.text(st.sampled_from("0123456789abcdef:.%[] \t,\r\n\x00"), max_size=20), max_size=6),
)
def test_whatever_is_sent_the_result_is_the_peer_or_a_forwarded_address(peer: str, hops: list[str]) -> None:
    found = client_address(peer, ",".join(hops), TRUSTED)

    if found != peer:
        assert client_address(peer, "192.0.2.1", TRUSTED) == "192.0.2.1"  # the peer is trusted
        assert str(ipaddress.ip_address(found)) == found
        assert "%" not in found

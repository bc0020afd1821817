"""Hosts and addresses. Networks are in `test_schema`, with `trusted_proxies`."""

from typing import Any

import pytest

from runtimeconf.addresses import ADDRESS, ALLOWED_HOST
from runtimeconf.fields import Field
from system.addresses import Address
from tests.corpus import each
from tests.runtimeconf.test_fields import plain, quoted, read

VALID: dict[Field[Any], dict[str, Any]] = {
    ADDRESS: {
        "127.0.0.1:8090": Address("127.0.0.1", 8090),
        "0.0.0.0:0": Address("0.0.0.0", 0),
        "[::1]:8090": Address("::1", 8090),
        "[0:0::1]:8090": Address("::1", 8090),
        "[fe80::1%eth0]:1": Address("fe80::1%eth0", 1),
        "localhost:65535": Address("localhost", 65535),
        "Host-1.Example.ORG:80": Address("host-1.example.org", 80),
        "a_b:80": Address("a_b", 80),
    },
    ALLOWED_HOST: {"localhost": "localhost", "Example.ORG.": "example.org", "127.0.0.1": "127.0.0.1", "[::1]": "[::1]"}
    | {"::1": "[::1]", "0:0::1": "[::1]", "example.org:8090": "example.org:8090", "[::1]:08": "[::1]:8", "*": "*"},
}

NO_HOST, NO_IPV4 = "(not a host name)", "(not an IPv4 address)"

#: Texts that are refused, by the hint that their fault ends with.
INVALID: dict[Field[Any], dict[str, tuple[str, ...]]] = {
    ADDRESS: {
        "": (
            *("8090", ":8090", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:http"),
            *("[::1]", "[127.0.0.1]:80", "http://a:80", "a:\u0668\u0660"),
        ),
        "(put an IPv6 host in brackets)": ("::1:8090",),
        "(not an IPv6 address)": ("[::g]:80",),
        NO_IPV4: ("127.1:80", "1.2.3.256:80", "\u0661.2.3.4:80"),
        NO_HOST: ("a..b:80", "-a:80", "a b:80", "*:80", f"{'a.' * 127}a:80"),
    },
    ALLOWED_HOST: {
        "(ports range from 1 to 65535)": ("a:0", "a:65536"),
        NO_HOST: ("", "a/b", "*.example.org", ".example.org", "[a]", "a b"),
        NO_IPV4: ("1.2.3",),
        "(not an IPv6 address)": ("http://a", "a:b"),
    },
}


@pytest.mark.parametrize("write", [plain, quoted])
@each(("field", "text"), [(field, text) for field, values in VALID.items() for text in values])
def test_values(write: Any, field: Field[Any], text: str) -> None:
    assert read(field, write(text)) == (VALID[field][text], [])


@each(
    ("field", "hint", "text"),
    [(field, hint, text) for field, hints in INVALID.items() for hint, texts in hints.items() for text in texts],
)
def test_invalid_values(field: Field[Any], hint: str, text: str) -> None:
    value, (message,) = read(field, plain(text) if text else quoted(text))

    shown = repr(text if len(text) <= 60 else f"{text[:57]}...")
    assert (value, message) == (None, f"must be {field.expected}; found {shown}{hint and ' '}{hint}")

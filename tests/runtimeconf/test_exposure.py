"""Other machines are served without a key only if the configuration says so."""

import logging
import socket
from pathlib import Path

import pytest

from runtimeconf.errors import ConfigError
from runtimeconf.exposure import check_listener, check_this_process
from runtimeconf.model import AuthConfig
from system.addresses import Address
from tests.corpus import each

FILE = Path("/srv/runtime.yaml")
OPEN = Address("0.0.0.0", 8000)


@each("host", ["0.0.0.0", "0", "", "::", "10.0.0.1", "example.org", "127.1"])
def test_an_open_address_is_refused_without_an_explicit_word(host: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^/srv/runtime\.yaml: runtime\.http: listens on .*api-key: {enabled: false}"
    ):
        check_listener(Address(host, 8001), AuthConfig(), FILE)


@pytest.mark.parametrize(
    ("address", "auth", "warnings"),
    [
        (Address("127.0.0.1", 8002), AuthConfig(), 0),
        (Address("localhost", 8002), AuthConfig(), 0),
        (OPEN, AuthConfig(enabled=True), 0),
        (OPEN, AuthConfig(allows_anybody=True), 1),
    ],
)
def test_any_other_is_served_and_one_without_keys_is_warned_of_once(
    caplog: pytest.LogCaptureFixture, address: Address, auth: AuthConfig, warnings: int
) -> None:
    for _ in range(2):
        check_listener(address, auth, FILE)

    assert [record.levelno for record in caplog.records] == [logging.WARNING] * warnings


def test_a_process_is_checked_by_the_sockets_that_it_has() -> None:
    file = Path("/srv/other.yaml")
    with socket.create_server(("0.0.0.0", 0)) as listener:
        with pytest.raises(ConfigError, match=f"listens on 0.0.0.0:{listener.getsockname()[1]}"):
            check_this_process(AuthConfig(), file)
        check_this_process(AuthConfig(enabled=True), file)
    check_this_process(AuthConfig(), file)

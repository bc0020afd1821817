"""Whether a port can be bound, and which process holds it."""

import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from system.addresses import Address, bind_problem, bound_address, holders, listening_addresses, wait_until_bindable
from tests.system.harness import run_program

BIND = "runtime.http.bind"


@pytest.fixture
def holder() -> Iterator[socket.socket]:
    """A socket bound to a port."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder


def test_a_holder_is_named_if_it_listens(holder: socket.socket) -> None:
    address = Address("127.0.0.1", holder.getsockname()[1])

    with pytest.raises(OSError, match="another process has the port"):
        wait_until_bindable(address, BIND, time.monotonic())
    holder.listen()
    remedy = r"Stop that server, or change runtime\.http\.bind\."
    with pytest.raises(OSError, match=rf"process {os.getpid()} has the port\. {remedy}$"):
        wait_until_bindable(address, BIND, time.monotonic())
    assert bind_problem(address) is None


def test_a_descriptor_that_is_closed_meanwhile_hides_no_holder() -> None:
    """Listing the descriptors of this process takes the lowest free number, and closes it before they are read."""
    with socket.socket() as first, socket.create_server(("127.0.0.1", 0)) as listener:
        first.close()

        assert list(holders(listener.getsockname()[1])) == [os.getpid()]


def test_it_waits_for_a_stopping_predecessor(holder: socket.socket) -> None:
    holder.listen()
    threading.Timer(0.2, holder.close).start()

    wait_until_bindable(Address("127.0.0.1", holder.getsockname()[1]), BIND, time.monotonic() + 60)
    wait_until_bindable(Address("127.0.0.1", 0), BIND, time.monotonic())  # A free port needs no time.


# No machine has the first one (RFC 5737).
@pytest.mark.parametrize("address", [Address("192.0.2.1", 8090), Address("::2", 0)])
def test_the_address_of_another_machine_is_a_problem(address: Address) -> None:
    problem = f"Cannot listen on {address}: Cannot assign requested address."
    assert bind_problem(address) == problem
    with pytest.raises(OSError, match=re.escape(problem)):
        wait_until_bindable(address, BIND, time.monotonic())


#: Runs `activated` in a process to which a socket is passed as systemd does.
ACTIVATED = """
import os, socket, sys
from system.addresses import activated
kind, count = sys.argv[1:3]
types = {"UDP": socket.SOCK_DGRAM}
made = socket.socketpair()[0] if kind == "pair" else socket.socket(type=types.get(kind, socket.SOCK_STREAM))
if kind == "TCP":
    made.listen()
os.dup2(made.fileno(), 3)
print(activated({"LISTEN_PID": str(os.getpid()) if kind != "other" else "1", "LISTEN_FDS": count}))
"""


@pytest.mark.parametrize(
    ("kind", "count", "said"),
    [
        ("TCP", "1", "3"),
        ("other", "1", "None"),
        ("TCP", "2", "systemd passed 2 sockets"),
        ("idle", "1", "not a listening TCP socket"),
        ("UDP", "1", "not a listening TCP socket"),
        ("pair", "1", "not a listening TCP socket"),
    ],
)
def test_a_socket_from_systemd_is_that_of_http(kind: str, count: str, said: str) -> None:
    done = run_program("-c", ACTIVATED, kind, count)
    assert said in (done.stdout + done.stderr).splitlines()[-1]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_the_sockets_on_which_this_process_listens_are_found(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        address = Address(host, listener.getsockname()[1])

        assert bound_address(listener.fileno()) == address
        assert address in list(listening_addresses())
        assert listener.fileno() > 0, "it is still open"
        assert address.is_open is (host in {"0.0.0.0", "::"})
    assert address not in list(listening_addresses())


def test_what_does_not_listen_has_no_address(holder: socket.socket) -> None:
    pair = socket.socketpair()
    with Path(os.devnull).open() as file, pair[0], pair[1]:
        for descriptor in (holder.fileno(), pair[0].fileno(), file.fileno(), 999_999):
            assert bound_address(descriptor) is None


@pytest.mark.parametrize(("resolved", "is_open"), [(["127.0.0.1", "::1"], False), (["127.0.0.1", "10.0.0.1"], True)])
def test_localhost_counts_by_what_it_resolves_to(
    monkeypatch: pytest.MonkeyPatch, resolved: list[str], *, is_open: bool
) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in resolved]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)

    assert Address("localhost", 8090).is_open is is_open


def test_a_localhost_that_does_not_resolve_is_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> list[object]:
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", fail)

    assert not Address("localhost", 8090).is_open

"""Whether a port can be bound, and which process holds it."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest

from system.addresses import Address
from system.ports import bind_problem, wait_until_bindable

BIND = "runtime.http.bind"


def test_a_free_port_is_bindable_at_once() -> None:
    wait_until_bindable(Address("127.0.0.1", 0), BIND, time.monotonic())


def test_the_holder_is_named() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()

        remedy = r"Stop that server, or change runtime\.http\.bind\."
        with pytest.raises(OSError, match=rf"process {os.getpid()} has the port\. {remedy}$"):
            wait_until_bindable(Address("127.0.0.1", holder.getsockname()[1]), BIND, time.monotonic())


def test_a_holder_that_does_not_listen_is_unknown() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))

        with pytest.raises(OSError, match="another process has the port"):
            wait_until_bindable(Address("127.0.0.1", holder.getsockname()[1]), BIND, time.monotonic())


def test_it_waits_for_a_stopping_predecessor() -> None:
    holder = socket.socket()
    holder.bind(("127.0.0.1", 0))
    holder.listen()
    threading.Timer(0.2, holder.close).start()

    wait_until_bindable(Address("127.0.0.1", holder.getsockname()[1]), BIND, time.monotonic() + 60)


@pytest.mark.parametrize("address", [Address("192.0.2.1", 0), Address("::2", 0)])
def test_an_address_of_another_machine_is_named(address: Address) -> None:
    with pytest.raises(OSError, match="Cannot listen on"):
        wait_until_bindable(address, BIND, time.monotonic())


def test_a_port_in_use_is_no_problem_of_the_address_and_a_foreign_address_is_one() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()

        assert bind_problem(Address("127.0.0.1", holder.getsockname()[1])) is None
    foreign = Address("192.0.2.1", 8090)  # of RFC 5737: no machine has it
    assert bind_problem(foreign) == "Cannot listen on 192.0.2.1:8090: Cannot assign requested address."

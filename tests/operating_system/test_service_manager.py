"""What systemd is told."""

import socket
from contextlib import suppress
from pathlib import Path

import pytest

from system.service_manager import ServiceManager


@pytest.mark.parametrize("is_abstract", [False, True])
def test_systemd_is_told_of_the_start_and_that_the_process_works(tmp_path: Path, is_abstract: bool) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0" + path if is_abstract else path)
        manager = ServiceManager("@" + path if is_abstract else path)

        manager.report_ready()
        manager.report_alive()
        manager.report_stopping()

        assert [systemd.recv(100) for _ in range(3)] == [b"READY=1", b"READY=1\nWATCHDOG=1", b"STOPPING=1"]


@pytest.mark.parametrize("address", ["", "/nowhere/at/all"])
def test_without_systemd_nobody_is_told(address: str) -> None:
    manager = ServiceManager(address)

    manager.report_ready()
    manager.report_alive()
    manager.report_stopping()


def test_a_service_manager_that_does_not_read_delays_nothing_and_hears_of_the_start_later(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        manager = ServiceManager(str(tmp_path / "notify"))

        for _ in range(1000):
            manager.report_alive()
        manager.report_ready()

        systemd.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                systemd.recv(100)
        manager.report_alive()

        assert b"READY=1" in systemd.recv(100).splitlines()

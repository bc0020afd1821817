"""Heartbeats, and when their absence means that a process hangs."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from system.heartbeat import HUNG_S, START_S, HangDetector, Heartbeat, Pulse, is_stopped
from tests.operating_system.programs import printed
from tests.system.harness import wait_for

#: A thread of this program starts another one with vfork(2), which first opens a pipe that nobody writes to.
WAITS_IN_THE_KERNEL = """
import ctypes, os, sys, threading, time
from system.heartbeat import waits_for_disk
os.mkfifo(sys.argv[1])
libc = ctypes.CDLL(None)
actions = ctypes.create_string_buffer(256)
libc.posix_spawn_file_actions_init(actions)
libc.posix_spawn_file_actions_addopen(actions, 0, sys.argv[1].encode(), os.O_RDONLY, 0)
def spawn():
    libc.posix_spawn(
        ctypes.byref(ctypes.c_int()), b"/bin/true", actions, None, (ctypes.c_char_p * 2)(b"true", None), None
    )
print(waits_for_disk())
waiting = threading.Thread(target=spawn)
waiting.start()
until = time.monotonic() + 30
while not waits_for_disk() and time.monotonic() < until:
    time.sleep(0.005)
print(waits_for_disk())
os.close(os.open(sys.argv[1], os.O_WRONLY))
waiting.join()
print(waits_for_disk())
"""


@pytest.fixture
def heartbeat() -> Iterator[Heartbeat]:
    descriptor = Heartbeat.new_file()
    yield Heartbeat(descriptor)
    os.close(descriptor)


def lines_of(caplog: pytest.LogCaptureFixture) -> list[object]:
    assert {record.message for record in caplog.records} <= {"A process of the runtime does not respond"}
    return [record.fields for record in caplog.records]  # type: ignore[attr-defined]


def looks(detector: HangDetector, beat: float, began: float, seconds: int) -> list[bool]:
    """Look once a second."""
    return [detector.is_hung(beat, HUNG_S, began + second) for second in range(1, seconds + 1)]


def test_heartbeats_are_counted_until_they_are_cleared(heartbeat: Heartbeat) -> None:
    assert heartbeat.read() == 0
    heartbeat.beat()
    heartbeat.beat()
    assert Heartbeat(heartbeat.descriptor).read() == 2

    Heartbeat(heartbeat.descriptor).clear()

    assert heartbeat.read() == 0


def test_silence_is_not_counted_while_the_parent_does_not_run() -> None:
    pulse = Pulse(0.0)

    pulse.look(1.0, 0.5)
    assert (pulse.quiet_s, pulse.age_s) == (0.0, 0.5)
    pulse.look(1.0, 1.0)
    pulse.look(1.0, 1000.0)
    assert (pulse.quiet_s, pulse.age_s) == (1.5, 2.0)
    pulse.look(2.0, 1000.5)
    assert (pulse.quiet_s, pulse.age_s) == (0.0, 2.5)


def test_a_silent_process_is_logged_and_then_hung(caplog: pytest.LogCaptureFixture) -> None:
    detector = HangDetector("a", 0.0)

    assert looks(detector, 1, 0.0, 12) == [False] * 11 + [True]

    assert lines_of(caplog) == [{"part": "a", "worker": None, "silent_s": HUNG_S}]
    assert detector.silent_s == HUNG_S + 1


def test_a_process_that_goes_on_once_it_is_logged_is_not_hung(caplog: pytest.LogCaptureFixture) -> None:
    detector = HangDetector("a", 0.0)

    for beat in (1, 2):
        assert looks(detector, beat, 100.0 * beat, 11) == [False] * 11
    assert not detector.is_hung(3, HUNG_S, 300.0)

    assert len(lines_of(caplog)) == 2


def test_neither_a_suspended_machine_nor_a_suspended_parent_makes_a_process_hung() -> None:
    detector = HangDetector("a", 0.0)

    assert not any(detector.is_hung(1, HUNG_S, hour * 3600.0) for hour in range(1, 11))
    assert not any(detector.is_hung(beat, HUNG_S, beat * 3600.0) for beat in range(11, 1000))


def test_a_process_has_longer_for_its_first_heartbeat_unless_it_is_stopped(caplog: pytest.LogCaptureFixture) -> None:
    first = 1e9  # as the time of a file is, before the worker sets it
    start_s, hung_s = round(START_S), round(HUNG_S)
    detector, late, stopped = (HangDetector("a", 0.0, first) for _ in range(3))

    assert looks(detector, first, 0.0, start_s + hung_s + 1) == [False] * (start_s + hung_s + 1)
    assert lines_of(caplog) == [{"part": "a", "worker": None, "silent_s": HUNG_S}]
    assert looks(detector, first, start_s + hung_s + 1.0, 1) == [True]

    assert looks(late, first, 0.0, start_s + 5) == [False] * (start_s + 5)
    assert looks(late, 5.0, start_s + 5.0, hung_s + 2) == [False] * (hung_s + 1) + [True]

    assert looks(stopped, first, 0.0, 30) == [False] * 30
    later = [stopped.is_hung(first, HUNG_S, 30.0 + second, is_stopped=True) for second in range(1, hung_s + 3)]
    assert later == [False] * (hung_s + 1) + [True]


def test_the_parent_sees_that_a_child_is_stopped() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        assert not is_stopped(child.pid)
        child.send_signal(signal.SIGSTOP)
        wait_for(lambda: is_stopped(child.pid), "the stop")
        assert is_stopped(child.pid)
        child.send_signal(signal.SIGCONT)
        wait_for(lambda: not is_stopped(child.pid), "it to go on")
        child.kill()
    assert not is_stopped(child.pid)


def test_a_process_that_waits_for_its_disk_is_told_from_one_that_hangs(tmp_path: Path) -> None:
    assert printed(WAITS_IN_THE_KERNEL, str(tmp_path / "pipe")).split() == ["False", "True", "False"]

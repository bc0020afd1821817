import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from system.errors import StateDirectoryError
from system.lock import FLIGHT_LOCK_NAME, LOCK_NAME, StateLock

#: A holder with a child that outlives it.
HOLD = """
import os, sys, time
from pathlib import Path
from system.lock import StateLock
lock = StateLock(Path(sys.argv[1]))
assert lock.acquire()
child = os.fork()
if child == 0:
    os.close(1)
    assert not lock.held
    time.sleep(600)
print(child, flush=True)
time.sleep(600)
"""


def test_only_one_holds_the_lock_and_another_waits_for_it(tmp_path: Path) -> None:
    first, second = StateLock(tmp_path), StateLock(tmp_path)

    assert first.acquire()
    assert not second.acquire()
    assert second.holder() == f"process {os.getpid()}"
    release = threading.Timer(0.2, first.release)
    release.start()
    began = time.monotonic()
    assert second.acquire(30)
    assert time.monotonic() - began < 20
    release.join()
    first.release()
    assert (first.held, second.held) == (False, True)
    second.release()
    assert stat.S_IMODE((tmp_path / LOCK_NAME).stat().st_mode) == 0o600


def test_r14_the_holder_in_another_process_is_named_and_its_death_frees_the_lock(tmp_path: Path) -> None:
    lock = StateLock(tmp_path)
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            assert not lock.acquire(0.2)
            assert lock.holder() == f"process {process.pid}"
            process.kill()

            assert lock.acquire(60)
        finally:
            process.kill()
            os.kill(child, signal.SIGKILL)
            lock.release()


def test_acquire_retries_if_the_file_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = StateLock(tmp_path)
    flock = fcntl.flock
    replaced: list[Path] = []

    def replace_first(descriptor: int, operation: int) -> None:
        if not replaced:
            replaced.append((tmp_path / LOCK_NAME).rename(tmp_path / "old"))
            (tmp_path / LOCK_NAME).touch()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", replace_first)

    assert lock.acquire(30)
    assert (tmp_path / LOCK_NAME).read_text() == f"{os.getpid()}\n"
    assert (tmp_path / "old").read_text() == ""
    lock.release()


def test_the_number_of_a_process_in_another_container_is_no_holder(tmp_path: Path) -> None:
    lock = StateLock(tmp_path)
    assert lock.acquire()

    assert StateLock(tmp_path).holder_pid() == os.getpid()
    (tmp_path / LOCK_NAME).write_text(f"{os.getppid()}\n")
    assert StateLock(tmp_path).holder_pid() is None
    lock.release()


@pytest.mark.parametrize("content", [b"", b"nobody\n", b"\xff"])
def test_an_unknown_holder_is_another_process(tmp_path: Path, content: bytes) -> None:
    (tmp_path / LOCK_NAME).write_bytes(content)

    assert StateLock(tmp_path).holder() == "another process"
    assert StateLock(tmp_path / "absent").holder() == "another process"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(Path.mkdir, r"^The lock of the state directory cannot be used: Is a directory\.$", id="directory"),
        pytest.param(lambda path: path.symlink_to("/dev/full"), "cannot be used", id="a full disk"),
        pytest.param(lambda path: path.symlink_to(path.with_name("mine")), "cannot be used", id="a link"),
    ],
)
def test_an_unusable_lock_file_is_an_error(tmp_path: Path, make: Callable[[Path], None], message: str) -> None:
    (tmp_path / "mine").write_text("mine")
    make(tmp_path / LOCK_NAME)

    with pytest.raises(StateDirectoryError, match=message):
        StateLock(tmp_path).acquire()

    assert (tmp_path / "mine").read_text() == "mine"


def test_is_taken(tmp_path: Path) -> None:
    lock, look = StateLock(tmp_path, FLIGHT_LOCK_NAME), StateLock(tmp_path, FLIGHT_LOCK_NAME)
    assert not look.is_taken()  # there is no file yet, and this creates none
    assert list(tmp_path.iterdir()) == []

    assert lock.acquire()
    assert look.is_taken()
    assert look.is_taken()

    lock.release()
    assert not look.is_taken()
    assert lock.acquire()


def test_keep_takes_the_lock_again_if_its_file_is_gone(tmp_path: Path) -> None:
    lock, other = StateLock(tmp_path / "state"), StateLock(tmp_path / "state")
    file = tmp_path / "state" / LOCK_NAME
    file.parent.mkdir()
    assert lock.acquire()
    assert lock.keep()

    file.unlink()
    assert lock.keep()
    assert not other.acquire()

    file.unlink()
    assert other.acquire()
    # A lock on a deleted file does not count.
    assert not StateLock(file.parent).acquire()
    assert not lock.keep()
    assert not lock.held
    other.release()
    assert lock.keep()

    file.parent.rename(tmp_path / "moved")
    assert not lock.keep()
    file.parent.mkdir()
    assert lock.keep()
    lock.release()

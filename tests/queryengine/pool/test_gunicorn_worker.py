"""A worker under gunicorn's own arbiter, observed from outside."""

import inspect
import os
import re
import resource
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from gunicorn.arbiter import Arbiter
from gunicorn.workers.sync import SyncWorker

from queryengine.pool.arbiter import EngineArbiter
from queryengine.pool.gunicorn_worker import EngineWorker
from system.process_limits import NICENESS
from system.scratch import SCRATCH_DIRECTORY
from tests.queryengine.bare_engine import Engine, receive, running
from tests.queryengine.heartbeats import state_of, ticks
from tests.queryengine.publishing import ENDLESS, wait_until
from tests.system.processes import is_alive


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine whose arbiter has inherited a descriptor."""
    directory = tmp_path_factory.mktemp("engine")
    with (
        (directory / "secret").open("w") as secret,
        running(directory, temp_directory_limit_bytes=10_000_000, inherited=[secret.fileno()]) as started,
    ):
        yield started


def still_works(engine: Engine) -> None:
    assert engine.ask("SELECT 1 AS a").data == b'[{"a":1}]'


def held(process: int) -> list[str]:
    """Return the open files of a process except its standard streams."""
    targets = []
    for entry in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            targets.append((int(entry.name), str(entry.readlink())))
    return [target for number, target in targets if number > 2]


#: The known descriptors of a worker, by a part of the kernel's names for them.
KNOWN = re.compile(r"wgunicorn-|socket:|statm$|pipe:|eventpoll|/tmp/(?=[0-9a-f]{32}$)")


@pytest.mark.parametrize(
    ("ours", "theirs", "used"),
    [
        pytest.param(EngineArbiter, Arbiter, {"LISTENERS", "WORKERS", "kill_workers", "num_workers"}, id="arbiter"),
        pytest.param(EngineWorker, SyncWorker, {"notify"}, id="worker"),
    ],
)
def test_gunicorn_has_the_names_that_the_engine_overrides_and_uses(ours: type, theirs: type, used: set[str]) -> None:
    overridden = {name for name in vars(ours) if not name.startswith("_")} - {"close_in_worker"}  # our own

    missing = {name for name in overridden | used if not hasattr(theirs, name)}

    assert not missing
    for name in overridden - {"handle_ttin", "handle_ttou", "handle_usr1", "handle_usr2", "handle_winch"}:
        assert list(inspect.signature(getattr(ours, name)).parameters) == list(
            inspect.signature(getattr(theirs, name)).parameters
        ), name


def test_a_worker_is_confined(engine: Engine) -> None:
    worker = engine.worker()
    status = Path(f"/proc/{worker}/status").read_text()

    assert "NoNewPrivs:\t1" in status
    assert resource.prlimit(worker, resource.RLIMIT_CORE) == (0, 0)
    assert resource.prlimit(worker, resource.RLIMIT_FSIZE) == (10_000_000, 10_000_000)
    soft, _ = resource.prlimit(worker, resource.RLIMIT_DATA)
    assert soft != resource.RLIM_INFINITY
    niceness = os.getpriority(os.PRIO_PROCESS, engine.process.pid) + NICENESS
    assert os.getpriority(os.PRIO_PROCESS, worker) == min(niceness, 19), "the system allows no more than 19"

    # While a statement runs, its CPU time is limited too.
    before = resource.prlimit(worker, resource.RLIMIT_CPU)
    with engine.send(ENDLESS):
        wait_until(lambda: resource.prlimit(worker, resource.RLIMIT_CPU) != before)

    wait_until(lambda: resource.prlimit(worker, resource.RLIMIT_CPU) == before)


def test_an_idle_worker_sends_heartbeats_and_keeps_only_the_descriptors_it_needs(engine: Engine) -> None:
    still_works(engine)
    worker = engine.worker()
    # Until the last connection is closed there are two sockets.
    wait_until(lambda: sum(target.startswith("socket:") for target in held(worker)) == 1)
    standard = [str(Path(f"/proc/{worker}/fd/{number}").readlink()) for number in range(3)]

    assert standard == ["/dev/null", "/dev/null", str(Path(f"/proc/{engine.process.pid}/fd/2").readlink())]
    files = [found.group() if (found := KNOWN.search(target)) else target for target in held(worker)]
    assert (
        "/dev/null" in files
    )  # in place of what the arbiter has inherited, and of the file that some libffi keeps open
    assert sorted(file for file in files if file != "/dev/null") == [
        "/tmp/",
        "eventpoll",  # one for connections, one for hang-ups
        "eventpoll",
        "pipe:",  # both ends, for signals
        "pipe:",
        "socket:",  # the listener
        "statm",
        "wgunicorn-",
    ]
    assert str(engine.state_dir / "secret") in held(engine.process.pid)

    heartbeat = next(entry for entry in Path(f"/proc/{worker}/fd").iterdir() if "wgunicorn-" in str(entry.readlink()))
    before = heartbeat.stat().st_mtime
    wait_until(lambda: heartbeat.stat().st_mtime > before)
    # gunicorn sets the time from the monotonic clock, with which it compares it, also after a statement.
    # Between its write and that, the file has the time of the system for a moment.
    wait_until(lambda: abs(heartbeat.stat().st_mtime - time.monotonic()) < 30)
    still_works(engine)
    wait_until(lambda: abs(heartbeat.stat().st_mtime - time.monotonic()) < 30)


def test_unused_signals_are_ignored(engine: Engine) -> None:
    worker = engine.worker()

    for name in ("SIGHUP", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGPIPE", "SIGCHLD"):
        for _ in range(20):
            os.kill(worker, signal.Signals[name])
        still_works(engine)
        assert engine.worker() == worker, name


def test_each_worker_has_a_temporary_directory_and_removes_that_of_a_killed_one(engine: Engine) -> None:
    still_works(engine)
    worker = engine.worker()
    scratch = engine.state_dir / SCRATCH_DIRECTORY
    (left,) = scratch.iterdir()
    (left / "spilled").write_bytes(bytes(1000))

    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not is_alive(worker))
    still_works(engine)
    worker = engine.worker()
    (found,) = scratch.iterdir()
    assert found != left

    shutil.rmtree(scratch)
    wait_until(lambda: not is_alive(worker))
    still_works(engine)
    assert len(list(scratch.iterdir())) == 1


@pytest.mark.exhaustive
def test_workers_die_with_their_arbiter(tmp_path: Path) -> None:
    with running(tmp_path, workers=2) as engine:
        wait_until(lambda: len(engine.workers()) == 2)
        still_works(engine)
        workers = engine.workers()
        with engine.send(ENDLESS):
            wait_until(lambda: any(state_of(worker).phase == "busy" for worker in workers))

            engine.process.kill()

            wait_until(lambda: not any(map(is_alive, workers)))


def test_a_worker_without_descriptors_waits_for_some(tmp_path: Path) -> None:
    with running(tmp_path) as engine:
        still_works(engine)
        worker = engine.worker()
        limit = resource.prlimit(worker, resource.RLIMIT_NOFILE)
        resource.prlimit(worker, resource.RLIMIT_NOFILE, (3, limit[1]))  # open ones stay open
        with engine.send("SELECT 1 AS a") as connection:
            used = ticks(worker)
            time.sleep(1)
            assert ticks(worker) - used < 0.3 * os.sysconf("SC_CLK_TCK")
            resource.prlimit(worker, resource.RLIMIT_NOFILE, limit)

            assert receive(connection).data == b'[{"a":1}]'
        assert engine.worker() == worker


@pytest.mark.exhaustive
def test_a_worker_that_cannot_be_confined_ends_without_ending_the_arbiter(tmp_path: Path) -> None:
    with running(tmp_path, temp_directory_limit_bytes="no number") as engine:
        seen = set()

        def enough() -> bool:
            seen.update(engine.workers())
            return len(seen) >= 3

        wait_until(enough)
        assert engine.process.poll() is None

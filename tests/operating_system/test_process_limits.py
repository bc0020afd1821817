"""Each limit is set in a process of its own, which then runs into it."""

import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from system import process_limits
from tests.operating_system.programs import ROOT, printed, run
from tests.queryengine.publishing import wait_until
from tests.system.processes import is_alive


@pytest.mark.parametrize(
    ("hard", "connections"),
    [
        *((64, 27), (20, 4), (1024, 987), (1_000_000, process_limits.MAX_CONNECTIONS)),
        (resource.RLIM_INFINITY, process_limits.MAX_CONNECTIONS),
    ],
)
def test_the_connection_limit_reserves_descriptors_for_statements(
    monkeypatch: pytest.MonkeyPatch, hard: int, connections: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20, hard))

    assert process_limits.connection_limit(statements=5) == connections


#: A process with a child that prints its id once it is bound to its parent, which then waits.
PARENT = """
import os, time
from system.process_limits import die_with_parent
parent = os.getpid()
if not os.fork():
    die_with_parent(parent)
    print(os.getpid(), flush=True)
    time.sleep(600)
os.wait()
"""


def test_a_process_dies_with_its_parent_or_if_that_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = run("from system.process_limits import die_with_parent; die_with_parent(1); print('lives on')")
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, "")

    with subprocess.Popen([sys.executable, "-c", PARENT], cwd=ROOT, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())

        parent.kill()

    wait_until(lambda: not is_alive(child))

    monkeypatch.setattr(signal, "SIGKILL", 99999)  # which the kernel refuses
    with pytest.raises(OSError, match="Invalid argument"):
        process_limits.die_with_parent(os.getppid())


def test_the_environment_keeps_harmless_variables_only() -> None:
    names = printed(
        """
        import os
        from system import process_limits
        process_limits.forget_environment()
        print(*os.environ)
        os.system("env | cut -d= -f1")
        """,
        environment={"CANARY_API_KEY": "canary", "PATH": os.environ["PATH"], "TZ": "UTC"},
    ).split()

    assert {"PATH", "TZ"} <= set(names)
    # The shell makes the last three itself.
    assert set(names) <= process_limits.HARMLESS_VARIABLES | {"PWD", "SHLVL", "_"}


def test_descriptors_are_closed_but_their_numbers_stay_taken() -> None:
    printed(
        """
        import os, socket
        from pathlib import Path
        from system import process_limits
        kept, gone = socket.socketpair()
        process_limits.close_descriptors([kept.fileno(), 1])
        assert os.readlink(f"/proc/self/fd/{gone.fileno()}") == "/dev/null"
        links = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        assert sum(link.startswith("socket:") for link in links) == 1
        assert kept.recv(1) == b""  # the other end is closed
        gone.close()
        """
    )


@pytest.mark.parametrize(
    ("closed", "left"),
    [
        pytest.param("0", "/dev/null,/dev/null,{log}", id="standard input"),
        pytest.param("2", "/dev/null,/dev/null,/dev/null", id="standard error, whose number a file has got"),
    ],
)
def test_only_the_log_of_the_standard_streams_is_kept(tmp_path: Path, closed: str, left: str) -> None:
    code = """
        import os, sys
        from system import process_limits
        other = open("other", "w")
        process_limits.close_descriptors([])
        found = ",".join(os.readlink(f"/proc/self/fd/{number}") for number in (0, 1, 2))
        open("found", "w").write(found)
        """

    subprocess.run(
        ["sh", "-c", f'exec "$@" >out 2>log {closed}>&-', "sh", sys.executable, "-c", textwrap.dedent(code)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=True,
    )

    assert (tmp_path / "found").read_text() == left.format(log=tmp_path / "log")


def test_a_confined_process_has_its_limits(tmp_path: Path) -> None:
    printed(
        f"""
        import os, resource
        from pathlib import Path
        import pyarrow, pytest
        from system import process_limits
        before, niceness = resource.getrlimit(resource.RLIMIT_CPU), os.nice(0)
        process_limits.confine(file_bytes=1000)
        assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
        assert resource.getrlimit(resource.RLIMIT_FSIZE) == (1000, 1000)
        assert os.nice(0) == min(19, niceness + process_limits.NICENESS)
        assert "NoNewPrivs:\\t1" in Path("/proc/self/status").read_text()
        assert pyarrow.default_memory_pool().backend_name == "system"
        process_limits.confine(file_bytes=2000)
        assert resource.getrlimit(resource.RLIMIT_FSIZE) == (1000, 1000)

        file = os.open({str(tmp_path / "file")!r}, os.O_CREAT | os.O_WRONLY)
        assert os.write(file, bytes(2000)) == 1000
        with pytest.raises(OSError, match="File too large"):
            os.write(file, bytes(2000))

        process_limits.limit_cpu(100)
        soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
        assert 100 <= soft <= 110, soft
        process_limits.lift_cpu_limit()
        assert resource.getrlimit(resource.RLIMIT_CPU) == before

        memory = process_limits.Memory()
        held = bytearray(50_000_000)
        memory.limit(100_000_000)
        more = bytearray(60_000_000)
        assert memory.use().resident >= 110_000_000
        assert memory.use().data >= 110_000_000
        with pytest.raises(MemoryError):
            bytearray(60_000_000)
        """
    )


def test_a_process_has_all_the_descriptors_it_may_have_and_unlimited_files_without_pyarrow() -> None:
    printed(
        """
        import os, resource, sys
        from system import process_limits
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))
        process_limits.raise_soft_limit()
        process_limits.raise_soft_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 300
        process_limits.confine(file_bytes=None, niceness=0)
        process_limits.give_memory_back()
        assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
        assert "pyarrow" not in sys.modules
        """
    )


@pytest.mark.parametrize(
    "first",
    [
        pytest.param("queryengine.execution.instance", id="the engine alone"),
        pytest.param("supervisor.startup", id="what a server imports"),
        pytest.param("queryengine.pool.gunicorn_worker", id="a worker"),
    ],
)
def test_duckdb_returns_addresses(first: str) -> None:
    printed(
        f"""
        import ctypes
        import django
        import {first}
        import _duckdb
        retain, size = ctypes.c_bool(True), ctypes.c_size_t(1)
        control = ctypes.CDLL(_duckdb.__file__).duckdb_je_mallctl
        assert control(b"opt.retain", ctypes.byref(retain), ctypes.byref(size), None, 0) == 0
        assert not retain.value
        """
    )


def test_without_the_symbol_of_its_allocator_duckdb_keeps_its_memory(caplog: pytest.LogCaptureFixture) -> None:
    assert process_limits._duckdb_control("libc.so.6") is None

    assert caplog.messages == ["DuckDB's allocator cannot be told to return memory"]


def test_memory_is_returned_to_the_system() -> None:
    printed(
        """
        import duckdb
        from system.process_limits import Memory, give_memory_back
        memory = Memory()
        connection = duckdb.connect()
        connection.execute("SELECT 1").fetchall()
        before = memory.use()
        grouped = "SELECT i % 3000000 AS k FROM range(6000000) t(i) GROUP BY k"
        connection.execute(f"SELECT count(*) FROM ({grouped})").fetchall()
        give_memory_back()
        after = memory.use()
        assert after.resident < before.resident + 50_000_000, (before, after)
        assert after.data < before.data + 100_000_000, (before, after)
        """,
        environment={"DUCKDB_JE_MALLOC_CONF": "retain:false"},
    )


def test_memory_is_reused_until_it_is_given_back() -> None:
    printed(
        """
        import resource
        import threading
        import pyarrow
        from system import process_limits
        process_limits.reuse_memory()
        process_limits.confine(file_bytes=None, niceness=0)
        memory = process_limits.Memory()
        text = bytes(2_000_000)

        def take() -> None:
            for buffer in [pyarrow.allocate_buffer(len(text)) for _ in range(5)]:
                memoryview(buffer).cast("B")[:] = text

        def faults() -> int:
            began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            thread = threading.Thread(target=take)
            thread.start()
            thread.join()
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - began

        first, again, kept = faults(), min(faults() for _ in range(8)), memory.use().resident
        process_limits.give_memory_back()
        given_back = kept - memory.use().resident
        assert first > 2000 and again < 500 and given_back > 8_000_000, (first, again, given_back)
        """
    )


def test_cpu_time_ends_a_process() -> None:
    finished = run(
        """
        from system import process_limits
        process_limits.limit_cpu(0.5)
        while True:
            pass
        """
    )

    assert finished.returncode == -signal.SIGXCPU

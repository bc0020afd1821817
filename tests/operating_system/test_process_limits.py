"""Each limit is set in a process of its own, which then runs into it."""

import os
import signal
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import pytest

from queryengine.pool.frames import FrameDecoder, Kind
from runtimeconf.model import MIB
from system import process_limits
from tests.queryengine.bare_engine import running
from tests.queryengine.publishing import Publisher

ROOT = Path(__file__).parents[2]


def run(code: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT, env=os.environ | (environment or {}), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def printed(code: str, environment: dict[str, str] | None = None) -> list[str]:
    finished = run(code, environment)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.split()


def test_the_environment_keeps_harmless_variables_only() -> None:
    names = printed(
        """
        import os
        from system import process_limits
        process_limits.forget_environment()
        print(*os.environ)
        os.system("env | cut -d= -f1")
        """,
        {"CANARY_API_KEY": "canary", "PATH": os.environ["PATH"], "TZ": "UTC"},
    )

    assert {"PATH", "TZ"} <= set(names)
    # The shell makes the last three itself.
    assert set(names) <= process_limits.HARMLESS_VARIABLES | {"PWD", "SHLVL", "_"}


def test_descriptors_are_closed_but_their_numbers_stay_taken() -> None:
    kept, gone, sockets = printed(
        """
        import os, socket
        from system import process_limits
        kept, gone = socket.socketpair()
        process_limits.close_descriptors([kept.fileno(), 1])
        targets = {number: os.readlink(f"/proc/self/fd/{number}") for number in (kept.fileno(), gone.fileno())}
        print(*(target.partition(":")[0] for target in targets.values()))
        print(sum(1 for number in range(3, 100) if os.path.exists(f"/proc/self/fd/{number}")
                  and os.readlink(f"/proc/self/fd/{number}").startswith("socket")))
        assert kept.recv(1) == b""  # the other end is closed
        gone.close()
        """
    )

    assert (kept, gone, sockets) == ("socket", "/dev/null", "1")


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
        import pyarrow
        from system import process_limits
        before = resource.getrlimit(resource.RLIMIT_CPU)
        process_limits.confine(file_bytes=1000)
        assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
        assert resource.getrlimit(resource.RLIMIT_FSIZE) == (1000, 1000)
        assert os.nice(0) >= process_limits.NICENESS
        assert "NoNewPrivs:\\t1" in Path("/proc/self/status").read_text()
        assert pyarrow.default_memory_pool().backend_name == "system"
        process_limits.confine(file_bytes=2000)
        assert resource.getrlimit(resource.RLIMIT_FSIZE) == (1000, 1000)

        file = os.open({str(tmp_path / "file")!r}, os.O_CREAT | os.O_WRONLY)
        assert os.write(file, bytes(2000)) == 1000
        try:
            os.write(file, bytes(2000))
        except OSError as error:
            assert error.strerror == "File too large"
        else:
            raise AssertionError("the file grew")

        process_limits.limit_cpu(100)
        soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
        assert 100 <= soft <= 110, soft
        process_limits.lift_cpu_limit()
        assert resource.getrlimit(resource.RLIMIT_CPU) == before
        """
    )


def test_pyarrow_is_not_imported_and_files_may_be_unlimited() -> None:
    printed(
        """
        import os, resource, sys
        from system import process_limits
        process_limits.confine(file_bytes=None, niceness=0)
        process_limits.give_memory_back()
        assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
        assert "pyarrow" not in sys.modules
        """
    )


def test_memory_is_limited_relative_to_its_use() -> None:
    printed(
        """
        import ctypes
        import pyarrow
        from system.process_limits import Memory
        memory = Memory()
        held = bytearray(50_000_000)
        memory.limit(100_000_000)
        more = bytearray(60_000_000)
        assert memory.use().resident >= 110_000_000
        assert memory.use().data >= 110_000_000
        try:
            bytearray(60_000_000)
        except MemoryError:
            pass
        else:
            raise AssertionError("there was more memory")
        """
    )


@pytest.mark.parametrize(
    "first",
    [
        pytest.param("queryengine.execution.instance", id="the engine alone"),
        pytest.param("runtime_site.startup", id="what a server imports"),
        pytest.param("queryengine.pool.gunicorn_worker", id="a worker"),
    ],
)
def test_duckdb_returns_addresses(first: str) -> None:
    (retains,) = printed(
        f"""
        import ctypes, os
        import django
        import {first}
        import _duckdb
        retain, size = ctypes.c_bool(True), ctypes.c_size_t(1)
        control = ctypes.CDLL(_duckdb.__file__).duckdb_je_mallctl
        assert control(b"opt.retain", ctypes.byref(retain), ctypes.byref(size), None, 0) == 0
        print(retain.value)
        """
    )

    assert retains == "False"


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
        {"DUCKDB_JE_MALLOC_CONF": "retain:false"},
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


def test_a_large_sort_spills_under_a_small_memory_limit(tmp_path: Path) -> None:
    Publisher(tmp_path)
    with running(tmp_path, memory_limit_bytes=128 * MIB) as engine:
        worker = engine.worker()

        with engine.send(
            "SELECT hash(i) AS h, repeat('x', 100) || i AS s FROM range(2000000) t(i) ORDER BY h", encoding="arrow"
        ) as connection:
            decoder = FrameDecoder()
            kinds = [kind for data in iter(partial(connection.recv, MIB), b"") for kind, _ in decoder.feed(data)]

        assert Kind.END in kinds
        assert engine.worker() == worker

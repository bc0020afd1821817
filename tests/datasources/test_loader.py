"""Loads in a process of their own, which are to be as those of this process, but for their end."""

import dataclasses
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from datasources.deadline import Deadline
from datasources.errors import INTERRUPTED, DatasetError, SnapshotError
from datasources.refresh import loader, refresher
from datasources.refresh.loader import LoaderFaultError, LoaderProcess
from datasources.refresh.loader_process import NICENESS, SPARE_BYTES
from datasources.snapshots.snapshot import Order
from tests.datasources.sources.test_files import put
from tests.datasources.support import (
    MIB,
    builder,
    configure,
    deadline,
    declare,
    files_below,
    loaded,
    meanwhile,
    rows,
    verify,
)
from tests.system.harness import wait_for

#: One call of a function, which no interrupt stops; and a statement that listens to one.
DEAF = "SELECT levenshtein(repeat('a', 200000) || a, repeat('b', 200000)) AS x FROM d"
ENDLESS = "SELECT count(*) AS n FROM range(1000000000000), d"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[LoaderProcess]:
    put(tmp_path, "a.csv", "a,b\n1,x\n2,y\n")
    with closing(LoaderProcess(builder(tmp_path))) as made:
        yield made
    assert children() == set()
    assert [name for name in files_below(tmp_path) if "refresh_tmp" in name] == []


def children() -> set[int]:
    """Return the ids of this process's loaders, of those too that have ended and were not waited for."""
    found = set()
    # By the process that is their parent: of the threads of this one, others may end meanwhile.
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, and another one waited for it
            parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid() and b"loader_process" in (process / "cmdline").read_bytes():
                found.add(int(process.name))
    return found


def child_of(loader: LoaderProcess) -> int:
    return wait_for(lambda: loader._child, "the loader process")._process.pid


def status(pid: int, name: str) -> str:
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return line.partition(":")[2].strip()


def peak_bytes(pid: int) -> int:
    return int(status(pid, "VmHWM").split()[0]) * 1024


@contextmanager
def peaks_of(pid: int) -> Iterator[list[int]]:
    """Note the peak memory of a process until the block ends."""
    peaks: list[int] = []

    def note() -> None:
        with suppress(OSError, ValueError):  # The process has ended.
            peaks.append(peak_bytes(pid))

    with meanwhile(note, 0.01):
        yield peaks


@contextmanager
def once_busy(process: LoaderProcess, then: Callable[[int], object]) -> Iterator[None]:
    """Call *then* with the id of the loader process as soon as that is busy."""

    def wait() -> None:
        child = child_of(process)
        wait_for(lambda: busy(child), "the load")
        then(child)

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def busy(pid: int) -> bool:
    """Say whether a process has used half a second of CPU, which a start does not."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12]) > 0.5 * os.sysconf("SC_CLK_TCK")


@pytest.mark.exhaustive
def test_an_idle_loader_process_ends(process: LoaderProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresher, "REST_S", 0.01)
    service = refresher.Refresher(configure(tmp_path, declare(tmp_path, "a.csv")), builders=[process])
    service.start()
    wait_for(service.is_loaded, "the load of the start")
    wait_for(lambda: process._child is None, "the end of the process")
    assert children() == set()

    service.request_refresh("d")
    wait_for(lambda: [run.status for run in service.history("d")] == ["succeeded"] * 2, "another load")
    assert service.stop(30)


@pytest.mark.parametrize("sql", [None, "SELECT a + 1 AS n FROM d WHERE a > 1"])
def test_a_loader_process_builds_the_same_snapshot(process: LoaderProcess, tmp_path: Path, sql: str | None) -> None:
    duckdb.execute(f"COPY (SELECT i AS a, 'text ' || i AS b FROM range(5000) t(i)) TO '{tmp_path}/s.parquet'")
    dataset = declare(tmp_path, "s.parquet")

    made = loaded(process, dataset, sql, deadline())
    here = builder(tmp_path).build(Order(dataset, sql), deadline())

    verify(tmp_path / "state", made)
    assert replace(made, file="", sha256="", created_at="") == replace(here, file="", sha256="", created_at="")
    assert rows(tmp_path, made) == rows(tmp_path, here)
    assert files_below(tmp_path) == sorted([f"snapshots/{made.file}", f"snapshots/{here.file}"])


@pytest.mark.parametrize(
    ("file", "sql"),
    [
        pytest.param("absent.csv", None, id="absent"),
        pytest.param("a.csv", "SELECT * FROM read_text('/etc/passwd')", id="forbidden"),
        pytest.param("a.csv", "SELECT repeat('x', 900000) || i AS x FROM range(9000) t(i) ORDER BY x", id="memory"),
    ],
)
def test_an_error_keeps_its_class_and_its_sentence(
    process: LoaderProcess, tmp_path: Path, file: str, sql: str | None
) -> None:
    dataset = declare(tmp_path, file)
    with pytest.raises(DatasetError) as here:
        builder(tmp_path).build(Order(dataset, sql), deadline())

    with pytest.raises(here.type, match=f"^{re.escape(str(here.value))}$") as there:
        loaded(process, dataset, sql, deadline())

    assert there.type is here.type
    assert files_below(tmp_path) == []
    assert loaded(process, declare(tmp_path, "a.csv"), None, deadline()).rows == 2


def test_s27_an_unexpected_error_is_logged_without_secrets_and_ends_the_process(
    process: LoaderProcess, tmp_path: Path
) -> None:
    # An error of the interpreter that repeats a value, which is a secret too here.
    params, location = {"http_bearer_token": "p%ss wörd"}, "http://127.0.0.1:p%ss wörd/a.csv"
    dataset = replace(declare(tmp_path, "a.csv"), connector="http", location=location, params=params)

    with pytest.raises(LoaderFaultError, match=r"(?s)^Traceback .*snapshots/snapshot\.py") as caught:
        loaded(process, dataset, None, deadline())

    assert str(caught.value).endswith("ValueError: Port could not be cast to integer value as '<secret>'\n")
    assert children() == set()
    assert files_below(tmp_path) == []
    assert loaded(process, declare(tmp_path, "a.csv"), None, deadline()).rows == 2


def test_the_process_is_confined_and_serves_one_load_after_the_other(process: LoaderProcess, tmp_path: Path) -> None:
    process.start()
    child = child_of(process)

    assert [loaded(process, declare(tmp_path, "a.csv"), None, deadline()).rows for _ in range(2)] == [2, 2]
    # Signals for the whole group are its parent's business.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(child, number)
    assert loaded(process, declare(tmp_path, "a.csv"), None, deadline()).rows == 2

    assert children() == {child}
    assert status(child, "NoNewPrivs") == "1"
    limits = Path(f"/proc/{child}/limits").read_text()
    assert re.search(r"Max core file size +0 +0 ", limits)
    assert re.search(r"Max file size +unlimited", limits)
    data = re.search(r"Max data size +(\d+)", limits)
    assert data is not None
    assert int(data[1]) < 1.25 * 256 * MIB + SPARE_BYTES + 128 * MIB
    assert os.getpriority(os.PRIO_PROCESS, child) == max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0))


def test_a_load_that_ignores_interrupts_is_killed_and_the_next_works(process: LoaderProcess, tmp_path: Path) -> None:
    # The imports take long on a busy machine, and a load that has not begun yet ends at its deadline without a kill.
    (tmp_path / "state/snapshots" / loaded(process, declare(tmp_path, "a.csv"), None, deadline()).file).unlink()
    first = child_of(process)
    began = time.monotonic()

    with pytest.raises(SnapshotError, match=r"^The load was stopped after 4 s, the refresh_timeout of the dataset\.$"):
        loaded(process, declare(tmp_path, "a.csv"), DEAF, deadline(4))

    assert 4 + loader.GRACE_S <= time.monotonic() - began < 30
    assert children() == set()
    assert files_below(tmp_path) == []
    assert list((tmp_path / "state").glob("refresh_tmp/*")) == []
    assert loaded(process, declare(tmp_path, "a.csv"), None, deadline()).rows == 2
    assert child_of(process) != first


def test_an_interrupted_load_keeps_its_process(process: LoaderProcess, tmp_path: Path) -> None:
    loaded(process, declare(tmp_path, "a.csv"), None, deadline())
    child = child_of(process)

    with pytest.raises(SnapshotError, match=r"^The load was stopped after 0\.5 s"):
        loaded(process, declare(tmp_path, "a.csv"), ENDLESS, deadline(0.5))

    assert len(files_below(tmp_path)) == 1
    # On a machine that is too busy to obey within the grace it may be another one.
    assert loaded(process, declare(tmp_path, "a.csv"), None, deadline()).rows == 2
    assert len(children() | {child}) <= 2


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a, repeat('a', 3000000000) AS x FROM d",
        "SELECT length(string_agg(repeat('a', 1000000), '')) AS x FROM range(100000), d",
        pytest.param("SELECT len(string_split(repeat('a,', 40000000), ',')) AS x FROM d", marks=pytest.mark.exhaustive),
        pytest.param("SELECT list_sort(list_reverse(range(40000000)))[1] AS x FROM d", marks=pytest.mark.exhaustive),
    ],
)
def test_a_load_that_takes_memory_without_end_fails(process: LoaderProcess, tmp_path: Path, sql: str) -> None:
    loaded(process, declare(tmp_path, "a.csv"), None, deadline())
    child = child_of(process)
    base = peak_bytes(child)

    with (
        peaks_of(child) as peaks,
        pytest.raises(SnapshotError, match=r"query\.memory_limit|not enough memory"),
    ):
        loaded(process, declare(tmp_path, "a.csv"), sql, deadline())

    assert max([base, *peaks]) < base + 1.25 * 256 * MIB + SPARE_BYTES
    assert len(files_below(tmp_path)) == 1
    assert loaded(process, declare(tmp_path, "a.csv"), None, deadline()).rows == 2


@pytest.mark.parametrize("memory_mib", [64, pytest.param(256, marks=pytest.mark.exhaustive)])
def test_a_load_that_spills_has_the_memory_that_it_needs(tmp_path: Path, memory_mib: int) -> None:
    data = "SELECT i AS a, hash(i) AS h, repeat('x', (hash(i) % 60)::INTEGER) || i AS b FROM range(1000000) t(i)"
    duckdb.execute(f"COPY ({data}) TO '{tmp_path / 's.parquet'}'")
    made = dataclasses.replace(builder(tmp_path, memory_mib), temp_directory_limit_bytes=1024 * MIB)

    with closing(LoaderProcess(made)) as process:
        snapshot = loaded(process, declare(tmp_path, "s.parquet"), "SELECT * FROM d ORDER BY h", deadline(300.0))

    assert snapshot.rows == 1_000_000
    assert list((tmp_path / "state").glob("refresh_tmp/*")) == []  # none on a machine too slow to begin the load


@pytest.mark.exhaustive
def test_a_file_of_many_columns_loads_where_the_engine_alone_would(tmp_path: Path) -> None:
    kinds = ("'v' || (i * {n}) % 5003 AS c{n}", "(i * {n}) % 1000003 AS c{n}", "i / {n} AS c{n}")
    columns = ", ".join(kinds[n % 3].format(n=n) for n in range(1, 301))
    table: Any = duckdb.sql(f"SELECT {columns} FROM range(100000) t(i)")
    pq.write_table(table.to_arrow_table(), tmp_path / "s.parquet")
    made = dataclasses.replace(builder(tmp_path, memory_mib=384), temp_directory_limit_bytes=1024 * MIB)

    with closing(LoaderProcess(made)) as process:
        assert loaded(process, declare(tmp_path, "s.parquet"), None, deadline(600)).rows == 100_000


@pytest.mark.exhaustive
def test_a_process_that_is_killed_costs_the_one_load(process: LoaderProcess, tmp_path: Path) -> None:
    loaded(process, declare(tmp_path, "a.csv"), None, deadline())
    before = files_below(tmp_path)

    with (
        once_busy(process, lambda child: os.kill(child, signal.SIGKILL)),
        pytest.raises(SnapshotError, match=r"^The load of d failed because its process ended \(signal SIGKILL\)"),
    ):
        loaded(process, declare(tmp_path, "a.csv"), DEAF, deadline())

    assert files_below(tmp_path) == before
    assert loaded(process, declare(tmp_path, "a.csv"), None, deadline()).rows == 2


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(struct.pack("!iQ", -1, 2**62), id="of any length"),
        pytest.param(struct.pack("!i", 4) + b"null", id="without fields"),
        pytest.param(struct.pack("!i", 200_000) + b"[" * 200_000, id="nested"),
        pytest.param(struct.pack("!i", 9) + b"{}", id="cut short"),
    ],
)
def test_what_is_no_answer_is_none(message: bytes) -> None:
    ours, theirs = socket.socketpair()
    child = object.__new__(loader._Child)
    child._connection = Connection(ours.detach())
    with theirs, child._connection, ThreadPoolExecutor() as threads:
        asked = threads.submit(child.ask, b"{}", deadline())
        theirs.sendall(message)
        theirs.shutdown(socket.SHUT_WR)

        assert asked.result() is None


def test_a_process_that_died_idle_is_replaced(process: LoaderProcess, tmp_path: Path) -> None:
    process.start()
    child = child_of(process)
    os.kill(child, signal.SIGKILL)
    wait_for(lambda: "Z" in status(child, "State"), "its end")

    assert loaded(process, declare(tmp_path, "a.csv"), None, deadline()).rows == 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("sql", [DEAF, ENDLESS])
def test_a_stop_ends_the_load_and_its_process_at_once(process: LoaderProcess, tmp_path: Path, sql: str) -> None:
    stop = threading.Event()

    with once_busy(process, lambda _: stop.set()), pytest.raises(SnapshotError, match=f"^{INTERRUPTED}$"):
        loaded(process, declare(tmp_path, "a.csv"), sql, Deadline(600, stop))

    assert children() == set()
    assert files_below(tmp_path) == []


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("/absent", r"^The process that loads data cannot be started: No such file"),
        ("/bin/false", r"failed because its process ended \(exit code 1\)"),
    ],
)
def test_a_process_that_does_not_start_is_said(
    process: LoaderProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, said: str
) -> None:
    monkeypatch.setattr(sys, "executable", program)

    process.start()
    with pytest.raises(SnapshotError, match=said):
        loaded(process, declare(tmp_path, "a.csv"), None, deadline())


@pytest.mark.exhaustive
def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", "a\n1\n")
    script = f"""
import os, signal, threading, time
from pathlib import Path
from datasources.refresh.loader import LoaderProcess
from datasources.snapshots.snapshot import Order
from tests.datasources.support import builder, deadline, declare
from tests.datasources.test_loader import DEAF, busy, child_of
directory = Path("{tmp_path}")
process = LoaderProcess(builder(directory))
process.start()
child = child_of(process)
print(child, flush=True)
load = threading.Thread(target=process.build, args=(Order(declare(directory, "a.csv"), DEAF), deadline(600)))
load.start()
while not busy(child):
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=False)

    assert done.returncode == -signal.SIGKILL
    child = Path(f"/proc/{done.stdout.strip()}/cmdline")
    wait_for(lambda: not child.exists() or b"loader_process" not in child.read_bytes(), "the end of the loader")

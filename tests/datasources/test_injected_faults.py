"""
Faults of the system in the middle of refreshes: what is served is the old data or the new, and the next run recovers.

strace (from the system's packages) has the n-th call of a kind fail, or ends the process at it. A few places are tried
in every run of the tests; `make soak` tries the first thirty of each kind.
"""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from datasources.refresh.refresher import Refresher
from datasources.snapshots.publication import Publication
from tests.datasources.sources.test_files import put_parquet
from tests.datasources.support import configure, declare, files_below, rows, verify

ROWS = 1000

#: Refreshes a dataset COUNT times, each with its number in every row, and says how each of them ended.
REFRESHES = r"""
import os
import sys
from contextlib import suppress
from pathlib import Path
from datasources.refresh.loader import LoaderProcess
from datasources.refresh.service import DatasetService
from datasources.snapshots.snapshot import SnapshotBuilder
from tests.datasources.support import configure, declare, finished, settled
directory, count, where = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
config = configure(directory, declare(directory, "a.parquet", on_schema_change="accept"))
builder = SnapshotBuilder.of(config)
builders = [LoaderProcess(builder)] if where == "process" else [builder]
service = DatasetService(config, exclusive=True, builders=builders)
service.start()
settled(service)
for version in range(1, count + 1):
    run = finished(service, service.request_refresh("d", f"SELECT {version} AS version, n FROM d"))
    with suppress(OSError):
        os.write(1, f"{version} {run.status} {run.error}\n".encode())  # whole, or not at all
service.stop(30)
builders[0].close()
"""


def first_load(directory: Path) -> None:
    put_parquet(directory, "a.parquet", n=list(range(ROWS)))
    (directory / "state").mkdir()
    initial = declare(directory, "a.parquet")
    refresher = Refresher(configure(directory, initial))
    ((_, run),) = refresher.load_once(["d"], skip_unchanged=False)
    assert refresher.stop(30)
    assert run.status == "succeeded"


def version_served(directory: Path) -> int:
    """Start from what is on the disk, and return which version that is; 0 for the first load."""
    dataset = declare(directory, "a.parquet")
    snapshot = Publication(directory / "state", [dataset]).snapshot("d")
    assert snapshot is not None, "the dataset is lost"
    verify(directory / "state", snapshot)
    names = [column.name for column in snapshot.columns]
    if names == ["n"]:
        return 0
    ((least, most, count, total),) = rows(
        directory, snapshot, "SELECT min(version), max(version), count(*), sum(n)::BIGINT FROM d"
    )
    assert (least, count, total) == (most, ROWS, ROWS * (ROWS - 1) // 2), "torn"
    return int(least)


def inject(directory: Path, what: str, how: str, number: int, where: str) -> None:
    first_load(directory)
    count = number // 3 + 2
    injection = ["-e", f"trace={what}", "-e", f"inject={what}:{how}:when={number}"]
    program = [sys.executable, "-c", REFRESHES, str(directory), str(count), where]
    done = subprocess.run(
        ["strace", "-f", "-qqq", "-o", "/dev/null", *injection, *program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in {0, -signal.SIGKILL} or "StateDirectoryError" in done.stderr, done.stderr
    ended = [line.split(" ", 2) for line in done.stdout.splitlines()]
    last_good = max((int(version) for version, status, _ in ended if status == "succeeded"), default=0)
    last_asked = int(ended[-1][0]) + 1 if ended else 1

    # The served version is the last confirmed one, or one that was being published.
    served = version_served(directory)
    if done.returncode:
        assert last_good <= served <= last_asked, done.stderr
    else:
        # strace counts the calls of each thread and process by itself: of two in the refresher, and of a loader. The
        # run after them has recovered.
        assert sum(status == "failed" for _, status, _ in ended) <= (2 if where == "here" else 3), done.stdout
        assert last_good <= served <= count, done.stderr
    if what == FSYNC:
        assert all("to the state directory" in error for _, status, error in ended if status == "failed")
    published = f"snapshots/{Publication(directory / 'state', [declare(directory, 'a.parquet')]).snapshot('d').file}"  # type: ignore[union-attr]
    left = [name for name in files_below(directory) if not name.startswith("refreshes.json")]
    assert left == ["manifest.json", published]

    refresher = Refresher(configure(directory, declare(directory, "a.parquet", on_schema_change="accept")))
    ((_, run),) = refresher.load_once(["d"], skip_unchanged=False)
    assert refresher.stop(30)
    assert (run.status, run.rows) == ("succeeded", ROWS)


def works() -> bool:
    """Say whether strace is there and may trace."""
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-f", "-o", "/dev/null", "true"], capture_output=True, check=False).returncode == 0


needs_strace = pytest.mark.skipif(not works(), reason="strace is not installed, or may not trace here")

RENAME, FSYNC, WRITE = "rename", "fsync,fdatasync", "write,pwrite64"
KILL = "signal=SIGKILL"


@pytest.mark.exhaustive
@needs_strace
@pytest.mark.parametrize(
    ("what", "how", "number", "where"),
    [
        pytest.param(RENAME, KILL, 3, "here", id="killed at a rename"),
        pytest.param(FSYNC, KILL, 5, "here", id="killed at an fsync"),
        pytest.param(WRITE, KILL, 4, "process", id="killed at a write, its loader with it"),
        pytest.param(RENAME, "error=EIO", 2, "here", id="EIO at a rename"),
        pytest.param(FSYNC, "error=EIO", 6, "process", id="EIO at an fsync of the loader"),
        pytest.param(FSYNC, "error=EIO", 5, "here", id="EIO at an fsync of the engine's log"),
        pytest.param(WRITE, "error=ENOSPC", 3, "here", id="ENOSPC at a write"),
    ],
)
def test_r02_r04_a_fault_in_a_refresh_leaves_the_old_data_or_the_new(
    tmp_path: Path, what: str, how: str, number: int, where: str
) -> None:
    inject(tmp_path, what, how, number, where)


@needs_strace
@pytest.mark.soak
@pytest.mark.parametrize("where", ["here", "process"])
@pytest.mark.parametrize("how", [KILL, "error=EIO", "error=ENOSPC"])
@pytest.mark.parametrize("what", [RENAME, FSYNC, WRITE])
def test_r02_r04_the_first_thirty_of_each_kind(tmp_path: Path, what: str, how: str, where: str) -> None:
    for number in range(1, 31):
        directory = tmp_path / str(number)
        directory.mkdir()
        inject(directory, what, how, number, where)
        shutil.rmtree(directory)

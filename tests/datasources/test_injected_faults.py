"""
Faults of the system in the middle of refreshes: what is served is the old data or the new, and the next run recovers.

strace (from the system's packages) has the n-th call of a kind fail, or ends the process at it. A few places are tried
in every run of the tests; `make soak` tries the first thirty of each kind.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from datasources.errors import SnapshotError
from datasources.refresh.refresher import Refresher
from datasources.snapshots.directory import SnapshotDirectory
from datasources.snapshots.snapshot import Order
from tests.datasources.sources.loads import table
from tests.datasources.sources.test_files import put_parquet
from tests.datasources.support import builder, configure, deadline, declare, files_below, rows, verify
from tests.file_limit import file_limit

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


def load_here(directory: Path) -> None:
    refresher = Refresher(configure(directory, declare(directory, "a.parquet", on_schema_change="accept")))
    ((_, run),) = refresher.load_once(["d"], skip_unchanged=False)
    assert refresher.stop(30)
    assert (run.status, run.rows) == ("succeeded", ROWS)


def version_served(directory: Path) -> int:
    """Start from what is on the disk, and return which version that is; 0 for the first load."""
    dataset = declare(directory, "a.parquet")
    snapshot = SnapshotDirectory(directory / "state", [dataset]).snapshot("d")
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
    put_parquet(directory, "a.parquet", n=list(range(ROWS)))
    (directory / "state").mkdir()
    load_here(directory)
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
    published = (
        f"snapshots/{SnapshotDirectory(directory / 'state', [declare(directory, 'a.parquet')]).snapshot('d').file}"  # type: ignore[union-attr]
    )
    left = [name for name in files_below(directory) if not name.startswith("refreshes.json")]
    assert left == ["manifest.json", published]
    load_here(directory)


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


# --- a full disk: a file system in memory, which only the program below sees ------------------------------------------

#: How to get a mount of one's own: root by right, others in a namespace where they are root.
UNSHARE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
MOUNT = 'mount -t tmpfs -o size=24m,mode=0700 none "$1" && shift && exec "$@"'

#: Says what came of each step of a dataset's life on a disk of 24 MiB that fills up and becomes free again.
LIFE = """
import json, sys
from pathlib import Path
from datasources.refresh.loader import LoaderProcess
from datasources.refresh.service import DatasetService
from datasources.snapshots.snapshot import Order, SnapshotBuilder
from tests.datasources.support import configure, declare, files_below, finished, served, wait_for
directory = Path(sys.argv[1])
config = configure(directory, declare(directory, "a.parquet", on_schema_change="accept"))
loader = LoaderProcess(SnapshotBuilder.of(config))
service = DatasetService(config, exclusive=True, builders=[loader])
service.start()
wait_for(service.is_loaded, "the first load")
def step(sql=None):
    run = finished(service, service.request_refresh("d", sql))
    state = service.datasets()[0]
    return {"status": run.status, "error": run.error, "shown": state.error, "is_loaded": service.is_loaded(),
            "total": served(directory, sql="SELECT sum(n)::BIGINT FROM d")[0][0], "files": files_below(directory)}
hashes = ", ".join(f"hash(n, i, {number}) AS h{number}" for number in range(12))
large = f"SELECT n, {hashes} FROM d, range(150000) t(i)"
said = {"large": step(large)}
ballast = config.state_dir / "ballast"
with ballast.open("wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError:
        pass
said["full"] = step()
ballast.unlink()
said["free"] = step("SELECT n * 2 AS n FROM d")
print(json.dumps(said))
service.stop(30)
loader.close()
"""


def may_mount(directory: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    trial = [*UNSHARE, "sh", "-c", MOUNT, "sh", str(directory), "true"]
    return subprocess.run(trial, capture_output=True, check=False).returncode == 0


@pytest.mark.exhaustive
def test_r04_a_full_disk_costs_refreshes_only_and_needs_no_restart(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    state_dir.mkdir()
    if not may_mount(state_dir):
        pytest.skip("this system lets the tests mount nothing")
    put_parquet(tmp_path, "a.parquet", n=[1, 2, 3])

    done = subprocess.run(
        [*UNSHARE, "sh", "-c", MOUNT, "sh", str(state_dir), sys.executable, "-c", LIFE, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    for name in ("large", "full"):
        assert said[name]["status"] == "failed"
        # Nothing was free but what a load leaves to others.
        reason = r"the disk is too full\. (\d+) MiB was free when the load began, and 1 MiB is reserved\.$"
        found = re.search(rf"cannot be written to the state directory: {reason}", said[name]["error"])
        assert found is not None, said[name]["error"]
        assert (int(found[1]) > 10) == (name == "large")
        assert str(tmp_path) not in said[name]["error"]
        assert said[name]["shown"] == said[name]["error"]
        assert said[name]["total"] == 6
        assert said[name]["is_loaded"] is True
        assert sum(file.startswith("snapshots/") for file in said[name]["files"]) == 1
        assert not any("tmp" in file for file in said[name]["files"])
    assert said["large"]["error"] != said["free"]["error"]
    assert (said["free"]["status"], said["free"]["total"], said["free"]["shown"]) == ("succeeded", 12, None)
    assert list(state_dir.iterdir()) == []


def test_a_full_disk_is_not_blamed_on_the_delta_table(tmp_path: Path) -> None:
    write_deltalake((tmp_path / "t").as_uri(), pa.table({"n": [1]}))
    made = builder(tmp_path)
    said = r"^The snapshot of d cannot be .* state directory: File too large\.$"
    with file_limit(100), pytest.raises(SnapshotError, match=said):
        made.build(Order(table(tmp_path, "delta:t")), deadline())

"""A state directory on a disk of 24 MiB (check R04): a file system in memory, which only the program below sees."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from datasources.errors import SnapshotError
from datasources.snapshots.snapshot import Order
from tests.datasources.sources.loads import table
from tests.datasources.sources.test_files import put_parquet
from tests.datasources.support import builder, deadline, file_limit

#: How to get a mount of one's own: root by right, others in a namespace where they are root.
UNSHARE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
MOUNT = 'mount -t tmpfs -o size=24m,mode=0700 none "$1" && shift && exec "$@"'

#: Says what came of each step of a dataset's life on a disk that fills up and becomes free again.
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
        assert "File too large" in said[name]["error"]
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

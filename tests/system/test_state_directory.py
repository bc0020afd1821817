"""The state directory in the hands of an operator: backup, restore and move, as `docs/operations.md` has them."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.system.harness import REPOSITORY, Server
from tests.system.test_data import CHECKSUM


def backup_command(directory: Path) -> list[str]:
    text = (REPOSITORY / "docs" / "operations.md").read_text()
    (command,) = re.findall(r"```sh\n(tar .*)\n```", text)
    return shlex.split(command.replace("/srv/flights", str(directory)))


@pytest.mark.exhaustive
def test_a_backup_of_a_running_runtime_serves_elsewhere_without_its_sources(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        expected = server.rows(CHECKSUM)
        runs = server.refreshes()
        subprocess.run(backup_command(tmp_path), cwd=tmp_path, check=True)
    salt = (tmp_path / ".runtime" / "key-salt").read_bytes()
    shutil.rmtree(tmp_path / ".runtime")
    (tmp_path / "orders.parquet").write_bytes(b"")  # which no load can read
    (tmp_path / "m").mkdir()  # a short name: paths of sockets have a limit
    subprocess.run(["tar", "-xzf", tmp_path / "state.tar.gz", "-C", tmp_path / "m"], check=True)

    with Server(tmp_path, changes={"runtime": {"state_dir": "m/.runtime"}}) as server:
        assert server.rows(CHECKSUM) == expected
        assert [run["id"] for run in runs] == [run["id"] for run in server.refreshes()][-1:]

    assert (tmp_path / "m" / ".runtime" / "key-salt").read_bytes() == salt
    assert not (tmp_path / ".runtime").exists()

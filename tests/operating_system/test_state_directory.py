"""The state directory belongs to this user only, or it is refused."""

import os
import stat
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from datasources.refresh.control_socket import SOCKET_NAME
from datasources.refresh.history import HISTORY_NAME
from datasources.snapshots.snapshot import TEMPORARY_DIRECTORY
from queryengine.manifest import MANIFEST_NAME, SNAPSHOT_DIRECTORY
from queryengine.pool.broker import BROKER_SOCKET
from queryengine.pool.slots import ENGINE_SOCKET
from runtimeconf.errors import ConfigError
from runtimeconf.loader import load
from system.errors import StateDirectoryError
from system.lock import ENGINE_LOCK_NAME, FLIGHT_LOCK_NAME, LOCK_NAME, SUPERVISOR_LOCK_NAME
from system.scratch import SCRATCH_DIRECTORY
from system.state_directory import judge_state_dir, prepare_state_dir

#: Both refuse the same directories; the second one changes nothing.
JUDGES = pytest.mark.parametrize("judge", [prepare_state_dir, judge_state_dir])
Judge = Callable[[Path], None]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(("umask", "path"), [(0, "a/b"), (0o277, "a")])
def test_it_is_created_with_its_parents_for_this_user_only(tmp_path: Path, umask: int, path: str) -> None:
    before = os.umask(umask)
    try:
        prepare_state_dir(tmp_path / path)
    finally:
        os.umask(before)

    assert mode(tmp_path / "a") == mode(tmp_path / path) == 0o700


@pytest.mark.parametrize("found", [0o755, 0o770, 0o777, 0o500, 0o700])
@pytest.mark.parametrize("name", ["state", "link"])
def test_the_rights_of_others_are_removed_and_files_are_kept(tmp_path: Path, name: str, found: int) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "link").symlink_to("state")
    (tmp_path / "state" / "manifest.json").write_text("{}")
    (tmp_path / "state").chmod(found)

    prepare_state_dir(tmp_path / name)

    assert mode(tmp_path / "state") == 0o700
    assert (tmp_path / "state" / "manifest.json").read_text() == "{}"


@JUDGES
def test_a_shared_directory_is_refused_and_unchanged(judge: Judge, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)

    with pytest.raises(
        StateDirectoryError, match="is shared with other users: use a directory that is not shared"
    ) as caught:
        judge(tmp_path / "tmp")

    assert mode(tmp_path / "tmp") == 0o1777
    assert caught.value.code == "state_directory_error"


@JUDGES
def test_a_file_or_a_dangling_link_is_no_state_directory(judge: Judge, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "at all")

    for path, message in (
        ("file", "is not a directory"),
        ("file/state", "cannot be used: not a directory"),
        ("link", "cannot be used: "),
    ):
        with pytest.raises(StateDirectoryError, match=message):
            judge(tmp_path / path)


def test_a_directory_that_cannot_be_written_is_refused() -> None:
    # Nobody can create a directory in /proc, not even root.
    with pytest.raises(StateDirectoryError, match="cannot be used: "):
        prepare_state_dir(Path("/proc/querykeep-state"))


@JUDGES
def test_the_directory_of_another_user_is_refused(
    judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)

    with pytest.raises(StateDirectoryError, match="belongs to another user"):
        judge(tmp_path)


def test_judging_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(mode=0o755)

    for path in (tmp_path / "there", tmp_path / "a" / "b"):
        judge_state_dir(path)

    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    assert mode(tmp_path / "there") == 0o755


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("a?b", r"not contain \? or \\"),
        ("a\\b", r"not contain \? or \\"),
        ("?", r"not contain \? or \\"),
        (os.fsdecode(b"\xff"), "be UTF-8"),
    ],
)
def test_a_path_that_the_engine_would_misread_is_a_fault(tmp_path: Path, name: str, fault: str) -> None:
    directory = tmp_path / name
    directory.mkdir()
    (directory / "runtime.yaml").write_text("{}\n")

    with pytest.raises(ConfigError, match=rf"runtime\.state_dir: its absolute path must {fault}"):
        load(directory / "runtime.yaml", {})


MAKE: dict[str, Callable[[Path], object]] = {
    "link": lambda path: path.symlink_to("elsewhere"),
    "fifo": os.mkfifo,
    "file": Path.touch,
    "directory": Path.mkdir,
}


#: The kind of each entry that the runtime makes.
RIGHT = {
    **dict.fromkeys((SNAPSHOT_DIRECTORY, TEMPORARY_DIRECTORY, SCRATCH_DIRECTORY), "directory"),
    **dict.fromkeys((SOCKET_NAME, BROKER_SOCKET, ENGINE_SOCKET), "socket"),
    **dict.fromkeys((MANIFEST_NAME, HISTORY_NAME), "file"),
    **dict.fromkeys((LOCK_NAME, SUPERVISOR_LOCK_NAME, ENGINE_LOCK_NAME, FLIGHT_LOCK_NAME), "file"),
}


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize(("name", "right"), RIGHT.items())
def test_an_entry_of_the_wrong_kind_is_refused_and_kept(tmp_path: Path, name: str, right: str, kind: str) -> None:
    MAKE[kind](tmp_path / name)

    with (
        nullcontext()
        if kind == right
        else pytest.raises(StateDirectoryError, match=rf"{name} is (a symbolic link|no \w+.*): remove it\.")
    ):
        prepare_state_dir(tmp_path)

    assert os.path.lexists(tmp_path / name)

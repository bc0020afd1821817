import logging
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from authkeys import salt
from authkeys.errors import SaltError
from authkeys.salt import SALT_BYTES, SALT_NAME


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_the_salt_is_created_once(tmp_path: Path) -> None:
    first = salt.load_or_create(tmp_path)

    assert len(first) == SALT_BYTES
    (tmp_path / "other").mkdir()
    assert salt.load_or_create(tmp_path / "other") != first
    assert salt.load_or_create(tmp_path) == salt.load(tmp_path) == first
    assert mode(tmp_path / SALT_NAME) == 0o600
    assert {path.name for path in tmp_path.iterdir()} == {SALT_NAME, "other"}


@pytest.mark.parametrize(("name", "reason"), [("file", "Not a directory"), ("absent", "No such file or directory")])
def test_loading_creates_nothing_and_a_salt_that_cannot_be_created_is_an_error(
    tmp_path: Path, name: str, reason: str
) -> None:
    (tmp_path / "file").touch()

    assert salt.load(tmp_path) is salt.load(tmp_path / name) is None
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with pytest.raises(SaltError, match=f"cannot be created in the state directory: {reason}"):
        salt.load_or_create(tmp_path / name)


@pytest.mark.parametrize("size", [0, 1, SALT_BYTES - 1, SALT_BYTES + 1, 1000])
def test_a_salt_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / SALT_NAME).write_bytes(b"x" * size)

    with pytest.raises(SaltError, match="is damaged: remove it"):
        salt.load_or_create(tmp_path)


def test_the_mode_of_a_shared_salt_is_tightened(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = salt.load_or_create(tmp_path)
    (tmp_path / SALT_NAME).chmod(0o644)

    with caplog.at_level(logging.WARNING):
        assert salt.load_or_create(tmp_path) == first

    assert mode(tmp_path / SALT_NAME) == 0o600
    assert "its mode is now 0600" in caplog.text
    assert first.hex() not in caplog.text
    caplog.clear()
    (tmp_path / SALT_NAME).chmod(0o400)  # A tighter mode is left alone.
    salt.load_or_create(tmp_path)
    assert mode(tmp_path / SALT_NAME) == 0o400
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda path: path.symlink_to(path.with_name("valid")), "cannot be opened", id="link"),
        pytest.param(lambda path: path.symlink_to("nowhere"), "cannot be opened", id="dangling link"),
        pytest.param(Path.mkdir, "is not a regular file", id="directory"),
        pytest.param(os.mkfifo, "is not a regular file", id="pipe, without hanging"),
    ],
)
def test_anything_but_a_regular_file_is_refused(tmp_path: Path, make: Callable[[Path], None], message: str) -> None:
    (tmp_path / "valid").write_bytes(b"x" * SALT_BYTES)
    make(tmp_path / SALT_NAME)

    with pytest.raises(SaltError, match=message):
        salt.load_or_create(tmp_path)


def create(directory: str, start: "multiprocessing.synchronize.Barrier", found: "multiprocessing.Queue[bytes]") -> None:
    start.wait()
    found.put(salt.load_or_create(Path(directory)))


def test_processes_that_start_together_agree(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start, found = context.Barrier(4), context.Queue()
    processes = [context.Process(target=create, args=(str(tmp_path), start, found)) for _ in range(4)]

    for process in processes:
        process.start()
    salts = {found.get(timeout=60) for _ in processes}
    for process in processes:
        process.join()

    assert salts == {salt.load(tmp_path)}
    assert [path.name for path in tmp_path.iterdir()] == [SALT_NAME]

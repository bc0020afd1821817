from pathlib import Path

import pytest

from system.scratch import ScratchDirectory
from tests.operating_system.full_disk import no_room
from tests.operating_system.programs import run


def test_it_is_private_and_removed_with_its_contents(tmp_path: Path) -> None:
    scratch = ScratchDirectory(tmp_path / "state")
    (scratch.path / "spilled").write_text("x")

    assert scratch.path.stat().st_mode & 0o777 == 0o700
    assert scratch.path.parent.stat().st_mode & 0o777 == 0o700
    scratch.close()
    scratch.close()

    assert list((tmp_path / "state" / "tmp").iterdir()) == []


def test_the_directory_of_a_killed_process_is_removed_and_that_of_another_engine_kept(tmp_path: Path) -> None:
    code = """
        import os, signal, sys
        from pathlib import Path
        from system.scratch import ScratchDirectory
        scratch = ScratchDirectory(Path(sys.argv[1]))
        (scratch.path / "spilled").write_text("x")
        os.kill(os.getpid(), signal.SIGKILL)
        """
    run(code, str(tmp_path))
    (left,) = (tmp_path / "tmp").iterdir()

    one, other = ScratchDirectory(tmp_path), ScratchDirectory(tmp_path)

    assert not left.exists()
    assert one.path.is_dir()
    one.close()
    assert other.path.is_dir()
    other.close()


def test_without_room_the_directory_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with no_room(monkeypatch):
        scratch = ScratchDirectory(tmp_path)
        assert scratch.keep()
        assert scratch.keep()
        assert not scratch.path.exists()

    assert scratch.keep()
    assert scratch.path.is_dir()
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "statements cannot spill to disk"
    ]
    other = ScratchDirectory(tmp_path)
    assert scratch.path.is_dir(), "it is locked"
    other.close()
    scratch.path.rmdir()
    assert not scratch.keep(), "somebody removed it"
    scratch.close()


def test_a_directory_that_cannot_be_made_later_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with no_room(monkeypatch):
        scratch = ScratchDirectory(tmp_path)
    (tmp_path / "tmp").rmdir()

    assert not scratch.keep()
    scratch.close()


def test_entries_with_other_names_are_kept(tmp_path: Path) -> None:
    (tmp_path / "tmp" / "directory").mkdir(parents=True)
    (tmp_path / "tmp" / "note").write_text("x")
    (tmp_path / "tmp" / ("0" * 32)).symlink_to(tmp_path / "tmp" / "directory")

    ScratchDirectory(tmp_path).close()

    assert {path.name for path in (tmp_path / "tmp").iterdir()} == {"directory", "note", "0" * 32}


def test_nothing_is_deleted_through_a_link_and_a_file_is_no_state_directory(tmp_path: Path) -> None:
    left = tmp_path / "elsewhere" / ("0" * 32)
    left.mkdir(parents=True)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "tmp").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "file").write_text("x")

    with pytest.raises(NotADirectoryError):
        ScratchDirectory(tmp_path / "state")
    with pytest.raises(OSError, match="file"):
        ScratchDirectory(tmp_path / "file")

    assert left.exists()

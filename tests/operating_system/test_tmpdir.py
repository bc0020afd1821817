"""The directory for temporary files where the system has none: RLIMIT_FSIZE makes each look like a full file system."""

import tempfile
from pathlib import Path

import pytest

from system.tmpdir import ensure_temporary_directory
from tests.operating_system.programs import printed, run

CODE = """
    import os, resource, sys, tempfile
    from pathlib import Path
    from system.tmpdir import ensure_temporary_directory
    os.environ.pop("TMPDIR", None)
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    ensure_temporary_directory(Path(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
    with tempfile.TemporaryDirectory() as directory:
        print(os.environ["TMPDIR"], directory)
    """


@pytest.mark.parametrize(
    ("state_dir", "made", "used"),
    [
        pytest.param("state", "state/tmp", "state/tmp", id="of a runtime that has run"),
        pytest.param("state", "state", "state", id="of a new runtime"),
        pytest.param("volume/state", "volume", "volume", id="above a state directory that is missing"),
    ],
)
def test_the_state_directory_is_used_if_no_other_can_be_written(
    tmp_path: Path, state_dir: str, made: str, used: str
) -> None:
    (tmp_path / made).mkdir(parents=True)

    variable, directory = printed(CODE, str(tmp_path / state_dir)).split()

    assert variable == str(tmp_path / used)
    assert Path(directory).parent == tmp_path / used
    assert not Path(directory).exists()


def test_without_any_directory_there_is_one_sentence() -> None:
    finished = run(CODE, "/proc/state")

    assert finished.returncode == 1
    last = finished.stderr.strip().splitlines()[-1]
    assert last.endswith("No temporary directory is writable, not even /proc: set TMPDIR to a writable directory.")


def test_the_directory_of_the_system_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    ensure_temporary_directory(Path("/proc/state"))

    assert tempfile.gettempdir() == str(tmp_path)

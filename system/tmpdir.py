"""The directory for temporary files if the system has no writable one, as in a read-only container."""

import os
import tempfile
from pathlib import Path

from system.errors import StateDirectoryError


def ensure_temporary_directory(state_dir: Path) -> None:
    """
    Make this process and its children use the state directory if there is no writable temporary directory.

    While the state directory does not exist, its nearest existing parent is used.

    Raises:
        StateDirectoryError: That directory is not writable either.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        candidates = (state_dir / "tmp", state_dir, *state_dir.parents)
        directory = str(next(one for one in candidates if one.is_dir()))
        try:
            with tempfile.TemporaryFile(dir=directory):
                pass
        except OSError:
            raise StateDirectoryError(
                f"No temporary directory is writable, not even {directory}: set TMPDIR to a writable directory."
            ) from error
        tempfile.tempdir = os.environ["TMPDIR"] = directory

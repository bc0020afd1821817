"""Files of certificates and keys in PEM."""

from pathlib import Path

from system.files import UnreadableFileError, read_regular_file

MAX_PEM_BYTES = 1024 * 1024


def pem_problem(file: Path) -> str:
    """Return why *file* cannot be read, in a few words; an empty text if it can."""
    try:
        content = read_regular_file(file, MAX_PEM_BYTES)
    except UnreadableFileError as exc:
        return f"cannot be read: {exc}"
    return "" if b"-----BEGIN " in content.data else "is not a PEM file"

"""The history of the prompt, in a file that only its owner can read."""

import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from prompt_toolkit.history import History

from runtimeclient.errors import OutputError
from runtimeclient.files import replace_file, xdg_directory

# Above this size, the next start drops the older half.
_MAX_FILE_BYTES = 1 << 20
# Input that mentions keys is never stored, whether or not it contains one.
_ABOUT_KEYS = re.compile(r"api[-_ ]?key|\bbearer\b", re.IGNORECASE)


def history_path(environ: Mapping[str, str]) -> Path:
    """Return the path of the history. Raises UsageError if the home directory is unknown."""
    return xdg_directory(environ, "XDG_STATE_HOME", "~/.local/state") / "history"


class FileHistory(History):
    """
    A history in a file of mode 0600: one JSON string per line, oldest first. Several prompts may append to it.

    The file and its directory are created. A text that contains one of the *secrets* is not stored.

    Raises:
        OutputError: The file cannot be used.
    """

    def __init__(self, path: Path, secrets: Iterable[str | None]) -> None:
        super().__init__()
        self._path = path
        self._secrets = tuple(filter(None, secrets))
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # O_NOFOLLOW: a symbolic link could lead to a file that others can read.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
            with open(descriptor, "rb") as file:  # noqa: PTH123 (an open descriptor)
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                    raise OutputError(f"The history {path} is not kept: it is not a regular file of yours.")
                os.fchmod(descriptor, 0o600)
                # Read the end of a huge file only; its first line may then be incomplete.
                file.seek(max(found.st_size - 2 * _MAX_FILE_BYTES, 0))
                lines = file.read().splitlines()
            if found.st_size > _MAX_FILE_BYTES:
                lines = lines[len(lines) // 2 :]
                replace_file(path, b"".join(line + b"\n" for line in lines))
        except OSError as exc:
            raise OutputError(f"The history {path} is not kept: {exc.strerror}.") from exc
        self._found = [text for line in lines if (text := _text_of(line)) is not None]

    def load_history_strings(self) -> Iterable[str]:
        """Return the entries that the file had at the start, newest first."""
        return reversed(self._found)

    def store_string(self, string: str) -> None:
        """Append a text, unless it may contain a key. A failed write is ignored."""
        if _ABOUT_KEYS.search(string) or any(secret in string for secret in self._secrets):
            return
        with suppress(OSError):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
            with open(descriptor, "ab", buffering=0) as file:  # noqa: PTH123 (an open descriptor)
                # ASCII, so lone surrogates can be stored; in one write, so lines of two prompts do not mix.
                file.write(json.dumps(string).encode() + b"\n")


def _text_of(line: bytes) -> str | None:
    try:
        text = json.loads(line)
    except ValueError:
        return None
    return text if isinstance(text, str) else None

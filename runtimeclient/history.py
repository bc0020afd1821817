"""What was typed at the prompt, kept for the next time in a file that only its owner can read."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from prompt_toolkit.history import History

from runtimeclient.errors import OutputError
from runtimeclient.paths import path_of
from runtimeclient.private_files import replace_file

# Above this the older half is dropped at the next start.
_LONGEST_FILE_BYTES = 1 << 20
# What is about keys is not kept, whether a key stands in it or not: nobody misses these lines in a history.
_ABOUT_KEYS = re.compile(r"api[-_ ]?key|\bbearer\b", re.IGNORECASE)


def history_path(environ: Mapping[str, str]) -> Path:
    """
    Give the place of the history: `querykeep/history` in the directory for state.

    https://specifications.freedesktop.org/basedir-spec: a relative XDG_STATE_HOME does not count.

    Raises UsageError when nobody knows the home directory.
    """
    home = environ.get("XDG_STATE_HOME", "")
    state = Path(home) if Path(home).is_absolute() else path_of("~/.local/state")
    return state / "querykeep" / "history"


class FileHistory(History):
    """
    A history in a file of mode 0600 with one JSON string a line, oldest first; several prompts may append to it.

    Args:
        path: The file; it and its directory are made.
        holds_secret: Tells whether a text holds what must not be kept.

    Raises:
        OutputError: The file cannot be used: by its name for people, with the reason.
    """

    def __init__(self, path: Path, holds_secret: Callable[[str], bool]) -> None:
        super().__init__()
        self._path = path
        self._holds_secret = holds_secret
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Not by way of a link: it could lead to a file that others read.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
            with open(descriptor, "rb") as file:  # noqa: PTH123 (an open descriptor)
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                    raise OutputError(f"The history {path} is not kept: it is not a file of yours.")
                os.fchmod(descriptor, 0o600)
                # A huge file is not read whole; the first line of what is left may be a part of one.
                file.seek(max(found.st_size - 2 * _LONGEST_FILE_BYTES, 0))
                lines = file.read().splitlines()
            if found.st_size > _LONGEST_FILE_BYTES:
                lines = lines[len(lines) // 2 :]
                replace_file(path, b"".join(line + b"\n" for line in lines))
        except OSError as exc:
            raise OutputError(f"The history {path} is not kept: {exc.strerror}.") from exc
        self._found = [text for line in lines if (text := _text_of(line)) is not None]

    def load_history_strings(self) -> Iterable[str]:
        """Give what was there at the start, newest first."""
        return reversed(self._found)

    def store_string(self, string: str) -> None:
        """Append a text, unless it may hold a key. What cannot be written is forgotten at the end."""
        if self._holds_secret(string) or _ABOUT_KEYS.search(string):
            return
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return
        with open(descriptor, "ab", buffering=0) as file:  # noqa: PTH123 (an open descriptor)
            # ASCII, so that a lone surrogate does not stop it. In one write: lines of two prompts do not mix.
            file.write(json.dumps(string).encode() + b"\n")


def _text_of(line: bytes) -> str | None:
    try:
        text = json.loads(line)
    except ValueError:
        return None
    return text if isinstance(text, str) else None

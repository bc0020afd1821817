"""Paths as people write them."""

from __future__ import annotations

from pathlib import Path

from runtimeclient.errors import UsageError


def path_of(text: str) -> Path:
    """
    Read a path; `~` at its start is a home directory.

    Raises:
        UsageError: Nobody knows that home (a user without an entry in the system's list and without HOME), or the text
            holds a NUL, which no path can.
    """
    if "\0" in text:
        raise UsageError("A path cannot hold a NUL character.")
    try:
        return Path(text).expanduser()
    except RuntimeError as exc:
        raise UsageError(f"{text} names no directory: its home is not known.") from exc

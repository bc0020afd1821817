"""The lines that `doctor` prints, each with a finding and a remedy, and the runner for checks that may fail or hang."""

import threading
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, get_args

from msgspec import Struct

from system.errors import StateDirectoryError

Level = Literal["ok", "note", "warning", "error"]
LEVELS: tuple[Level, ...] = get_args(Level)

#: Seconds for each check except source checks.
LIMIT_S = 30.0


class Finding(Struct, frozen=True):
    """
    One finding about one thing.

    Args:
        level: `ok`, `note` (no action needed), `warning` (works now, but may stop working or is not safe) or `error`.
        about: The subject of the check, such as `disk` or `dataset orders`.
        text: One sentence.
        remedy: What to do, as one sentence that names the setting or the command. Empty for `ok` and most notes.
    """

    level: Level
    about: str
    text: str
    remedy: str = ""


def run(about: str, check: Callable[[], Iterable[Finding]], limit_s: float = LIMIT_S) -> list[Finding]:
    """
    Return the findings of *check*, or a finding that says that it failed or took longer than *limit_s* seconds.

    A check that hangs is left running in a thread that does not prevent this process from exiting.
    """
    found: list[Finding] = []

    def collect() -> None:
        try:
            for finding in check():
                found.append(finding)  # noqa: PERF402 (what was found before a failure counts)
        except Exception as exc:  # noqa: BLE001 (libraries raise anything)
            found.append(Finding("error", about, *_described(exc)))

    thread = threading.Thread(target=collect, name=f"doctor-{about}", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        late = f"This check did not end within {limit_s:g} s."
        return [*found, Finding("error", about, late, "Check for a file system or a service that does not respond.")]
    return found


def _described(failure: Exception) -> tuple[str, str]:
    """Return a sentence about *failure* and a remedy. Only system messages are shown, because others may quote data."""
    if isinstance(failure, OSError) and failure.strerror:
        where = f" {failure.filename}" if isinstance(failure.filename, str) else ""
        return f"This check could not run:{where} {failure.strerror.lower()}.", "Check this user's permissions."
    if isinstance(failure, StateDirectoryError):
        return str(failure), "Set TMPDIR to a writable directory."
    last = traceback.extract_tb(failure.__traceback__)[-1:]
    place = "".join(f" in {Path(frame.filename).name}, line {frame.lineno}" for frame in last)
    return f"This check failed: {type(failure).__name__}{place}.", "Please report it."


def size(count: float) -> str:
    """Format *count* bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def duration(seconds: float) -> str:
    """Format *seconds* for people, in the largest whole unit."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:,.0f} s"

"""Handles paths that users type, temporary files, and files that only their owner can read, such as keys."""

import os
import shutil
import signal
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from runtimeclient.errors import OutputError, UsageError

# Signals that end the process without an exception, such as that of timeout(1) and that of a closed terminal.
_ENDS = (signal.SIGTERM, signal.SIGHUP)
_temporary: list[Path] = []


def parse_path(text: str) -> Path:
    """
    Parse a path and expand a leading `~`.

    Raises:
        UsageError: The home directory is unknown (no such user, or no HOME), or the text contains a NUL.
    """
    if "\0" in text:
        raise UsageError("A path cannot contain a NUL character.")
    try:
        return Path(text).expanduser()
    except RuntimeError as exc:
        raise UsageError(f"{text} cannot be expanded: the home directory is not known.") from exc


def xdg_directory(environ: Mapping[str, str], variable: str, default: str) -> Path:
    """
    Return our directory within the directory named by *variable*, else within *default*.

    https://specifications.freedesktop.org/basedir-spec: a relative path is ignored.

    Raises UsageError if the home directory is unknown.
    """
    base = environ.get(variable, "")
    return (Path(base) if base.startswith("/") else parse_path(default)) / "querykeep"


@contextmanager
def removing(path: Path) -> Iterator[None]:
    """Remove the file or directory *path* at the end of the block, and if a signal ends the process in the block."""
    # Only the main thread can handle signals. A signal that is ignored (nohup) or handled does not end the process.
    is_main = threading.current_thread() is threading.main_thread()
    _temporary.append(path)
    for number in _ENDS:
        if is_main and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)
    try:
        yield
    finally:
        _remove(path)
        _temporary.remove(path)
        for number in _ENDS:
            if is_main and not _temporary and signal.getsignal(number) is _end:
                signal.signal(number, signal.SIG_DFL)


def _end(number: int, _frame: FrameType | None) -> None:
    """Remove the temporary files, and end as if there were no handler."""
    for path in _temporary:
        _remove(path)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):  # It has replaced another file, or cannot be removed.
            path.unlink()


@contextmanager
def output_errors(name: object) -> Iterator[None]:
    """Convert an OSError in the block to OutputError, except BrokenPipeError (the reader has closed the pipe)."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as exc:
        raise OutputError(f"{name} cannot be written: {exc.strerror}.") from exc


def replace_file(file: Path, content: bytes, check: Callable[[Path], object] | None = None) -> None:
    """
    Replace *file* atomically by a file of mode 0600. Its directory is created.

    Symbolic links are not followed because they could redirect the key to any location. With *check*, the file must
    exist and keeps its mode and group. It is not replaced if *check* raises an error about the new file.

    Raises:
        OutputError: The file cannot be written, is a symbolic link, or it or its directory belongs to another user.
    """
    check_replaceable(file)
    part = file.with_name(f".{file.name}.{os.urandom(4).hex()}.part")
    try:
        with output_errors(file):
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as stream:  # noqa: PTH123 (an open descriptor)
                stream.write(content)
                stream.flush()
                if check is not None:
                    found = file.stat()
                    if os.fstat(descriptor).st_gid != found.st_gid:
                        os.fchown(descriptor, -1, found.st_gid)
                    os.fchmod(descriptor, stat.S_IMODE(found.st_mode))
                os.fsync(descriptor)
        if check is not None:
            check(part)
        with output_errors(file):
            part.replace(file)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def check_replaceable(file: Path) -> None:
    """Create the directory of *file*. If the file must not be replaced, raise the error of `replace_file`."""
    with output_errors(file):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if file.parent.stat().st_uid != os.geteuid():
            raise OutputError(f"{file} was not written: its directory belongs to another user.")
        try:
            found = file.lstat()
        except FileNotFoundError:
            return
    if stat.S_ISLNK(found.st_mode):
        raise OutputError(f"{file} was not written: it is a symbolic link.")
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise OutputError(f"{file} was not written: it is not a regular file that you own.")

"""The output of a command: a stream, or a file that appears only when it is complete."""

import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import IO, NamedTuple, Protocol

from runtimeclient.files import output_errors, removing

_BLOCK_CHARACTERS = 1 << 16


class TextStream(Protocol):
    """A text file, or Django's wrapper of a command's streams."""

    def write(self, text: str, /) -> object:
        """Write the text."""

    def flush(self) -> object:
        """Flush the buffer."""


class Output:
    """
    Buffers small writes.

    Both methods raise OutputError if the stream fails, except for BrokenPipeError, which propagates, because a reader
    that closes the pipe early is not an error.

    Attributes:
        before: Called before each write to the stream.
        waited_s: Seconds spent waiting for the stream so far. A pager reads only as fast as its user.
    """

    def __init__(self, stream: TextStream, before: Callable[[], object] = lambda: None) -> None:
        self.before = before
        self.waited_s = 0.0
        self._stream = stream
        self._texts: list[str] = []
        self._characters = 0

    def write(self, text: str) -> None:
        """Write *text*, which includes its line breaks."""
        self._texts.append(text)
        self._characters += len(text)
        if self._characters >= _BLOCK_CHARACTERS:
            self._write_block()

    def flush(self) -> None:
        """Write everything to the stream and flush it."""
        self._write_block()
        with self._writing():
            self._stream.flush()

    def _write_block(self) -> None:
        block = "".join(self._texts)
        self._texts.clear()
        self._characters = 0
        if block:
            self.before()
            with self._writing():
                self._stream.write(block)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        start = time.monotonic()
        try:
            with output_errors("The output"):
                yield
        finally:
            self.waited_s += time.monotonic() - start


class OutputFile(NamedTuple):
    """A file being written: as bytes to `stream`, or as text in UTF-8 to `output`."""

    path: Path
    stream: IO[bytes]
    output: Output


@contextmanager
def output_file(path: Path) -> Iterator[OutputFile]:
    """
    Open a file that replaces *path* when the block succeeds. If the block fails, the old file stays.

    The new file is written next to *path* under a temporary name. Devices and pipes are written directly. So is the
    file of an open descriptor (`/dev/stdout`, `/dev/fd/3`), because replacing it would lose the other output.

    Raises:
        OutputError: The file cannot be written.
    """
    with output_errors(path):
        own = _own_descriptor(path)
        is_special = own is not None or _is_special(path)
        # Replace the target of a symbolic link, not the link. Links in /dev/fd to pipes have no target.
        target = path if is_special else path.resolve()
        part = target if is_special else target.with_name(f".{target.name[:50]}.{os.urandom(4).hex()}.part")
        flags = os.O_WRONLY if is_special else os.O_WRONLY | os.O_CREAT | os.O_EXCL
        mode = stat.S_IMODE(target.stat().st_mode) if target.is_file() else 0o666
        descriptor = os.open(part, flags | os.O_CLOEXEC, mode) if own is None else os.dup(own)
        stream = open(descriptor, "wb")  # noqa: PTH123, SIM115
    text = TextIOWrapper(stream, encoding="utf-8", errors="backslashreplace", newline="")
    output = Output(text)
    with nullcontext() if is_special else removing(part):
        try:
            with output_errors(path):
                yield OutputFile(path, stream, output)
                output.flush()
                if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                    os.fsync(stream.fileno())
                if not is_special:
                    part.replace(target)
        finally:
            with suppress(OSError, ValueError):
                text.close()


def _own_descriptor(path: Path) -> int | None:
    """Return the descriptor that *path* names (`/dev/fd/3`), or whose stream is redirected to *path*."""
    if path.name.isdecimal() and os.path.realpath(path.parent) == os.path.realpath("/proc/self/fd"):
        return int(path.name)
    for descriptor in (1, 2):
        with suppress(OSError):  # The file does not exist yet, or the stream is closed.
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
    return None


def _is_special(path: Path) -> bool:
    """Return whether *path* is a device, a pipe or any other non-regular file."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False

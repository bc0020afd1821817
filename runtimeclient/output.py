"""Where the answers of a command go: a stream, or a file that is there only when it is complete."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Protocol

from runtimeclient.errors import OutputError

_BLOCK_CHARACTERS = 1 << 16


class TextStream(Protocol):
    """What Django gives a command to write to, and any text file."""

    def write(self, text: str, /) -> object:
        """Take the text."""

    def flush(self) -> object:
        """Pass on what was taken."""


class Output:
    """
    Collects small texts into blocks.

    Both methods raise OutputError when the stream does not take the text, and let BrokenPipeError through: a reader
    that has seen enough is no failure.

    Attributes:
        before: Called each time before something is passed on.
    """

    def __init__(self, stream: TextStream, before: Callable[[], object] = lambda: None) -> None:
        self.before = before
        self._stream = stream
        self._texts: list[str] = []
        self._characters = 0

    def write(self, text: str) -> None:
        """Take *text*, which brings its own line breaks."""
        self._texts.append(text)
        self._characters += len(text)
        if self._characters >= _BLOCK_CHARACTERS:
            self._pass_on(is_flush=False)

    def flush(self) -> None:
        """Pass on all there is."""
        self._pass_on(is_flush=True)

    def _pass_on(self, *, is_flush: bool) -> None:
        block = "".join(self._texts)
        self._texts.clear()
        self._characters = 0
        if block:
            self.before()
        try:
            if block:
                self._stream.write(block)
            if is_flush:
                self._stream.flush()
        except BrokenPipeError:
            raise
        except OSError as exc:
            raise OutputError(f"The output cannot be written: {exc.strerror}.") from exc


class OutputFile:
    """A file being written: its bytes, or its text in UTF-8."""

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self.path = path
        self.stream = stream
        self._text = TextIOWrapper(stream, encoding="utf-8", errors="backslashreplace", newline="")
        self.output = Output(self._text)

    @property
    def is_terminal(self) -> bool:
        """What was named is a terminal."""
        return self.stream.isatty()

    def finish(self) -> None:
        """Pass all on to the system. Raises OSError and OutputError."""
        self.output.flush()
        if stat.S_ISREG(os.fstat(self.stream.fileno()).st_mode):
            os.fsync(self.stream.fileno())

    def close(self) -> None:
        """Let the file go, whatever state it is in."""
        with suppress(OSError, ValueError):
            self._text.close()


@contextmanager
def output_file(path: Path) -> Iterator[OutputFile]:
    """
    Open a file that gets its name when the block ends well; when it does not, what was there before stays.

    It is written under another name beside it. A device or a pipe is written as it is, and so is a file that takes
    standard output or error: `/dev/stdout` leads to it, and what else goes there would be lost with the old one.

    Raises:
        OutputError: The file cannot be written.
    """
    try:
        # A link goes on leading to the file that it names.
        target = path.resolve()
        own = _own_stream(target)
        is_special = own is not None or (target.exists() and not target.is_file())
        part = target if is_special else target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}.part")
        flags = os.O_WRONLY if is_special else os.O_WRONLY | os.O_CREAT | os.O_EXCL
        mode = stat.S_IMODE(target.stat().st_mode) if target.is_file() else 0o666
        descriptor = os.open(part, flags | os.O_CLOEXEC, mode) if own is None else os.dup(own)
        file = OutputFile(path, open(descriptor, "wb"))  # noqa: PTH123, SIM115
    except OSError as exc:
        raise OutputError(f"{path} cannot be written: {exc.strerror}.") from exc
    try:
        yield file
        file.finish()
        if not is_special:
            part.replace(target)
    except BaseException as exc:
        if not is_special:
            with suppress(OSError):
                part.unlink()
        if isinstance(exc, OSError) and not isinstance(exc, BrokenPipeError):
            raise OutputError(f"{path} cannot be written: {exc.strerror}.") from exc
        raise
    finally:
        file.close()


def _own_stream(target: Path) -> int | None:
    """Give the descriptor of standard output or error that leads to *target*, if one does."""
    for descriptor in (1, 2):
        with suppress(OSError):  # There is no such file yet, or the stream is closed.
            if os.path.samestat(os.fstat(descriptor), target.stat()):
                return descriptor
    return None

"""A pager (`less`, or PAGER) for results that do not fit on the screen."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import IO

from runtimeclient.output.terminal_text import width
from runtimeclient.output.writer import TextStream

# Quit if it fits on one screen, show colours, chop long lines, do not clear the screen.
_LESS_OPTIONS = "FRSX"


def pager_command(environ: Mapping[str, str]) -> list[str] | None:
    """Return the pager's command line; None if there is no pager, or PAGER is empty or `cat`."""
    try:
        words = shlex.split(environ.get("PAGER", "less"))
    except ValueError:
        return None
    if not words or words == ["cat"]:
        return None
    program = shutil.which(words[0], path=environ.get("PATH"))
    return [program, *words[1:]] if program else None


def wait_for_program(program: subprocess.Popen[str]) -> int:
    """Wait for a program on this terminal; return its exit status. Ctrl-C reaches both and is left to the program."""
    while True:
        try:
            return program.wait()
        except KeyboardInterrupt:
            continue


class PagedStream:
    """
    A text stream that buffers text while it fits on the screen, and starts the pager when it does not.

    Closing it writes the buffer to the terminal, or waits until the user quits the pager. Writing raises
    BrokenPipeError once the user has quit the pager.

    Args:
        stream: The terminal.
        columns: Its width.
        lines: Its height.
        command: The pager and its arguments.
        environ: The environment of the pager.
    """

    def __init__(
        self, stream: TextStream, columns: int, lines: int, command: list[str], environ: Mapping[str, str]
    ) -> None:
        self._stream = stream
        self._columns = max(columns, 1)
        # Leave room for the prompt below the result.
        self._free_lines = lines - 2
        self._command = command
        self._environ = environ
        self._held: list[str] = []
        self._pager: subprocess.Popen[str] | None = None
        # The pager cannot be started: write to the terminal.
        self._is_unusable = False

    def write(self, text: str, /) -> None:
        """Write *text*, which includes its line breaks."""
        if self._pager is not None:
            self._pipe.write(text)
            return
        if self._is_unusable:
            self._stream.write(text)
            return
        self._held.append(text)
        self._free_lines -= sum(max(1, -(-width(line) // self._columns)) for line in text.splitlines())
        if self._free_lines < 0:
            self._start()

    def flush(self) -> None:
        """Flush the pager's input, if it is running."""
        if self._pager is not None:
            self._pipe.flush()
        elif self._is_unusable:
            self._stream.flush()

    def close(self) -> None:
        """Show the buffer, or wait until the user quits the pager."""
        if self._pager is None:
            self._stream.write("".join(self._held))
            self._stream.flush()
            return
        with suppress(BrokenPipeError):
            self._pipe.close()
        wait_for_program(self._pager)

    @property
    def _pipe(self) -> IO[str]:
        assert self._pager is not None  # noqa: S101 (for the type checker)
        assert self._pager.stdin is not None  # noqa: S101
        return self._pager.stdin

    def _start(self) -> None:
        environ = {"LESS": _LESS_OPTIONS, "LESSHISTFILE": "-", "LESSCHARSET": "utf-8", **self._environ}
        held = "".join(self._held)
        self._held.clear()
        try:
            self._pager = subprocess.Popen(  # noqa: S603 (the user's own PAGER)
                self._command,
                stdin=subprocess.PIPE,
                env=environ,
                text=True,
                encoding="utf-8",
                errors="backslashreplace",
                # Python ignores SIGPIPE; a program behind the pager should not.
                restore_signals=True,
            )
        except OSError:  # Not an executable for this machine, or a script without an interpreter.
            self._is_unusable = True
            self._stream.write(held)
            return
        self._pipe.write(held)

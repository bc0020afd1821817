"""A pager (`less`, or PAGER) for results that do not fit on the screen."""

import shlex
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress

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
        # The pager, or the terminal if the pager cannot be started; None while the text fits on the screen.
        self._target: TextStream | None = None

    def write(self, text: str, /) -> None:
        """Write *text*, which includes its line breaks."""
        if self._target is not None:
            self._target.write(text)
            return
        self._held.append(text)
        self._free_lines -= sum(max(1, -(-width(line) // self._columns)) for line in text.splitlines())
        if self._free_lines < 0:
            self._target = self._start()
            self._target.write("".join(self._held))
            self._held.clear()

    def flush(self) -> None:
        """Flush the pager's input, if it is running."""
        if self._target is not None:
            self._target.flush()

    def close(self) -> None:
        """Show the buffer, or wait until the user quits the pager."""
        if self._pager is None:
            self._stream.write("".join(self._held))
            self._stream.flush()
            return
        assert self._pager.stdin is not None  # noqa: S101 (for the type checker)
        with suppress(BrokenPipeError):
            self._pager.stdin.close()
        wait_for_program(self._pager)

    def _start(self) -> TextStream:
        try:
            self._pager = subprocess.Popen(  # noqa: S603 (the user's own PAGER)
                self._command,
                stdin=subprocess.PIPE,
                env={"LESS": _LESS_OPTIONS, "LESSHISTFILE": "-", "LESSCHARSET": "utf-8", **self._environ},
                text=True,
                encoding="utf-8",
                errors="backslashreplace",
                # Python ignores SIGPIPE; a program behind the pager should not.
                restore_signals=True,
            )
        except OSError:  # Not an executable for this machine, or a script without an interpreter.
            return self._stream
        assert self._pager.stdin is not None  # noqa: S101 (for the type checker)
        return self._pager.stdin

"""Runs the user's programs on this terminal: the pager and the editor."""

import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from runtimeclient.output.text import width
from runtimeclient.output.writer import TextStream

#: The exit statuses with which a shell reports a program that it cannot run or find.
NOT_STARTED = (126, 127)


def start_program(command: str, *arguments: str, environ: Mapping[str, str], **options: Any) -> "subprocess.Popen[str]":
    """Start the shell command *command*, followed by *arguments*."""
    if arguments:
        command += ' "$@"'
    return subprocess.Popen(  # noqa: S603 (the user's own program)
        # The shell must survive Ctrl-C; otherwise it would leave the program behind on this terminal.
        ["/bin/sh", "-c", f"trap : INT; {command}", "sh", *arguments],
        env=dict(environ),
        text=True,
        encoding="utf-8",
        errors="backslashreplace",
        # Python ignores SIGPIPE, but these programs should not.
        restore_signals=True,
        **options,
    )


def wait_for_program(program: "subprocess.Popen[str]") -> int:
    """Wait for a program on this terminal, and return its exit status. Only the program reacts to Ctrl-C."""
    while True:
        try:
            return program.wait()
        except KeyboardInterrupt:
            continue


# Quit if the text fits on one screen, show colours, chop long lines, and do not clear the screen.
_LESS_OPTIONS = "FRSX"
# A pipe accepts less than this before its reader has to read.
_MAX_HELD_CHARACTERS = 1 << 20


def pager_command(environ: Mapping[str, str]) -> str | None:
    """Return the pager's shell command; None if there is no pager, or PAGER is empty or `cat`."""
    command = environ.get("PAGER")
    if command is None:
        return shutil.which("less", path=environ.get("PATH"))
    return None if command.strip() in {"", "cat"} else command


class PagedStream:
    """
    A text stream that buffers text while it fits on the screen, and starts the pager when it does not.

    Closing it writes the buffer to the terminal, or waits until the user quits the pager. Writing raises
    BrokenPipeError once the user has quit the pager. If the shell cannot start the pager, the terminal shows the text.

    Args:
        size: The columns and lines of the terminal.
        warn: Called with a sentence if the pager fails.
    """

    def __init__(
        self,
        stream: TextStream,
        size: tuple[int, int],
        command: str,
        environ: Mapping[str, str],
        warn: Callable[[str], object],
    ) -> None:
        self._stream = stream
        columns, lines = size
        self._columns = max(columns, 1)
        # Leave room for the prompt below the result.
        self._free_lines = lines - 2
        self._command = command
        self._environ = environ
        self._warn = warn
        #: The text so far; None once it is too long to be shown without the pager.
        self._held: list[str] | None = []
        self._held_characters = 0
        self._pager: subprocess.Popen[str] | None = None
        # The pager, or the terminal if there is none; None while the text fits on the screen.
        self._target: TextStream | None = None

    def write(self, text: str, /) -> None:
        """Write *text*, which includes its line breaks."""
        if self._pager is None and self._target is not None:
            self._target.write(text)
            return
        self._hold(text)
        if self._target is not None:
            self._pass_on(lambda target: target.write(text))
            return
        self._free_lines -= sum(max(1, -(-width(line) // self._columns)) for line in text.splitlines())
        if self._free_lines < 0:
            self._target = self._start()
            held = "".join(self._held or ())
            self._pass_on(lambda target: target.write(held))

    def flush(self) -> None:
        """Flush the pager's input, if it is running."""
        if self._target is not None:
            self._pass_on(lambda target: target.flush())

    def close(self) -> None:
        """Show the buffer, or wait until the user quits the pager."""
        if self._pager is None:
            if self._target is None:
                self._stream.write("".join(self._held or ()))
            self._stream.flush()
            return
        status = self._wait(self._pager)
        if status in NOT_STARTED and self._held is not None:
            self._show_without_pager(self._held)
            self._stream.flush()
        elif status:
            self._warn(f"The pager {self._command} failed with exit status {status}; PAGER= shows results without one.")

    def _hold(self, text: str) -> None:
        # More has been written than a pipe can buffer, so the pager has read some of the text.
        if self._target is not None and self._held_characters > _MAX_HELD_CHARACTERS:
            self._held = None
        if self._held is not None:
            self._held.append(text)
            self._held_characters += len(text)

    def _pass_on(self, call: Callable[[TextStream], object]) -> None:
        assert self._target is not None  # noqa: S101 (for the type checker)
        try:
            call(self._target)
        except BrokenPipeError:
            if self._pager is None or self._held is None or self._wait(self._pager) not in NOT_STARTED:
                raise
            self._show_without_pager(self._held)

    @staticmethod
    def _wait(pager: "subprocess.Popen[str]") -> int:
        assert pager.stdin is not None  # noqa: S101 (for the type checker)
        with suppress(BrokenPipeError):
            pager.stdin.close()
        return wait_for_program(pager)

    def _show_without_pager(self, held: list[str]) -> None:
        self._stream.write("".join(held))
        self._pager, self._target, self._held = None, self._stream, None

    def _start(self) -> TextStream:
        environ = {"LESS": _LESS_OPTIONS, "LESSHISTFILE": "-", "LESSCHARSET": "utf-8", **self._environ}
        self._pager = start_program(self._command, environ=environ, stdin=subprocess.PIPE)
        assert self._pager.stdin is not None  # noqa: S101 (for the type checker)
        return self._pager.stdin

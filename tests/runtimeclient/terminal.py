"""A command at its own pseudo-terminal: the test sends keys and reads the screen that a user would see."""

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import pexpect
import pyte
from pexpect import fdpexpect

from tests.runtimeclient.conftest import MANAGE, clean_environment

PATIENCE_S = 60.0
ENTER, TAB, CTRL_C, CTRL_D = "\r", "\t", "\x03", "\x04"

# Make it the controlling terminal, so that Ctrl-C sends a signal. What a shell starts in the background ignores it.
_TAKE_TERMINAL = (
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
)


def paste(text: str) -> str:
    """Return what a terminal sends for a bracketed paste; lines end with a carriage return."""
    return f"\x1b[200~{text.replace(chr(10), chr(13))}\x1b[201~"


class Terminal:
    """
    Starts a client command at a terminal. Use it as a context manager.

    Attributes:
        output: Everything that the command wrote.
        process: The process.
    """

    def __init__(self, *arguments: str, environ: Mapping[str, str], columns: int = 100, lines: int = 30) -> None:
        self.output = ""
        self._fd, theirs = os.openpty()
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.Stream(self._screen)
        self._set_size(columns, lines)
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *MANAGE, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            # Nothing answers queries for the cursor position.
            env=clean_environment()
            | {"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1", "PYTHONFAULTHANDLER": "1"}
            | dict(environ),
        )
        os.close(theirs)
        spawn: Any = fdpexpect.fdspawn  # pexpect has no types
        self._keys = spawn(self._fd, encoding="utf-8", codec_errors="replace", maxread=1 << 16)
        self._keys.delaybeforesend = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._fd)

    @property
    def lines(self) -> list[str]:
        """The lines of the screen, without trailing spaces."""
        return [line.rstrip() for line in self._screen.display]

    def cell(self, line: int, column: int) -> Any:
        """Return a character of the screen with its colours, as pyte represents it."""
        return self._screen.buffer[line][column]

    def send(self, keys: str) -> None:
        """Send keys."""
        self._keys.send(keys)

    def until(self, condition: Callable[[list[str]], bool], what: str) -> list[str]:
        """Wait for a condition on the screen, and return its lines."""
        end = time.monotonic() + PATIENCE_S
        while not condition(self.lines):
            if time.monotonic() >= end:
                lines, status = self.lines, self.process.poll()
                raise AssertionError(
                    "\n".join([f"waited for {what}; status {status}; the screen:", *lines, self._stack()])
                )
            self._read(timeout_s=1)
        return self.lines

    def _stack(self) -> str:
        """End the command, and return where its threads were."""
        written = len(self.output)
        self.process.send_signal(signal.SIGABRT)
        with suppress(AssertionError):
            while True:
                self._read(timeout_s=5)
        return self.output[written:]

    def begins(self, text: str) -> list[str]:
        """Wait for a line of the screen that starts with *text*."""
        return self.until(lambda lines: any(line.startswith(text) for line in lines), f"a line with {text!r}")

    def soon(self, keys: str) -> str:
        """Send keys, and return the screen a moment later; for polling only."""
        self.send(keys)
        self._read(timeout_s=0.2)
        return "\n".join(self.lines)

    def shows(self, text: str) -> list[str]:
        """Wait for a line of the screen that contains *text*."""
        return self.until(lambda lines: any(text in line for line in lines), repr(text))

    def prompts(self) -> list[str]:
        """Wait until the last non-empty line is an empty prompt."""
        return self.until(lambda lines: [line for line in lines if line][-1:] == ["sql>"], "the prompt")

    def resize(self, columns: int, lines: int) -> None:
        """Resize the window; the command gets a signal."""
        self._screen.resize(lines, columns)
        self._set_size(columns, lines)

    def leaves(self) -> int:
        """Wait for the end of the command, and return its exit status."""
        end = time.monotonic() + PATIENCE_S
        while (status := self.process.poll()) is None:
            assert time.monotonic() < end, "\n".join(["waited for its end; the screen:", *self.lines])
            try:
                self.output += self._keys.read_nonblocking(1 << 16, timeout=1)
            except (pexpect.TIMEOUT, pexpect.EOF):
                continue
        return status

    def _read(self, timeout_s: float) -> None:
        try:
            text = self._keys.read_nonblocking(1 << 16, timeout=timeout_s)
        except pexpect.TIMEOUT:
            return
        except pexpect.EOF as exc:
            raise AssertionError("\n".join(["the command has ended; the screen:", *self.lines])) from exc
        self.output += text
        self._stream.feed(text)

    def _set_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

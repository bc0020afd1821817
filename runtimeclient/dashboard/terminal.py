"""A terminal that shows one full screen and reads keys, and is restored whatever happens."""

import os
import select
import signal
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TextIO

from runtimeclient.output.writer import TextStream

_ENTER = "\x1b[?1049h\x1b[?25l"  # the alternate screen, without a cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _REST = "\x1b[H", "\x1b[K", "\x1b[J"

UP, DOWN = "up", "down"
_KEYS = {"\x1b[A": UP, "\x1bOA": UP, "k": UP, "\x1b[B": DOWN, "\x1bOB": DOWN, "j": DOWN}

#: Seconds until an escape is taken for a key of its own.
_ESCAPE_S = 0.05

#: Signals that end the program.
_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class FullScreen:
    """The terminal between *keys* (standard input) and *screen* (standard output), within `shown`."""

    def __init__(self, keys: TextIO, screen: TextStream) -> None:
        self._keys = keys.fileno()
        self._screen = screen
        self._modes = termios.tcgetattr(self._keys)
        self.was_stopped = False  # since this was last set: the screen must be drawn again

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Take the terminal for the block. It is restored at its end, and when a signal ends or stops the program."""
        former = {number: signal.getsignal(number) for number in (*_ENDS, signal.SIGTSTP)}
        for number in _ENDS:
            signal.signal(number, self._end)
        signal.signal(signal.SIGTSTP, self._stop)
        try:
            self._enter()
            yield
        finally:
            self._leave()
            for number, handler in former.items():
                signal.signal(number, handler)

    def draw(self, text: str) -> None:
        """Show *text* instead of what is shown. Its lines must not be wider than the terminal."""
        lines = text.split("\n")
        self._screen.write(_HOME + "\r\n".join(f"{line}{_END_OF_LINE}" for line in lines) + _REST)
        self._screen.flush()

    def key(self, timeout_s: float) -> str | None:
        """Wait for a key, at most *timeout_s* seconds, and return it. Raises EOFError when the terminal is gone."""
        if not select.select([self._keys], [], [], timeout_s)[0]:
            return None
        key = self._read()
        while key == "\x1b" or (key.startswith(("\x1b[", "\x1bO")) and len(key) < 3):
            if not select.select([self._keys], [], [], _ESCAPE_S)[0]:
                break
            key += self._read()
        return _KEYS.get(key, key)

    def _read(self) -> str:
        data = os.read(self._keys, 1)
        if not data:
            raise EOFError
        return data.decode("latin-1")

    def _enter(self) -> None:
        tty.setcbreak(self._keys)
        self._screen.write(_ENTER)
        self._screen.flush()

    def _leave(self) -> None:
        try:
            self._screen.write(_LEAVE)
            self._screen.flush()
            termios.tcsetattr(self._keys, termios.TCSADRAIN, self._modes)
        except (OSError, termios.error):
            pass  # The terminal is gone.

    def _end(self, number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        self._leave()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        # Here it goes on in the foreground.
        signal.signal(signal.SIGTSTP, self._stop)
        self._enter()
        self.was_stopped = True

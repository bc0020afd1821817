"""The live screen, which draws a full terminal screen and reacts to keys."""

import os
import select
import signal
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import TextIO

from runtimeclient.client import RuntimeClient
from runtimeclient.dashboard.rendering import HELP, View, render
from runtimeclient.dashboard.snapshot import Poller, take
from runtimeclient.output.terminal import Console
from runtimeclient.output.writer import TextStream

_ENTER = "\x1b[?1049h\x1b[?25l"  # the alternate screen, without a cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _REST = "\x1b[H", "\x1b[K", "\x1b[J"

UP, DOWN = "up", "down"
_KEYS = {"\x1b[A": UP, "\x1bOA": UP, "k": UP, "\x1b[B": DOWN, "\x1bOB": DOWN, "j": DOWN}

#: Seconds until an escape counts as a separate key.
_ESCAPE_S = 0.05

#: Signals that end the program.
_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class FullScreen:
    """The terminal between *keys* (standard input) and *screen* (standard output), within `shown`."""

    def __init__(self, keys: TextIO, screen: TextStream) -> None:
        self._keys = keys.fileno()
        self._screen = screen
        self._modes = termios.tcgetattr(self._keys)
        self._is_to_stop = False  # whether Ctrl-Z has requested a stop
        # whether the program was stopped since this was last reset; the screen must then be redrawn
        self.was_stopped = False

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Take over the terminal for the block. Restore it at the end, and when a signal ends or stops the program."""
        former = {number: signal.getsignal(number) for number in (*_ENDS, signal.SIGTSTP)}
        for number in _ENDS:
            signal.signal(number, self._end)
        signal.signal(signal.SIGTSTP, self._note_stop)
        try:
            self._enter()
            yield
        finally:
            self._leave()
            for number, handler in former.items():
                signal.signal(number, handler)

    def draw(self, text: str) -> None:
        """Replace the screen content with *text*. Its lines must not be wider than the terminal."""
        lines = text.split("\n")
        self._screen.write(_HOME + "\r\n".join(f"{line}{_END_OF_LINE}" for line in lines) + _REST)
        self._screen.flush()

    def key(self, timeout_s: float) -> str | None:
        """Wait for a key, at most *timeout_s* seconds, and return it. Raises EOFError when the terminal is gone."""
        if self._is_to_stop:
            self._stop()
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

    def _note_stop(self, _number: int, _frame: FrameType | None) -> None:
        # Write nothing here, because the signal may have interrupted a write to the screen.
        self._is_to_stop = True

    def _stop(self) -> None:
        self._is_to_stop = False
        self._leave()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        # The program continues here in the foreground.
        signal.signal(signal.SIGTSTP, self._note_stop)
        self._enter()
        self.was_stopped = True


#: Seconds between checks for a new snapshot and for the terminal size.
_LOOK_S = 0.1


@dataclass
class Dialogue:
    """The state reached with the keys: the `chosen` statement, the statement it `asks` about cancelling, or the end."""

    chosen: str = ""
    asks: str = ""
    notice: str = ""
    is_over: bool = False

    def follow(self, ids: list[str]) -> None:
        """Continue with the statements *ids*."""
        if self.chosen not in ids:
            self.chosen = ids[0] if ids else ""
        if self.asks and self.asks not in ids:
            self.asks, self.notice = "", "The statement has ended."

    def press(self, key: str, ids: list[str]) -> str:
        """Process a key. Return the statement to cancel, or nothing."""
        asked, self.asks, self.notice = self.asks, "", ""
        if asked:
            return asked if key == "y" else ""
        if key == "q":
            self.is_over = True
        elif key == "c":
            self.asks = self.chosen
        elif key in {UP, DOWN} and self.chosen:
            self.chosen = ids[(ids.index(self.chosen) + (1 if key == DOWN else -1)) % len(ids)]
        return ""

    @property
    def message(self) -> str:
        """The line for the user."""
        return f"Cancel statement {self.asks}? y or n" if self.asks else self.notice or HELP


def one_screen(client: RuntimeClient, console: Console) -> str:
    """Return one screen with all content. Raises ClientError."""
    view = View(url=client.endpoint.url, snapshot=take(client))
    return render(view, console.size()[0], None, has_color=console.has_color)


def show(client: RuntimeClient, console: Console, interval_s: float) -> None:
    """
    Show the runtime of *client* until the user leaves.

    Raises:
        NotAuthorisedError: The runtime requires a key, or a different one.
    """
    assert console.stdin is not None  # noqa: S101 (for the type checker: it is a terminal)
    screen = FullScreen(console.stdin, console.stdout)
    poller = Poller(client, interval_s)
    try:
        with screen.shown(), suppress(EOFError):
            _draw_and_obey(poller, client.endpoint.url, console, screen)
    finally:
        poller.stop()
    if poller.error is not None:
        raise poller.error


def _draw_and_obey(poller: Poller, url: str, console: Console, screen: FullScreen) -> None:
    dialogue, drawn, size = Dialogue(), None, (0, 0)
    while poller.error is None and not dialogue.is_over:
        snapshot = poller.latest
        ids = [query.id for query in snapshot.queries] if snapshot else []
        dialogue.follow(ids)
        dialogue.notice, poller.notice = poller.notice or dialogue.notice, ""
        view = View(url=url, snapshot=snapshot, chosen=dialogue.chosen, message=dialogue.message)
        if view != drawn or console.size() != size or screen.was_stopped:
            screen.was_stopped, drawn, size = False, view, console.size()
            screen.draw(render(view, *size, has_color=console.has_color))
        key = screen.key(_LOOK_S)
        if key is not None and (cancelled := dialogue.press(key, ids)):
            poller.cancel(cancelled)

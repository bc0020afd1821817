"""One line on standard error about what takes longer than a moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import cycle
from types import TracebackType
from typing import Self

from runtimeclient.output import TextStream

_SIGNS = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PERIOD_S = 0.1
#: Seconds that pass before anything is shown.
MOMENT_S = 0.5
_ERASE_LINE = "\r\x1b[K"


class Progress:
    """
    Shows a line that tells how far something is, once it takes longer than a moment, and takes it away at the end.

    Use it as a context manager. It draws from a thread of its own; `clear` may be called at any time, and nothing is
    drawn after it.

    Args:
        stream: Where to draw: a terminal, or None to draw nothing.
        tell: Says how far it is, given the seconds since the start. Called from the other thread.
        columns: How wide the terminal is now.
        after_s: Seconds until the line shows.
    """

    def __init__(
        self,
        stream: TextStream | None,
        tell: Callable[[float], str],
        columns: Callable[[], int],
        after_s: float = MOMENT_S,
    ) -> None:
        self._stream = stream
        self._tell = tell
        self._columns = columns
        self._after_s = after_s
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._stream is not None:
            self._thread = threading.Thread(target=self._draw, args=(self._stream,), daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def clear(self) -> None:
        """Take the line away for good."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _draw(self, stream: TextStream) -> None:
        start = time.monotonic()
        if self._is_over.wait(self._after_s):
            return
        try:
            for sign in cycle(_SIGNS):
                text = f"{sign} {self._tell(time.monotonic() - start)}"
                # A line that wraps could not be taken away.
                stream.write(_ERASE_LINE + text[: max(self._columns() - 1, 1)])
                stream.flush()
                if self._is_over.wait(_PERIOD_S):
                    break
            stream.write(_ERASE_LINE)
            stream.flush()
        except OSError:
            return  # The terminal has gone; what is worked on may go on.

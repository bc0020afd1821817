"""A progress line on standard error."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import cycle
from types import TracebackType
from typing import Self

from runtimeclient.output.writer import TextStream

_SIGNS = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PERIOD_S = 0.1
#: Seconds until the line is shown.
DELAY_S = 0.5
_ERASE_LINE = "\r\x1b[K"


class Progress:
    """
    Shows a progress line if an operation takes longer than a moment, and erases it at the end.

    Use it as a context manager. A thread draws the line; `clear` may be called at any time, and nothing is drawn after
    it.

    Args:
        stream: The terminal, or None to draw nothing.
        text: Returns the text, given the seconds since the start. Called from the other thread.
        columns: Returns the current width of the terminal.
        after_s: Seconds until the line is shown.
    """

    def __init__(
        self,
        stream: TextStream | None,
        text: Callable[[float], str],
        columns: Callable[[], int],
        after_s: float = DELAY_S,
    ) -> None:
        self._stream = stream
        self._text = text
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
        """Erase the line for good."""
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
                text = f"{sign} {self._text(time.monotonic() - start)}"
                # A line that wraps could not be erased.
                stream.write(_ERASE_LINE + text[: max(self._columns() - 1, 1)])
                stream.flush()
                if self._is_over.wait(_PERIOD_S):
                    break
            stream.write(_ERASE_LINE)
            stream.flush()
        except OSError:
            return  # The terminal is gone; the operation may continue.

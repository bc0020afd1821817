"""A progress line on standard error."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle

from runtimeclient.output.writer import TextStream

_SIGNS = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PERIOD_S = 0.1
_DELAY_S = 0.5
_ERASE_LINE = "\r\x1b[K"


@contextmanager
def progress_line(
    terminal: TextStream, text: Callable[[float], str], size: Callable[[], tuple[int, int]]
) -> Iterator[Callable[[], None]]:
    """
    Show a progress line if the block takes longer than a moment, and erase it at the end.

    Args:
        text: Returns the text, given the seconds since the start. Called from the thread that draws the line.
        size: Returns the current columns and lines of the terminal.

    Yields:
        A function that erases the line for good; it may be called at any time.
    """
    is_over = threading.Event()

    def draw() -> None:
        start = time.monotonic()
        if is_over.wait(_DELAY_S):
            return
        try:
            for sign in cycle(_SIGNS):
                line = f"{sign} {text(time.monotonic() - start)}"
                # A line that wraps could not be erased.
                terminal.write(_ERASE_LINE + line[: max(size()[0] - 1, 1)])
                terminal.flush()
                if is_over.wait(_PERIOD_S):
                    break
            terminal.write(_ERASE_LINE)
            terminal.flush()
        except OSError:
            return  # The terminal is gone; the operation may continue.

    thread = threading.Thread(target=draw, daemon=True)

    def clear() -> None:
        is_over.set()
        thread.join()

    thread.start()
    try:
        yield clear
    finally:
        clear()

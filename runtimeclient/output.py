"""Where the text of a command goes."""

from __future__ import annotations

from typing import Protocol

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
    """

    def __init__(self, stream: TextStream) -> None:
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
        try:
            if block:
                self._stream.write(block)
            if is_flush:
                self._stream.flush()
        except BrokenPipeError:
            raise
        except OSError as exc:
            raise OutputError(f"The output cannot be written: {exc.strerror}.") from exc

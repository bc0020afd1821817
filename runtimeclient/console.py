"""The streams of one command: what they can show, and what is said beside the answers."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, TextIO

from runtimeclient.credentials import KEY_VARIABLE, masked
from runtimeclient.errors import ClientError
from runtimeclient.output import Output, TextStream
from runtimeclient.pager import PagedStream, pager_command
from runtimeclient.progress import Progress
from runtimeclient.screen import one_line
from runtimeclient.style import Style

_RED, _PLAIN = "\x1b[31m", "\x1b[0m"
# What a terminal that does not tell its size is taken for.
_COLUMNS, _LINES = 80, 24


class Streams(NamedTuple):
    """Standard input, None where there is none; what takes answers; what takes errors, warnings and progress."""

    stdin: TextIO | None
    stdout: TextStream
    stderr: TextStream


class Console:
    """
    The streams of one command.

    Args:
        streams: Where it reads and writes.
        environ: NO_COLOR, TERM and PAGER are looked up in it.
        has_color: False shows no colours wherever they might be.
        has_pager: False pages nothing.
        is_quiet: No progress, and no warnings that do not change what was asked for.
    """

    def __init__(
        self,
        streams: Streams,
        environ: Mapping[str, str],
        *,
        has_color: bool = True,
        has_pager: bool = True,
        is_quiet: bool = False,
    ) -> None:
        self.stdin, self.stdout, self.stderr = streams
        self.is_quiet = is_quiet
        self._environ = environ
        # https://no-color.org
        self._may_color = has_color and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        self._has_pager = has_pager
        self._api_key: str | None = None

    def keep_from_others(self, api_key: str | None) -> None:
        """Keep the key from the programs that are started here, and out of what is said beside the answers."""
        self._api_key = api_key

    @property
    def is_interactive(self) -> bool:
        """A person is at both ends."""
        return self.stdin is not None and self.stdin.isatty() and self.shows_answers

    @property
    def shows_answers(self) -> bool:
        """The answers go to a terminal."""
        return _is_terminal(self.stdout)

    @property
    def has_color(self) -> bool:
        """The answers may hold colours."""
        return self._may_color and self.shows_answers

    @property
    def terminal(self) -> TextIO | None:
        """The terminal that takes the answers; None, which stands for the usual one, where it cannot be told."""
        return self.stdout if isinstance(self.stdout, io.TextIOWrapper) else None

    def size(self) -> tuple[int, int]:
        """Give the columns and lines of the terminal as they are now."""
        for stream in (self.stdout, self.stderr):
            try:
                size = os.get_terminal_size(stream.fileno())  # type: ignore[attr-defined] # not every stream has one
            except (AttributeError, OSError, ValueError):
                continue
            return size.columns or _COLUMNS, size.lines or _LINES
        return _COLUMNS, _LINES

    def columns(self) -> int:
        """Give the columns of the terminal as they are now."""
        return self.size()[0]

    def style(self, format_: str = "table") -> Style:
        """Show lists and answers as fits this console."""
        columns = self.columns() if self.shows_answers else None
        return Style(format=format_, is_colored=self.has_color, is_quiet=self.is_quiet, columns=columns)

    def output(self) -> Output:
        """Write answers without paging them."""
        return Output(self.stdout)

    def environ_of_programs(self) -> dict[str, str]:
        """Give the environment for a program that is started here: without the key, whatever its variable is called."""
        key = self._api_key
        return {
            name: value
            for name, value in self._environ.items()
            if name != KEY_VARIABLE and (key is None or key not in value)
        }

    @contextmanager
    def paged(self) -> Iterator[Output]:
        """Write one answer, by way of a pager when it goes to a terminal that it does not fit on."""
        command = pager_command(self._environ) if self._has_pager and self.shows_answers else None
        if command is None:
            yield Output(self.stdout)
            return
        stream = PagedStream(self.stdout, *self.size(), command, self.environ_of_programs())
        try:
            yield Output(stream)
        except BrokenPipeError:
            pass  # The user has left the pager, and has seen enough.
        finally:
            stream.close()

    def progress(self, tell: Callable[[float], str]) -> Progress:
        """Show a line on standard error, if that is a terminal, while the block that follows takes long."""
        shows = _is_terminal(self.stderr) and not self.is_quiet and self._environ.get("TERM") != "dumb"
        return Progress(self.stderr if shows else None, tell, self.columns)

    def tell(self, line: str) -> None:
        """Say something beside the answers: on standard error."""
        self.stderr.write(line + "\n")
        self.stderr.flush()

    def warn(self, text: str) -> None:
        """Say what does not stop the command."""
        if not self.is_quiet:
            self.tell(f"Warning: {one_line(masked(text, self._api_key))}")

    def error(self, exc: ClientError) -> None:
        """Say on one line what went wrong, and where in a script; on a terminal, show the place below it."""
        place = exc.place
        where = ""
        if place is not None:
            where = f"{place.source}, line {place.line}, column {place.column}: ".removeprefix(", ")
        on_terminal = _is_terminal(self.stderr)
        word = f"{_RED}Error:{_PLAIN}" if on_terminal and self._may_color else "Error:"
        self.tell(f"{word} {one_line(masked(f'{where}{exc}', self._api_key))}")
        if place is not None and on_terminal:
            self.tell(place.drawing())


def _is_terminal(stream: TextStream) -> bool:
    isatty = getattr(stream, "isatty", None)
    return isatty is not None and bool(isatty())

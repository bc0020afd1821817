"""
Quoted line endings in CSV.

Several threads of the engine read parts of about 8 MB, and each guesses where the first row of its part begins. Within
a quoted text of many lines the guess is wrong, and the engine reports a quote that is not closed. One thread reads such
files, but does not report the end of the file within quotes. So the rows must first be counted by another parser.
"""

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import duckdb

from datasources.errors import SourceError
from datasources.sources.text_files import HEAD_BYTES


class _Stream(io.RawIOBase):
    """The bytes of *content*."""

    def __init__(self, content: Iterator[bytes]) -> None:
        super().__init__()
        self._content = content
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        self._left = self._left or next(self._content, b"")
        size = min(len(buffer), len(self._left))
        buffer[:size], self._left = self._left[:size], self._left[size:]
        return size


def first_record(head: bytes, quote: bytes, escape: bytes) -> bytes | None:
    """Return the first line of *head*, ignoring line breaks within quotes; None if the line does not end."""
    escaped = re.escape(escape) + b".|" if escape != quote else b""
    quoted = False
    for match in re.finditer(escaped + (re.escape(quote) + b"|" if quote else b"") + rb"[\r\n]", head, re.DOTALL):
        if match[0] == quote:
            quoted = not quoted
        elif not quoted and len(match[0]) == 1:
            return head[: match.start()]
    return None if quoted or len(head) >= HEAD_BYTES else head


@dataclass(frozen=True, kw_only=True)
class Counted:
    """
    A file in UTF-8 whose rows the engine has counted with one thread.

    `shown` is its name in errors, which count `lines_before` as well; `content` yields its bytes.
    """

    shown: str
    content: Callable[[], Iterator[bytes]]
    rows: int
    delimiter: str
    quote: str
    has_header: bool
    lines_before: int

    def has_more_lines(self) -> bool:
        """Return whether there are more lines than rows: blank ones, or some within quotes."""
        feeds, returns, end = 0, 0, b""
        for block in self.content():
            feeds, returns, end = feeds + block.count(b"\n"), returns + block.count(b"\r"), block[-1:]
        return max(feeds, returns) + (end not in {b"\n", b"\r"}) > self.rows + 1

    def is_sound(self) -> bool:
        """Return whether Python's parser finds the same number of rows. Raises SourceError: It ends within quotes."""
        text = io.TextIOWrapper(io.BufferedReader(_Stream(self.content())), "utf-8", newline="")
        found = line = 0
        reader = csv.reader(text, delimiter=self.delimiter, quotechar=self.quote, strict=True)
        before = csv.field_size_limit(HEAD_BYTES)
        try:
            for row in reader:
                found, line = found + bool(row), reader.line_num
        except csv.Error as exc:
            if "unexpected end of data" in str(exc):
                raise SourceError(
                    f"'{self.shown}', line {self.lines_before + line + 1}: a quote is not closed."
                ) from None
            return False
        except UnicodeDecodeError:
            return False
        finally:
            csv.field_size_limit(before)
        return found == self.rows + self.has_header


def needs_one_thread(connection: duckdb.DuckDBPyConnection, scan: str, files: Sequence[Counted]) -> bool:
    """
    Return whether *files* are well-formed, but several threads of the engine cannot read them by *scan*.

    Raises:
        SourceError: A file ends within quotes.
    """
    suspects = [file for file in files if file.has_more_lines()]
    if not suspects or not all(file.is_sound() for file in suspects):
        return False
    with suppress(duckdb.InvalidInputException):
        connection.execute(f"SELECT count(*) FROM {scan}")  # noqa: S608 - quoted by us
        return False
    return all(file.is_sound() for file in files if file not in suspects)

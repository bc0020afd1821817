"""
What a source is to those who load it.

A `Source` is opened for the length of one load, and what is open is a `Scan`, which the loading engine reads. There are
two kinds: files that the engine reads itself by their descriptors (`datasources.sources.files`), and streams of record
batches that a client library of the source makes (`datasources.sources.streams`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Literal, Protocol

import duckdb

from datasources.deadline import Deadline
from datasources.errors import SourceError

Operator = Literal["=", "<", "<=", ">", ">="]
Value = int | float | Decimal | str | date | datetime


@dataclass(frozen=True, slots=True)
class Bound:
    """A comparison of a *column* with a constant that every row which the load needs passes."""

    column: str
    operator: Operator
    value: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """
    What a load needs at most, for a source that can leave the rest unread.

    It is a hint: the load picks its columns and rows from whatever comes. So a source may ignore any of it, and must
    ignore a bound that it would judge otherwise than the engine does (a text by another collation, for one).

    `columns` are names in lower case, None for all of them; `bounds` hold together.
    """

    columns: frozenset[str] | None = None
    bounds: tuple[Bound, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """
    One load, as a source needs to know it.

    *scratch* is a directory of this load alone, which is there and is deleted after it; what is written there counts
    against *scratch_bytes*.
    """

    deadline: Deadline
    scratch: Path
    scratch_bytes: int
    wanted: Wanted = Wanted()


class Scan(Protocol):
    """A source that is open for one load."""

    @property
    def version(self) -> str | None:
        """
        Which version of the source this is: another version, another text. None where the source cannot tell.

        It is asked for after `bind`, is kept with the data, and says nothing about the source's place or secrets.
        """

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths that the loading engine must be able to open, and no others."""

    def bind(self, connection: duckdb.DuckDBPyConnection) -> str:
        """
        Look at what is there, and return the SQL of a relation that reads it: a table function, or a name.

        A relation of a stream can be read only once.

        Raises:
            SourceError: It is not what it should be.
            duckdb.Error: The engine cannot read it; `explain` says why.
        """

    @property
    def held_bytes(self) -> int:
        """What a library holds of the source while the engine reads it, in bytes, roughly."""

    @property
    def is_read_once(self) -> bool:
        """Whether what `bind` returns can be read only once, as a stream can."""

    def accept(self, connection: duckdb.DuckDBPyConnection, names: Sequence[str]) -> None:
        """
        Judge the *names* of the columns that the engine found.

        Raises:
            SourceError: They are not those of the source.
        """

    def explain(self, connection: duckdb.DuckDBPyConnection, error: duckdb.Error) -> SourceError:
        """Turn the engine's error about this source into a sentence without paths, credentials or contents."""

    def confirm(self) -> None:
        """
        Say that what was read is one version of the source.

        Raises:
            SourceError: It changed while it was read.
        """


class Source(Protocol):
    """Where the data of one dataset comes from."""

    def open(self, load: Load) -> AbstractContextManager[Scan]:
        """
        Open it for one load.

        Raises:
            SourceError: It is not there, or cannot be read.
            SnapshotError: The deadline of *load* passed.
        """

    def has_changed(self, version: str, load: Load) -> bool:
        """
        Say, at little cost, whether the source is another than in *version*; True where it cannot tell.

        Raises:
            SourceError: It is not there, or cannot be asked.
            SnapshotError: The deadline of *load* passed.
        """

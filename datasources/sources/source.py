"""
The interface of a source.

A `Source` is opened for one load. The result is a `Scan`, which the loading engine reads. There are two kinds: files
that the engine reads through descriptors (`datasources.sources.files`), and streams of record batches from the source's
client library (`datasources.sources.streams`).
"""

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Literal, Protocol

import duckdb
from msgspec import Struct, field

from datasources.deadline import Deadline
from datasources.errors import SourceError
from queryengine.manifest import Column

Operator = Literal["=", "<", "<=", ">", ">="]
Value = int | float | Decimal | str | date | datetime


class Bound(Struct, frozen=True):
    """A comparison of a *column* with a constant, which is true for every row that the load needs."""

    column: str
    operator: Operator
    value: Value


class Wanted(Struct, frozen=True, kw_only=True):
    """
    The columns and rows that a load needs at most, for a source that can skip the rest.

    This is only a hint because the load filters the rows that it gets. A source may ignore any part of it, and must
    ignore a bound that it would compare differently than the engine, such as a string with another collation.

    `columns` are lower-case names, or None for all columns. All `bounds` apply.
    """

    columns: frozenset[str] | None = None
    bounds: tuple[Bound, ...] = ()


class Load(Struct, frozen=True, kw_only=True):
    """
    One load from the source's point of view.

    *scratch* is an existing directory only for this load, which is deleted afterwards. Files in it count against
    *scratch_bytes*. A result without rows has no types of its own, so it gets the types of the *served* columns if they
    have the same names. *now* is the time (`time.time()`) that decides which rows are too old.
    """

    deadline: Deadline
    scratch: Path
    scratch_bytes: int
    wanted: Wanted = Wanted()
    served: tuple[Column, ...] = ()
    now: float = field(default_factory=time.time)


class Scan(ABC):
    """
    A source that is open for one load.

    Attributes:
        version: A string that identifies the version of the source; None if unknown. It is read after `bind` and stored
            with the data. It must not contain the location of the source or secrets.
        paths: The only paths that the loading engine needs to open.
        held_bytes: The approximate memory of a client library while the engine reads, in bytes.
        is_read_once: Whether the relation of `bind` can be read only once, as a stream.
        has_collations: Whether its text columns may have collations, by which the engine would compare their values.
    """

    version: str | None = None
    paths: tuple[str, ...] = ()
    held_bytes: int = 0
    is_read_once: bool = False
    has_collations: bool = False

    @abstractmethod
    def bind(self, connection: duckdb.DuckDBPyConnection) -> str:
        """
        Check the source and return the SQL of a relation that reads it (a table function or a name).

        Raises:
            SourceError: The source is not valid.
            duckdb.Error: The engine cannot read the source. `explain` returns the reason.
        """

    def accept(self, connection: duckdb.DuckDBPyConnection, columns: Sequence[Column]) -> None:  # noqa: B027 (optional)
        """
        Check the *columns* that the engine found.

        Raises:
            SourceError: They differ from the source's columns.
        """

    @abstractmethod
    def explain(self, connection: duckdb.DuckDBPyConnection, error: duckdb.Error) -> SourceError:
        """Turn the engine's error about this source into a sentence without paths, credentials or contents."""

    def confirm(self) -> None:  # noqa: B027 (optional)
        """
        Check that all data came from one version of the source.

        Raises:
            SourceError: The source changed while it was read.
        """


class Source(Protocol):
    """The origin of the data of one dataset."""

    def open(self, load: Load) -> AbstractContextManager[Scan]:
        """
        Open the source for one load.

        Raises:
            SourceError: The source does not exist or cannot be read.
            SnapshotError: The deadline of *load* has passed.
        """

    def has_changed(self, version: str, load: Load) -> bool:
        """
        Return, at little cost, whether the source differs from *version*; True if unknown (the default).

        Raises:
            SourceError: The source does not exist or cannot be read.
            SnapshotError: The deadline of *load* has passed.
        """
        return True


def reason_for(text: str, reasons: Iterable[tuple[str, str]]) -> str | None:
    """Return the first of *reasons* (pairs of a pattern and a sentence) whose pattern occurs in the error *text*."""
    return next((reason for pattern, reason in reasons if re.search(pattern, text)), None)

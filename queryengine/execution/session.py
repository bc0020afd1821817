"""
The interface of a session: what runs the statements of one process over one manifest.

`queryengine.execution.instance` implements it with DuckDB, a plug-in with another engine. A `Backend` has
the gate for the dialect of its sessions, and opens them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from queryengine.cancellation import Interruption, Watchdog
from queryengine.engine import GatedStatement, Parameters, Query, StatementGate
from queryengine.execution.views import GatedView
from queryengine.manifest import Column, Manifest


@dataclass(frozen=True, slots=True)
class UnfitView:
    """A view that does not fit the data: its path in the YAML, and the engine's reason."""

    yaml_path: str
    reason: str


class ResultReader(Protocol):
    """
    The rows of one statement as Arrow record batches. The caller closes it.

    `columns` are the names and DuckDB types of the result. All rows have been computed if it `is_complete`. A small
    result may come encoded, with its number of rows and the milliseconds that encoding took.
    """

    columns: tuple[Column, ...]
    schema: pa.Schema
    is_complete: bool
    encoded: tuple[bytes, int, float] | None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Give the batches. Raises QueryError when the statement failed or was stopped before its end."""

    def interrupt(self) -> None:
        """Stop what is computed now, from any thread. More than one call is harmless."""

    def close(self) -> None:
        """Stop the statement if it still runs. More than one call is harmless."""


class Session(Protocol):
    """A session over one manifest. `unfit_views` are by name. Only one that `speculates` may run what it describes."""

    speculates: bool
    unfit_views: Mapping[str, UnfitView]

    @property
    def cached_bytes(self) -> int:
        """The memory that it may keep for later statements, in bytes."""

    @property
    def is_broken(self) -> bool:
        """Whether it must be replaced by a new one."""

    @property
    def is_ready(self) -> bool:
        """Whether it takes statements now."""

    def run(
        self,
        statement: GatedStatement,
        query: Query,
        interruption: Interruption,
        watchdog: Watchdog | None = None,
    ) -> ResultReader:
        """
        Run one *statement* that the gate admitted for *query*, and wait for its first rows.

        With a *watchdog*, a small result may come encoded.

        Raises:
            QueryError: The statement failed, or *interruption* was stopped.
        """

    def describe(
        self, statement: GatedStatement, parameters: Parameters | None, interruption: Interruption
    ) -> tuple[tuple[Column, ...], pa.Schema] | None:
        """
        Return the columns and the schema that the reader of `run` would have; None when they depend on missing values.

        A statement with parameters may come without *parameters*, and is then described as far as possible.

        Raises:
            QueryError: As `run`.
        """

    def is_cacheable(self, statement: GatedStatement) -> bool:
        """Say whether the parameters of *statement* and the data alone decide its result."""

    def reads_the_same(self, statement: GatedStatement, files: Mapping[str, str]) -> bool:
        """Say whether *statement* reads the same here as over *files*, given by dataset in lower case."""

    def holds_superseded(self, files: Mapping[str, str]) -> bool:
        """Say whether the session holds a file that is not among *files*, given by dataset in lower case."""

    def close(self) -> None:
        """Release everything. Readers must be closed before."""


class Backend(Protocol):
    """A kind of engine, in one process."""

    @property
    def gate(self) -> StatementGate:
        """The gate for the dialect of its sessions."""

    def open(self, manifest: Manifest, views: Sequence[GatedView], scratch: Path, *, tolerant: bool) -> Session:
        """
        Open a session over *manifest* with *views*, each of which reads only earlier ones.

        It may spill to *scratch*, a directory of its own. With *tolerant*, a snapshot that is missing or unreadable
        makes its dataset alone unavailable.

        Raises:
            SnapshotGoneError: A snapshot is missing or unreadable, and not *tolerant*.
            EngineUnavailableError: The engine cannot start.
        """

    def close(self) -> None:
        """Release everything. Sessions must be closed before."""

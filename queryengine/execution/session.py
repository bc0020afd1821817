"""
The interface of a session, which runs the statements of one process over one manifest.

`queryengine.execution.instance` implements the interface with DuckDB. Plug-ins implement it with other engines. A
`Backend` has the gate for the SQL dialect of its sessions, and opens sessions.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from msgspec import Struct

from queryengine.cancellation import Interruption, Watchdog
from queryengine.engine import GatedStatement, Parameters, Query, StatementGate
from queryengine.execution.views import GatedView
from queryengine.manifest import Column, Manifest


class UnfitView(Struct, frozen=True):
    """A view that does not fit the data: its path in the configuration, and the engine's reason."""

    yaml_path: str
    reason: str


class ResultReader(Protocol):
    """
    The rows of one statement as Arrow record batches. The caller closes the reader.

    `columns` are the names and DuckDB types of the result. If `is_complete`, all rows have been computed. A small
    result may already be `encoded`: the bytes, the number of rows, and the encoding time in milliseconds.
    """

    columns: tuple[Column, ...]
    schema: pa.Schema
    is_complete: bool
    encoded: tuple[bytes, int, float] | None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches. Raises QueryError if the statement failed or was stopped before its end."""

    def interrupt(self) -> None:
        """Stop the current computation, from any thread. Repeated calls are harmless."""

    def close(self) -> None:
        """Stop the statement if it is still running. Repeated calls are harmless."""


class Session(Protocol):
    """A session over one manifest. `unfit_views` are by name. If it `speculates`, it may run statements to describe."""

    speculates: bool
    unfit_views: Mapping[str, UnfitView]

    @property
    def cached_bytes(self) -> int:
        """The memory that it may keep for later statements, in bytes."""

    @property
    def is_broken(self) -> bool:
        """Whether the session must be replaced by a new one."""

    @property
    def is_ready(self) -> bool:
        """Whether the session accepts statements now."""

    def run(
        self,
        statement: GatedStatement,
        query: Query,
        interruption: Interruption,
        watchdog: Watchdog | None = None,
    ) -> ResultReader:
        """
        Run one *statement* that the gate admitted for *query*, and wait for its first rows.

        With a *watchdog*, a small result may already be encoded.

        Raises:
            QueryError: The statement failed, or *interruption* was stopped.
        """

    def describe(
        self, statement: GatedStatement, parameters: Parameters | None, interruption: Interruption
    ) -> tuple[tuple[Column, ...], pa.Schema] | None:
        """
        Return the columns and schema that the reader of `run` would have; None if they depend on missing values.

        If the *parameters* of a statement are missing, it is described as far as possible.

        Raises:
            QueryError: See `run`.
        """

    def is_cacheable(self, statement: GatedStatement) -> bool:
        """Return whether the data and the parameters of *statement* alone determine its result."""

    def reads_the_same(self, statement: GatedStatement, files: Mapping[str, str]) -> bool:
        """Return whether *statement* reads the same data here as in *files*, which are by lower-case dataset name."""

    def holds_superseded(self, files: Mapping[str, str]) -> bool:
        """Return whether the session uses a file that is not in *files*, which are by lower-case dataset name."""

    def free_cache(self) -> None:
        """Free memory that later statements can fill again from files. No statement may be running."""

    def close(self) -> None:
        """Release all resources. Close all readers first."""


class Backend(Protocol):
    """A type of engine in one process."""

    @property
    def gate(self) -> StatementGate:
        """The gate for the SQL dialect of the sessions."""

    def open(self, manifest: Manifest, views: Sequence[GatedView], scratch: Path, *, tolerant: bool) -> Session:
        """
        Open a session over *manifest* with *views*, each of which reads only earlier views.

        The session may spill to *scratch*, its own directory. With *tolerant*, a missing or unreadable snapshot makes
        only its dataset unavailable.

        Raises:
            SnapshotGoneError: A snapshot is missing or unreadable, and *tolerant* is false.
            EngineUnavailableError: The engine cannot start.
        """

    def close(self) -> None:
        """Release all resources. Close all sessions first."""

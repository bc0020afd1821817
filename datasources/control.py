"""
What the HTTP API asks about datasets, whoever refreshes them.

The process that holds the lock of the state directory answers directly (`datasources.refresh.refresher`); any other
process asks it over the control socket. Both are a `DatasetControl`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from datasources.errors import DatasetError
from queryengine.manifest import Signature, manifest_path, signature
from runtimeconf.model import RefreshMode

DatasetStatus = Literal["Initializing", "Ready", "Refreshing", "Error", "Disabled"]
RefreshStatus = Literal["queued", "running", "succeeded", "failed"]
RefreshPhase = Literal["opening", "loading", "publishing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetState:
    """
    One row of `GET /v1/datasets`. Times are ISO 8601 in UTC; `error` is a sentence without paths.

    `refreshed_at` is when the data that is served was built; `checked_at` is when a refresh last succeeded, even if the
    source was unchanged, and `age_s` the whole seconds since then. `bytes` is the size of the snapshot's file.
    """

    from_: str
    name: str
    acceleration_enabled: bool
    status: DatasetStatus
    rows: int | None
    refreshed_at: str | None
    snapshot: str | None
    error: str | None
    loaded_once: bool
    checked_at: str | None
    next_refresh_at: str | None
    age_s: int | None
    bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshRun:
    """
    One refresh of one dataset, asked for or scheduled. Times are ISO 8601 in UTC.

    One that found its source `unchanged`, or nothing newer in it, loaded nothing: `rows` are those served already.

    While it runs, `duration_ms` is the time so far and `bytes` the size of the snapshot as far as it is written;
    `phase` is "opening" until the source is open and has said whether it changed, "loading" while rows are written, and
    "publishing" when all are.
    """

    id: str
    status: RefreshStatus
    requested_at: str
    started_at: str | None = None
    finished_at: str | None = None
    rows: int | None = None
    duration_ms: int | None = None
    error: str | None = None
    unchanged: bool = False
    phase: RefreshPhase | None = None
    bytes: int | None = None


class DatasetControl(Protocol):
    """Asks about datasets and starts refreshes."""

    def datasets(self) -> tuple[DatasetState, ...]:
        """All declared datasets, in the order of the YAML."""

    def is_loaded(self) -> bool:
        """Say whether there is data to serve of every dataset."""

    def request_refresh(
        self, name: str, refresh_sql: str | None = None, *, mode: RefreshMode | None = None, jitter_max_s: float = 0.0
    ) -> RefreshRun:
        """
        Ask for a refresh; a waiting one is joined, and its run returned.

        Args:
            name: The dataset, whatever the case of its letters.
            refresh_sql: What this run keeps of the source; None: as declared.
            mode: What this run does with the rows that are served; None: as declared.
            jitter_max_s: This run begins up to so many seconds later, by chance.

        Raises:
            UnknownDatasetError: No dataset has that name.
            AccelerationDisabledError: The dataset is read once at start only.
            TimeColumnMissingError: *mode* is append, and the dataset has no time_column.
            DatasetsUnavailableError: No process answers for the datasets at the moment.
        """

    def history(self, name: str) -> tuple[RefreshRun, ...]:
        """
        The last 100 runs of a dataset, newest first.

        Raises:
            UnknownDatasetError: No dataset has that name.
            DatasetsUnavailableError: No process answers for the datasets at the moment.
        """


class DatasetRegistry(DatasetControl, Protocol):
    """What `datasources.state` holds: the control of a whole process, which also knows whether it serves yet."""

    def is_loaded(self) -> bool:
        """Say whether there is data to serve of every dataset, as far as was known last."""


class Loaded:
    """Whether all datasets are served, as *is_loaded* said last; it is asked again when other data is published."""

    def __init__(self, state_dir: Path, is_loaded: Callable[[], bool]) -> None:
        self._manifest = str(manifest_path(state_dir))
        self._is_loaded = is_loaded
        self._was = False
        self._published: Signature = None

    def look(self) -> bool:
        """Return what was said last when nobody answers for the datasets; False when nobody ever did."""
        published = signature(self._manifest)
        if not self._was or published is None or published != self._published:
            with suppress(DatasetError):
                self._was, self._published = self._is_loaded(), published
        return self._was

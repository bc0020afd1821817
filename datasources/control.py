"""
The interface for reading dataset states and requesting refreshes.

The process that holds the lock of the state directory answers directly (`datasources.refresh.refresher`). Any other
process asks the holder over the control socket. Both implement `DatasetControl`.
"""

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Literal, NewType, Protocol, TypedDict, Unpack

from msgspec import Struct, field

from datasources.errors import DatasetError
from queryengine.manifest import ManifestError, Signature, manifest_path, read_manifest, signature
from runtimeconf.model import RefreshMode

DatasetStatus = Literal["Initializing", "Ready", "Refreshing", "Error", "Disabled"]
RefreshStatus = Literal["queued", "running", "succeeded", "failed"]
RefreshPhase = Literal["opening", "loading", "publishing"]

#: The maximum length of a caller's name, in characters.
MAX_CALLER_LENGTH = 1000

#: A SELECT for one dataset that the gate has admitted. See `datasources.refresh_sql.admit_refresh_sql`.
AdmittedSql = NewType("AdmittedSql", str)


class DatasetState(Struct, frozen=True, kw_only=True):
    """
    One row of `GET /v1/datasets`. Times are ISO 8601 in UTC. `error` is a sentence without paths.

    `refreshed_at` is when the served data was built. `checked_at` is when a refresh last succeeded, even if the source
    was unchanged, and `age_s` is the number of whole seconds since then. `bytes` is the size of the snapshot file.
    `description` and `metadata` come from the configuration file.
    """

    from_: str
    name: str
    acceleration_enabled: bool
    status: DatasetStatus
    rows: int | None
    refreshed_at: str | None
    snapshot: str | None
    error: str | None
    checked_at: str | None
    next_refresh_at: str | None
    age_s: int | None
    bytes: int | None
    description: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)


class RefreshRun(Struct, frozen=True, kw_only=True):
    """
    One refresh of one dataset, requested or scheduled. Times are ISO 8601 in UTC.

    A run is `unchanged` if it loaded nothing because its source had not changed or had no newer rows. In this case
    `rows` is the number of rows already served.

    During the run, `duration_ms` is the time so far and `bytes` is the size written so far. `phase` is "opening" until
    the source is open and known to have changed, "loading" while rows are written, and "publishing" after that.
    """

    id: str
    status: RefreshStatus
    requested_at: str
    started_at: str | None = None
    finished_at: str | None = None
    rows: int | None = None
    duration_ms: int | None = None
    error: str | None = None
    unchanged: bool | None = False
    phase: RefreshPhase | None = None
    bytes: int | None = None


class SharingState(Struct, frozen=True, kw_only=True):
    """
    How a node shares snapshots with others.

    `node` is this node's id, and `publisher` is the id of the publishing node, or None if unknown. `error` says why the
    last storage check failed. `answered_s` is the number of whole seconds since a check succeeded, or None if none did.
    `publishes_s` is the number of seconds for which no other node can publish, or 0 if this node does not publish or
    does not know.
    """

    node: str
    publisher: str
    epoch: int
    error: str | None
    answered_s: int | None
    publishes_s: float = 0.0

    @property
    def is_publishing(self) -> bool:
        """Whether this node publishes."""
        return self.node == self.publisher


class RefreshOptions(TypedDict, total=False):
    """
    The options of a requested refresh. All of them are optional.

    `mode` determines whether the refresh replaces the served rows or appends to them; None means as declared.
    `jitter_max_s` is the maximum random delay before the refresh begins, in seconds. `caller` is the name or
    fingerprint of the requesting key, because callers take turns.
    """

    mode: RefreshMode | None
    jitter_max_s: float
    caller: str


class DatasetControl(Protocol):
    """Reports the states of datasets and accepts refresh requests."""

    def datasets(self) -> tuple[DatasetState, ...]:
        """Return all declared datasets, in configuration order."""

    def waiting_for(self) -> tuple[str, ...]:
        """
        Return the datasets that prevent readiness, in configuration order.

        These are the required datasets without data to serve. With `ready_state: on_registered`, they are only the
        datasets that have never been tried.

        Raises:
            DatasetsUnavailableError: No process manages the datasets at the moment.
        """

    def is_loaded(self) -> bool:
        """Return True if no dataset prevents readiness."""

    def sharing(self) -> SharingState | None:
        """
        Return how this node shares snapshots with others; None if it does not share snapshots.

        Raises:
            DatasetsUnavailableError: No process manages the datasets at the moment.
        """

    def request_refresh(
        self, name: str, sql: AdmittedSql | None = None, **options: Unpack[RefreshOptions]
    ) -> RefreshRun:
        """
        Request a refresh. If a run of the dataset is already queued, join it and return it.

        Args:
            name: The dataset name, in any case.
            sql: The `refresh_sql` of this run, which is not checked again; None means as declared.
            options: See `RefreshOptions`.

        Raises:
            UnknownDatasetError: No dataset has that name.
            AccelerationDisabledError: The dataset is read only once, at startup.
            TimeColumnMissingError: The mode is append, and the dataset has no time_column.
            DatasetsUnavailableError: No process manages the datasets at the moment.
        """

    def history(self, name: str) -> tuple[RefreshRun, ...]:
        """
        Return the last 100 runs of a dataset, newest first.

        Raises:
            UnknownDatasetError: No dataset has that name.
            DatasetsUnavailableError: No process manages the datasets at the moment.
        """


def is_own(control: DatasetControl) -> bool:
    """
    Return whether *control* reports on the configuration of this process. During a reload, it reports on the next one.

    Ask before and after the report. Raises the same errors as `DatasetControl.waiting_for`.
    """
    ask: Callable[[], bool] | None = getattr(control, "is_own", None)
    return ask is None or ask()


#: Seconds for which a true readiness result is reused if the data can become too old.
RECHECK_S = 1.0


class Loaded:
    """
    Caches a true result of *is_loaded* until other data is published.

    If *awaited* names the datasets required for readiness, the result stays true while all of them are published.
    During a reload, the refresh process already reports on the datasets of the new configuration. *is_loaded* then
    returns None, and only the *awaited* datasets count.

    If readiness *gets_stale* over time, a true result is cached for at most `RECHECK_S` seconds.
    """

    def __init__(
        self,
        state_dir: Path,
        is_loaded: Callable[[], bool | None],
        awaited: Collection[str] | None = None,
        *,
        gets_stale: bool = False,
    ) -> None:
        self._state_dir = state_dir
        self._gets_stale = gets_stale
        self._checked = -RECHECK_S
        self._manifest = str(manifest_path(state_dir))
        self._awaited = awaited
        self._is_loaded = is_loaded
        self._last = False
        self._published: Signature = None

    def check(self) -> bool:
        """Return True if no dataset prevents readiness. If no process manages the datasets, return the last result."""
        published = signature(self._manifest)
        if self._gets_stale:
            if not self._last or time.monotonic() - self._checked >= RECHECK_S:
                with suppress(DatasetError):
                    self._last = self._ask()
                    self._checked = time.monotonic()
        elif not self._last or published is None or published != self._published:
            with suppress(DatasetError):
                self._last, self._published = (self._last and self._is_published()) or self._ask(), published
        return self._last

    def _ask(self) -> bool:
        loaded = self._is_loaded()
        return self._is_published() if loaded is None else loaded

    def _is_published(self) -> bool:
        if self._awaited is None:
            return False
        with suppress(ManifestError):
            published = {snapshot.dataset for snapshot in read_manifest(self._state_dir).snapshots}
            return published.issuperset(self._awaited)
        return False

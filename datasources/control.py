"""
The interface for asking about datasets and requesting refreshes.

The process that holds the lock of the state directory answers directly (`datasources.refresh.refresher`); any other
process asks that one over the control socket. Both are a `DatasetControl`.
"""

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NewType, Protocol, TypedDict, Unpack

from datasources.errors import DatasetError
from queryengine.manifest import ManifestError, Signature, manifest_path, read_manifest, signature
from runtimeconf.model import RefreshMode

DatasetStatus = Literal["Initializing", "Ready", "Refreshing", "Error", "Disabled"]
RefreshStatus = Literal["queued", "running", "succeeded", "failed"]
RefreshPhase = Literal["opening", "loading", "publishing"]

#: The length of the longest name of a caller.
MAX_CALLER_LENGTH = 1000

#: A SELECT for one dataset that the gate has admitted: see `datasources.refresh_sql.admit_refresh_sql`.
AdmittedSql = NewType("AdmittedSql", str)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetState:
    """
    One row of `GET /v1/datasets`. Times are ISO 8601 in UTC; `error` is a sentence without paths.

    `refreshed_at` is when the served data was built; `checked_at` is when a refresh last succeeded, even if the source
    was unchanged, and `age_s` is the whole seconds since then. `bytes` is the size of the snapshot file.
    `description` and `metadata` are those of the YAML.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshRun:
    """
    One refresh of one dataset, requested or scheduled. Times are ISO 8601 in UTC.

    A run is `unchanged` if it loaded nothing because its source had not changed or had no newer rows; `rows` then
    counts the rows already served.

    While it runs, `duration_ms` is the time so far and `bytes` the size written so far. `phase` is "opening" until the
    source is open and known to have changed, "loading" while rows are written, and "publishing" after that.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingState:
    """
    How a node shares snapshots with others.

    `node` is its id, and `publisher` that of the node that publishes, none if unknown. `error` says why the last look
    at the storage failed, and `answered_s` is the whole seconds since one succeeded, None if none did. `publishes_s` is
    for how many seconds no other node can publish, 0 if this node does not, or does not know.
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
    How a requested refresh runs. Each option may be missing.

    `mode` says whether it replaces the served rows or appends to them; None: as declared. `jitter_max_s` is the longest
    random delay before it begins, in seconds. `caller` is whose request it is: the name or fingerprint of a key.
    Callers take turns.
    """

    mode: RefreshMode | None
    jitter_max_s: float
    caller: str


class DatasetControl(Protocol):
    """Answers questions about datasets and starts refreshes."""

    def datasets(self) -> tuple[DatasetState, ...]:
        """All declared datasets, in the order of the YAML."""

    def waiting_for(self) -> tuple[str, ...]:
        """
        Return the datasets that hold up readiness, in the order of the YAML.

        These are the required ones without data to serve; with `ready_state: on_registered`, only those that were never
        tried.

        Raises:
            DatasetsUnavailableError: No process manages the datasets at the moment.
        """

    def is_loaded(self) -> bool:
        """Return whether no dataset holds up readiness."""

    def sharing(self) -> SharingState | None:
        """
        Return how this node shares snapshots with others; None if it does not.

        Raises:
            DatasetsUnavailableError: No process manages the datasets at the moment.
        """

    def request_refresh(
        self, name: str, sql: AdmittedSql | None = None, **options: Unpack[RefreshOptions]
    ) -> RefreshRun:
        """
        Request a refresh. If one is queued already, join it and return its run.

        Args:
            name: The dataset; case is ignored.
            sql: The `refresh_sql` of this run, which is not checked again; None: as declared.
            options: The rest.

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


#: Seconds for which the runtime counts as ready without another look, if its data may get too old for that.
RECHECK_S = 1.0


class Loaded:
    """
    Caches a true result of *is_loaded* until other data is published.

    If the datasets that readiness *awaited* are given, it is true until one of them is not published any more: during a
    reload, the process that refreshes answers for those of the new configuration, and *is_loaded* returns None.

    If readiness *gets_stale* with time, the result is cached for at most `RECHECK_S` seconds.
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
        """Return whether no dataset holds up readiness; the last known answer while no process manages the datasets."""
        published = signature(self._manifest)
        if self._gets_stale:
            if time.monotonic() - self._checked >= RECHECK_S:
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

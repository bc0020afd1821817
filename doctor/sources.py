"""Checks whether the sources of the datasets respond, and whether a load would find the served columns."""

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from datasources.deadline import Deadline
from datasources.errors import SchemaChangedError
from datasources.loading.columns import refuse_changes
from datasources.loading.loading_engine import LoadingEngine
from datasources.refresh.dry_run import inspect
from datasources.snapshots.snapshot import fingerprint
from datasources.sources.registry import import_source, is_local
from datasources.sources.source import Load
from doctor.findings import Finding, run
from queryengine.manifest import Column, ManifestError, Snapshot, read_manifest
from runtimeconf.model import MIB, DatasetConfig, RuntimeConfig
from supervisor import parts
from system.tmpdir import ensure_temporary_directory

#: The memory of an engine that looks up columns, and the maximum bytes to download for it.
_MEMORY_BYTES = 256 * MIB
_SCRATCH_BYTES = 256 * MIB
#: Seconds after a source's time limit until its check is abandoned.
_GRACE_S = 1.0


class Sources:
    """The sources in *config*, each checked for up to *limit_s* seconds. `known` has the columns found."""

    def __init__(self, config: RuntimeConfig, limit_s: float) -> None:
        self._config = config
        self._limit_s = limit_s
        self._served: dict[str, Snapshot] = {}
        self.known: dict[str, tuple[Column, ...]] = {}

    def check(self, *, offline: bool) -> Iterator[Finding]:
        """Check the sources (with *offline*, only files on this machine), and yield the result of each."""
        if not self._config.reads_sources:
            yield Finding("note", "sources", "This node is a follower: it does not read sources.")
            return
        with suppress(ManifestError):
            snapshots = read_manifest(self._config.state_dir).snapshots
            self._served = {snapshot.dataset.lower(): snapshot for snapshot in snapshots}
        datasets = [dataset for dataset in self._config.loaded_datasets if dataset.view is None]
        asked = [dataset for dataset in datasets if not offline or is_local(dataset)]
        ensure_temporary_directory(self._config.state_dir)
        with _environment_of_loads(self._config), tempfile.TemporaryDirectory(prefix="querykeep-") as directory:
            for number, dataset in enumerate(asked):
                about, scratch = f"dataset {dataset.name}", Path(directory, str(number))
                yield from run(about, partial(self._ask, about, dataset, scratch), self._limit_s + _GRACE_S)
        if len(asked) < len(datasets):
            yield Finding("note", "sources", f"--offline: {len(datasets) - len(asked)} sources were not contacted.")

    def _ask(self, about: str, dataset: DatasetConfig, scratch: Path) -> Iterator[Finding]:
        scratch.mkdir()
        import_source(dataset.connector)
        deadline = Deadline(self._limit_s, threading.Event(), name="the --timeout of doctor")
        load = Load(deadline=deadline, scratch=scratch, scratch_bytes=_SCRATCH_BYTES)
        found = inspect(dataset, LoadingEngine(scratch, _MEMORY_BYTES), load)
        where = f"{self._config.file_of(dataset.yaml_path)}:{dataset.line}: {dataset.yaml_path}"
        for field, sentence in found.faults:
            reached = "" if field != "from" else "The source cannot be read: "
            yield Finding("error", about, f"{reached}{sentence}", f"See {where}.{field}, and docs/sources/.")
        if found.columns is not None and not found.faults:
            self.known[dataset.name.lower()] = found.columns
            yield self._compared(about, dataset, found.columns)

    def _compared(self, about: str, dataset: DatasetConfig, columns: tuple[Column, ...]) -> Finding:
        served = self._served.get(dataset.name.lower())
        if served is None or served.source != fingerprint(dataset):
            return Finding("ok", about, f"The source has {len(columns)} columns.")
        try:
            refuse_changes(dataset.name, served.columns, columns)
        except SchemaChangedError as exc:
            if dataset.on_schema_change == "accept":
                return Finding("note", about, "The columns of the source have changed; the next refresh will use them.")
            fix = "Restore the columns of the source, or set on_schema_change to accept."
            return Finding("error", about, str(exc), fix)
        return Finding("ok", about, f"The source has the same {len(columns)} columns that are being served.")


@contextmanager
def _environment_of_loads(config: RuntimeConfig) -> Iterator[None]:
    """Keep only the environment variables that a load has."""
    before = dict(os.environ)
    kept = parts.environment("refresh", config, before)
    try:
        os.environ.clear()
        os.environ.update(kept)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)

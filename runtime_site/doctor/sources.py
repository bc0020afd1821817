"""The sources of the datasets: whether they answer, what a load would find, and whose clock differs from ours."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress

from datasources.errors import SchemaChangedError
from datasources.loading.columns import refuse_changes
from datasources.refresh.dry_run import LOCAL_FILES
from datasources.refresh.probe import Answer, Question, has_silence_limit, probe, server_of
from datasources.snapshots.snapshot import fingerprint, refresh_sql_of, source_version_of
from queryengine.manifest import Column, ManifestError, Snapshot, read_manifest
from runtime_site.doctor.findings import Finding, error, note, ok, warning
from runtimeconf.model import MIB, DatasetConfig, RuntimeConfig
from supervisor import parts
from system.temporary import ensure_temporary_directory

#: Sources that are asked at once.
PARALLEL = 4

#: The memory of an engine that looks up columns, and the most bytes to download for that.
_MEMORY_BYTES = 256 * MIB
_SCRATCH_BYTES = 256 * MIB

#: How far a clock may be off (seconds): requests to S3 are refused from a quarter of an hour on.
_CLOCK_S = 5.0
_CLOCK_OF_S3_S = 900.0

#: The end of the error for more bytes than the scratch space holds.
_TOO_LARGE = "query.temp_directory_limit allows."


class Sources:
    """The sources of *config*, each asked for *limit_s* seconds; `known` has the columns that were read."""

    def __init__(self, config: RuntimeConfig, limit_s: float) -> None:
        self._config = config
        self._limit_s = limit_s
        self.known: dict[str, tuple[Column, ...]] = {}

    def check(self, *, offline: bool) -> Iterator[Finding]:
        """Ask the sources, with *offline* only files of this machine, and yield what each answered."""
        if not self._config.reads_sources:
            yield note("sources", "This node is a follower: it reads no source.")
            return
        datasets = [dataset for dataset in self._config.loaded_datasets if dataset.view is None]
        asked = [dataset for dataset in datasets if not offline or dataset.connector in LOCAL_FILES]
        served = self._served()
        ensure_temporary_directory(self._config.state_dir)
        environ = parts.environment("refresh", self._config, os.environ)
        clocks: dict[str, float] = {}
        for dataset, answer in zip(asked, probe(self._questions(asked, served), environ, PARALLEL), strict=True):
            yield from self._judged(dataset, answer, served.get(dataset.name.lower()))
            if answer.clock_ahead_s is not None:
                clocks[str(server_of(dataset))] = answer.clock_ahead_s
        if len(asked) < len(datasets):
            yield note("sources", f"--offline: {len(datasets) - len(asked)} sources were not asked.")
        yield from clock_findings(clocks)

    def _served(self) -> Mapping[str, Snapshot]:
        with suppress(ManifestError):
            return {snapshot.dataset.lower(): snapshot for snapshot in read_manifest(self._config.state_dir).snapshots}
        return {}

    def _questions(self, datasets: list[DatasetConfig], served: Mapping[str, Snapshot]) -> list[Question]:
        servers: set[str | None] = {None}
        questions = []
        for dataset in datasets:
            snapshot, server = served.get(dataset.name.lower()), server_of(dataset)
            version = None if snapshot is None else source_version_of(snapshot, dataset, refresh_sql_of(dataset))
            questions.append(
                Question(
                    dataset=dataset,
                    version=version,
                    asks_time=server not in servers,
                    limit_s=self._limit_s,
                    memory_limit_bytes=min(self._config.query.memory_limit_bytes, _MEMORY_BYTES),
                    scratch_bytes=min(self._config.query.temp_directory_limit_bytes, _SCRATCH_BYTES),
                )
            )
            servers.add(server)
        return questions

    def _judged(self, dataset: DatasetConfig, answer: Answer, served: Snapshot | None) -> Iterator[Finding]:
        about = f"dataset {dataset.name}"
        where = f"{self._config.file_of(dataset.yaml_path)}:{dataset.line}: {dataset.yaml_path}"
        is_same = served is not None and served.source == fingerprint(dataset)
        if answer.is_unchanged and served is not None:
            self.known[dataset.name.lower()] = served.columns
            yield ok(about, f"The source answers, and has not changed since {served.created_at}.")
            return
        if answer.columns is not None:
            self.known[dataset.name.lower()] = answer.columns
        (field, sentence) = next(iter(answer.faults), ("", ""))
        if answer.is_hung or answer.is_late:
            yield self._late(about, where, dataset, answer)
        elif field == "from" and sentence.endswith(_TOO_LARGE) and self._is_cut():
            text = f"The source answers. It has more than {_SCRATCH_BYTES // MIB} MiB, so its columns were not read."
            yield note(about, text)
        elif field == "from":
            remedy = f"See {where}.from, its params, and docs/sources/."
            yield error(about, f"The source cannot be read: {sentence}", remedy, shared="The source cannot be read.")
        elif field:
            remedy = f"Correct {where}.{field}, or the source."
            yield error(about, sentence, remedy, shared=f"{field} does not fit the source.")
        elif served is not None and is_same and answer.columns is not None:
            yield self._compared(about, dataset, served, answer.columns)
        else:
            state = "was loaded with other settings" if served is not None else "was never loaded"
            yield ok(about, f"The source answers with {len(answer.columns or ())} columns; the dataset {state}.")

    def _is_cut(self) -> bool:
        return self._config.query.temp_directory_limit_bytes > _SCRATCH_BYTES

    def _late(self, about: str, where: str, dataset: DatasetConfig, answer: Answer) -> Finding:
        limit = f"within {self._limit_s:g} s"
        if answer.is_hung and not answer.is_late:
            text = "The process that read the source died: its library has a defect, or there is not enough memory."
            return error(about, text, f"See {where}, and try another version of its library.")
        if answer.is_hung:
            text = f"The source does not answer {limit}: it hangs."
            return error(about, text, f"Look at its server or its file system, and at {where}.")
        # A silent server of these has a time-out of its own, half as long.
        if answer.is_reached or has_silence_limit(dataset) or dataset.connector in LOCAL_FILES:
            text = f"The source answers, but its columns could not be read {limit}."
            return warning(about, text, "Give it more time: --timeout SECONDS.")
        return error(about, f"The source does not answer {limit}.", f"Look at its server, and at {where}.")

    def _compared(self, about: str, dataset: DatasetConfig, served: Snapshot, columns: tuple[Column, ...]) -> Finding:
        try:
            refuse_changes(dataset.name, served.columns, columns)
        except SchemaChangedError as exc:
            if dataset.on_schema_change == "accept":
                return note(about, "The columns of the source have changed; the next refresh takes the new ones.")
            remedy = "Restore the columns of the source, or set on_schema_change to accept."
            return error(about, str(exc), remedy, shared="The columns of the source have changed.")
        return ok(about, f"The source answers with the {len(columns)} columns that are served.")


def clock_findings(ahead_s: Mapping[str, float]) -> Iterator[Finding]:
    """Yield how our clock compares with those of servers: by how many seconds each is *ahead*."""
    about = "clock"
    off = {server: seconds for server, seconds in ahead_s.items() if abs(seconds) > _CLOCK_S}
    for server, seconds in off.items():
        text = f"The clock of {server} is {abs(seconds):,.0f} s {'ahead of' if seconds > 0 else 'behind'} ours."
        remedy = "Synchronise the clock of this machine (chrony, systemd-timesyncd), or that of the server."
        make = error if abs(seconds) >= _CLOCK_OF_S3_S else warning
        yield make(about, text, f"{remedy} The expiry of keys depends on it.")
    if ahead_s and not off:
        yield ok(about, f"It agrees within {_CLOCK_S:g} s with that of {', '.join(ahead_s)}.")
    elif not ahead_s:
        yield note(about, "There is no HTTP source to compare the clock with.")

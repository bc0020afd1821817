"""
The content of a cluster session for one manifest: one view per configured relation.

The name of a view depends on the files or the dataset version that it reads. A session can therefore contain the views
of several manifests, and a statement reads the versions that it began with, regardless of what is published in the
meantime.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from cluster.gate.binding import Relation
from cluster.protocol import messages
from queryengine.engine import GatedStatement
from queryengine.execution.views import GatedView
from queryengine.manifest import SNAPSHOT_DIRECTORY, Manifest, parquet_file
from runtimeconf.connector import text_of
from runtimeconf.in_place import CSV_OPTIONS, format_of
from runtimeconf.model import DatasetConfig, RuntimeConfig


class Definition(Struct, frozen=True):
    """
    A relation whose columns are not yet known, and the origin of its view: a *source* or a configured *view*.

    A dataset that is not loaded has neither. If the relation *may change*, a recreated view can show other data.
    """

    relation: Relation
    source: Any = None
    view: GatedView | None = None
    may_change: bool = True

    @property
    def is_loaded(self) -> bool:
        """Whether there is a source or view to create the view from."""
        return self.source is not None or self.view is not None


class Definitions:
    """
    The definitions for *config* and *manifest*, `by_name` in lower case. Each definition reads only earlier ones.

    Each of *views* also reads only earlier ones. `digest` is the digest of the configuration, without the manifest.
    """

    def __init__(self, config: RuntimeConfig, manifest: Manifest, views: Sequence[GatedView]) -> None:
        self.by_name: dict[str, Definition] = {}
        self._files = {snapshot.dataset.lower(): snapshot.file for snapshot in manifest.snapshots}
        self._loaded = frozenset(dataset.name.lower() for dataset in config.loaded_datasets)
        self._reads: dict[str, frozenset[str]] = {}  # the datasets that each relation reads
        location = "" if config.snapshots is None else config.snapshots.location
        for dataset in config.datasets:
            self._add_dataset(dataset, location)
        for view in views:
            self._add_view(view)
        self.digest = _digest(
            *([dataset.name, *_identity(dataset)] for dataset in config.datasets),
            *([view.config.name, view.statement.sql] for view in views),
            location,
        )

    def read_the_same(self, statement: GatedStatement, files: Mapping[str, str]) -> bool:
        """Return whether *statement* reads the same data here as over *files*, which are by lower-case dataset name."""
        names = statement.relations | (statement.catalog or frozenset())
        read = frozenset[str]().union(*(self._reads.get(name, frozenset()) for name in names))
        return all(self._files.get(name) == files.get(name) for name in read & self._loaded)

    def _add_dataset(self, dataset: DatasetConfig, location: str) -> None:
        name, file = dataset.name.lower(), self._files.get(dataset.name.lower())
        self._reads[name] = frozenset({name})
        if dataset.is_in_place:
            view, source = _view_name(name, *_identity(dataset)), _files_of(dataset)
        else:
            view = _view_name(name, location, file)
            url = f"{location}/{SNAPSHOT_DIRECTORY}/{parquet_file(file)}" if file else None
            source = None if url is None else _read("parquet", url)
        relation = Relation(name=dataset.name, view=view, is_view=False, columns=())
        self.by_name[name] = Definition(relation, source=source, may_change=dataset.is_in_place)

    def _add_view(self, view: GatedView) -> None:
        name = view.config.name.lower()
        needs = sorted(view.statement.relations | (view.statement.catalog or frozenset()))
        self._reads[name] = frozenset[str]().union(*(self._reads.get(one, frozenset()) for one in needs))
        read = [self.by_name[one].relation.view for one in needs if one in self.by_name]
        relation = Relation(
            name=view.config.name, view=_view_name(name, view.statement.sql, *read), is_view=True, columns=()
        )
        self.by_name[name] = Definition(relation, view=view)


def _identity(dataset: DatasetConfig) -> Iterable[object]:
    """Return values that identify the data of a dataset read in place; nothing for others, with named versions."""
    return (dataset.connector, dataset.location, sorted(dataset.params.items())) if dataset.is_in_place else ()


def _files_of(dataset: DatasetConfig) -> Any:
    """Return the relation that reads a dataset's files in place."""
    source = str(format_of(dataset.connector, dataset.location, dataset.params))
    options = {"header": "true", "inferSchema": "true"} if source == "csv" else {}
    options |= {CSV_OPTIONS[name]: text_of(value) for name, value in dataset.params.items() if name in CSV_OPTIONS}
    # A plain path may refer to a different file system on the cluster.
    url = dataset.location if "://" in dataset.location else f"file://{dataset.location}"
    return _read(source, url, options)


def _read(source: str, url: str, options: Mapping[str, str] | None = None) -> Any:
    read = messages.Read.DataSource(format=source, options=options or {}, paths=[url])
    return messages.Relation(common=messages.RelationCommon(plan_id=0), read=messages.Read(data_source=read))


def _view_name(name: str, *content: object) -> str:
    # Clusters read a dot in the name of a temporary view as the end of a schema.
    return f"v{_digest(name, *content)[:16]}_{name.replace('.', '_')}"


def _digest(*content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()

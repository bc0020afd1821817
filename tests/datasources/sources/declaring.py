"""Datasets declared in a YAML of their own, loaded into a state directory beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasources.deadline import Deadline
from datasources.snapshots.snapshot import Order
from datasources.sources.registry import source_of
from queryengine.manifest import Snapshot
from runtimeconf.loader import load
from runtimeconf.model import DatasetConfig, RuntimeConfig
from tests.datasources.support import builder, deadline, new_load, refusal, rows


def configured(directory: Path, source: str, params: Mapping[str, str], **acceleration: Any) -> RuntimeConfig:
    """Load a YAML in *directory* that declares the dataset d."""
    dataset: dict[str, Any] = {"from": source, "name": "d", "params": dict(params)}
    if not params:
        del dataset["params"]
    if acceleration:
        dataset["acceleration"] = acceleration
    document = {"runtime": {"state_dir": "state", "query": {"memory_limit": "256MiB"}}, "datasets": [dataset]}
    file = directory / "runtime.yaml"
    file.write_text(json.dumps(document))
    file.chmod(0o600)
    return load(file, {})


def declared(directory: Path, source: str, params: Mapping[str, str]) -> DatasetConfig:
    (dataset,) = configured(directory, source, params).datasets
    return dataset


def built(directory: Path, dataset: DatasetConfig, limit: Deadline | None = None) -> Snapshot:
    return builder(directory).build(Order(dataset), limit or deadline())


def loaded(directory: Path, source: str, **params: str) -> list[tuple[Any, ...]]:
    return rows(directory, built(directory, declared(directory, source, params)))


def refused(directory: Path, source: str, **params: str) -> str:
    """As `support.refusal`."""
    return refusal(directory, declared(directory, source, params))


def version_of(directory: Path, source: str, **params: str) -> str | None:
    with source_of(declared(directory, source, params)).open(new_load(directory)) as scan:
        return scan.version


def has_changed(directory: Path, version: str, source: str, **params: str) -> bool:
    return source_of(declared(directory, source, params)).has_changed(version, new_load(directory))

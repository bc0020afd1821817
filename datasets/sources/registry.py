"""
Which class reads the datasets of which connector.

A connector's module is imported when it is first used: several need a library that is installed for them alone.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module

from datasets.sources.source import Source
from runtimeconf.model import DatasetConfig

#: For each connector of `runtimeconf.connectors`, the module and the class, which is called with the dataset.
CLASSES: Mapping[str, tuple[str, str]] = {
    "delta": ("datasets.sources.delta", "DeltaSource"),
    "delta_lake": ("datasets.sources.delta", "DeltaSource"),
    "duckdb": ("datasets.sources.duckdb_file", "DuckdbFileSource"),
    "file": ("datasets.sources.files", "FileSource"),
    "flightsql": ("datasets.sources.flightsql", "FlightSqlSource"),
    "http": ("datasets.sources.http", "HttpSource"),
    "https": ("datasets.sources.http", "HttpSource"),
    "iceberg": ("datasets.sources.iceberg", "IcebergSource"),
    "postgres": ("datasets.sources.postgres", "PostgresSource"),
    "s3": ("datasets.sources.s3", "S3Source"),
    "sqlite": ("datasets.sources.sqlite", "SqliteSource"),
}


def import_source(connector: str) -> bool:
    """Import what reads the datasets of *connector*, and the library that it needs; say whether that was to do."""
    module, _ = CLASSES[connector]
    is_new = module not in sys.modules
    import_module(module)
    return is_new


def source_of(dataset: DatasetConfig) -> Source:
    """Return the source that `from:` names."""
    module, name = CLASSES[dataset.connector]
    source: Source = getattr(import_module(module), name)(dataset)
    return source

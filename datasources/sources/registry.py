"""
The class for each connector.

The module of a connector is imported on first use: several need an optional library.
"""

import sys
from collections.abc import Mapping
from importlib import import_module

from datasources.sources.source import Source
from runtimeconf.model import DatasetConfig

#: The module and the class of each connector of `runtimeconf.connectors`, and of materialized views. The class takes
#: the dataset.
CLASSES: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("abfs", "abfss", "az"), ("datasources.sources.azure", "AzureSource")),
    **dict.fromkeys(("gs", "gcs"), ("datasources.sources.gcs", "GcsSource")),
    "delta": ("datasources.sources.delta", "DeltaSource"),
    "delta_lake": ("datasources.sources.delta", "DeltaSource"),
    "duckdb": ("datasources.sources.duckdb_file", "DuckdbFileSource"),
    "file": ("datasources.sources.files", "FileSource"),
    "flightsql": ("datasources.sources.flightsql", "FlightSqlSource"),
    "graphql": ("datasources.sources.graphql", "GraphqlSource"),
    "ftp": ("datasources.sources.ftp", "FtpSource"),
    "sftp": ("datasources.sources.sftp", "SftpSource"),
    "http": ("datasources.sources.http", "HttpSource"),
    "https": ("datasources.sources.http", "HttpSource"),
    "iceberg": ("datasources.sources.iceberg", "IcebergSource"),
    "mssql": ("datasources.sources.mssql", "MssqlSource"),
    "mysql": ("datasources.sources.mysql", "MysqlSource"),
    "postgres": ("datasources.sources.postgres", "PostgresSource"),
    "s3": ("datasources.sources.s3", "S3Source"),
    "spark": ("cluster.source", "SparkSource"),
    "sqlite": ("datasources.sources.sqlite", "SqliteSource"),
    "view": ("datasources.sources.view", "ViewSource"),
}


def import_source(connector: str) -> bool:
    """Import the module of *connector* and its library; return whether they were not imported yet."""
    module, _ = CLASSES[connector]
    is_new = module not in sys.modules
    import_module(module)
    return is_new


def source_of(dataset: DatasetConfig) -> Source:
    """Return the source that `from:` names."""
    module, name = CLASSES[dataset.connector]
    source: Source = getattr(import_module(module), name)(dataset)
    return source

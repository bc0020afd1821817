"""
The connectors that `from:` of a dataset may name, with their locations and parameters.

This package knows how a connector is written in the YAML; `datasources.sources` reads its data.
"""

from collections.abc import Mapping

from runtimeconf.connectors.connector import Connector, Param
from runtimeconf.connectors.databases import DUCKDB, FLIGHTSQL, POSTGRES, SQLITE
from runtimeconf.connectors.files import FILE
from runtimeconf.connectors.http import HTTP, HTTPS
from runtimeconf.connectors.lakes import DELTA, DELTA_LAKE, ICEBERG
from runtimeconf.connectors.s3 import S3

__all__ = ["ABSENT", "CONNECTORS", "VIEW", "Connector", "Param", "all_params", "secret_params"]

#: By the text before the colon of `from:`.
CONNECTORS: Mapping[str, Connector] = {
    connector.name: connector
    for connector in (FILE, HTTP, HTTPS, S3, POSTGRES, SQLITE, DUCKDB, FLIGHTSQL, DELTA, DELTA_LAKE, ICEBERG)
}

#: The connector of materialized views, which `from:` cannot name.
VIEW = "view"

#: Connectors that people look for but that do not exist, with the reason and an alternative.
ABSENT: Mapping[str, str] = {
    "mysql": "no ADBC driver for MySQL can be installed by pip; export the table to Parquet and write file:",
}


def secret_params(connector: str) -> frozenset[str]:
    """Return the names of the parameters of *connector* that are secret. A materialized view has no parameters."""
    params = () if connector == VIEW else CONNECTORS[connector].params
    return frozenset(param.name for param in params if param.is_secret)


def all_params() -> tuple[Param, ...]:
    """Return every parameter of every connector. Connectors that share a parameter share its declaration."""
    return tuple({param.name: param for connector in CONNECTORS.values() for param in connector.params}.values())

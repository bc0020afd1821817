"""
The connectors that `from:` of a dataset may name, with their locations and parameters.

This package knows how a connector is written in the YAML; `datasources.sources` reads its data.
"""

from collections.abc import Mapping

from runtimeconf.connectors.azure import ABFS, ABFSS, AZ
from runtimeconf.connectors.connector import Connector, Param
from runtimeconf.connectors.databases import DUCKDB, FLIGHTSQL, MYSQL, POSTGRES, SQLITE
from runtimeconf.connectors.file_servers import FTP, SFTP
from runtimeconf.connectors.files import FILE
from runtimeconf.connectors.gcs import GCS, GS
from runtimeconf.connectors.graphql import GRAPHQL
from runtimeconf.connectors.http import HTTP, HTTPS
from runtimeconf.connectors.lakes import DELTA, DELTA_LAKE, ICEBERG
from runtimeconf.connectors.mssql import MSSQL
from runtimeconf.connectors.s3 import S3
from runtimeconf.connectors.spark import SPARK

__all__ = ["ABSENT", "CONNECTORS", "VIEW", "Connector", "Param", "all_params", "secret_params"]

#: By the text before the colon of `from:`.
CONNECTORS: Mapping[str, Connector] = {
    connector.name: connector
    for connector in (
        *(FILE, HTTP, HTTPS, GRAPHQL, FTP, SFTP, S3, GS, GCS, ABFS, ABFSS, AZ),
        *(POSTGRES, MYSQL, MSSQL, SQLITE, DUCKDB, FLIGHTSQL, SPARK, DELTA, DELTA_LAKE, ICEBERG),
    )
}

#: The connector of materialized views, which `from:` cannot name.
VIEW = "view"

#: Connectors that people look for but that do not exist, with the reason and an alternative.
ABSENT: Mapping[str, str] = {
    "mariadb": "it speaks the protocol of MySQL: write mysql:",
    **dict.fromkeys(("dremio", "spiceai", "spice.ai"), "it speaks Flight SQL: write flightsql:"),
    **dict.fromkeys(("smb", "nfs"), "copy the files to a disk, and write file:"),
    **dict.fromkeys(("databricks", "unity_catalog"), "read the files of the table: write delta_lake:"),
    **dict.fromkeys(("glue", "hadoop_catalog"), "read the files of the table: write iceberg:"),
    **dict.fromkeys(
        ("clickhouse", "dynamodb", "elasticsearch", "mongodb", "odbc", "oracle", "redshift", "scylladb"),
        "export the table to Parquet, and write file: or s3:",
    ),
    **dict.fromkeys(("bigquery", "snowflake"), "export the table to Parquet, and write file: or s3:"),
    **dict.fromkeys(("debezium", "kafka"), "let a consumer write files, and append from those"),
    **dict.fromkeys(("git", "github", "imap", "sharepoint"), "let a job write what you need to files, and write file:"),
    **dict.fromkeys(("memory", "sink"), "callers cannot write to the runtime"),
}


def secret_params(connector: str) -> frozenset[str]:
    """Return the names of the parameters of *connector* that are secret. A materialized view has no parameters."""
    params = () if connector == VIEW else CONNECTORS[connector].params
    return frozenset(param.name for param in params if param.is_secret)


def all_params() -> tuple[Param, ...]:
    """Return every parameter of every connector. Connectors that share a parameter share its declaration."""
    return tuple({param.name: param for connector in CONNECTORS.values() for param in connector.params}.values())

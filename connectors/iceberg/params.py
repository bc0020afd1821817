"""The parameters of `iceberg:`: an Apache Iceberg table on disk or in S3, optionally named by a catalog."""

import re
from pathlib import Path
from typing import Annotated

from connectors.lake_params import LAKE_SIGNER, locate_lake
from runtimeconf.connector import Connector, Package, Param
from runtimeconf.fields import PathField, TextField
from runtimeconf.s3_params import S3Params


class IcebergParams(S3Params):
    """The catalog that names the table, if any, and the bucket."""

    iceberg_catalog: Annotated[Path | None, Param(PathField("the path of a SQLite file"), is_path=True)] = None
    iceberg_catalog_name: Annotated[str | None, Param(TextField("a catalog name", max_length=255))] = None
    iceberg_table: Annotated[str | None, Param(TextField("a table such as sales.orders", max_length=511))] = None

    def problem(self, location: str) -> str | None:
        """Refuse a catalog without a table, and a table without a catalog; see `Params.problem`."""
        if (self.iceberg_catalog is not None) != (self.iceberg_table is not None):
            return "has only one of iceberg_catalog and iceberg_table"
        if self.iceberg_catalog_name is not None and self.iceberg_catalog is None:
            return "has iceberg_catalog_name, but no iceberg_catalog"
        if self.iceberg_table is not None and re.fullmatch(r".+\.[^.]+", self.iceberg_table) is None:
            return "has an iceberg_table that is not a namespace, a dot and a table name"
        return super().problem(location)


ICEBERG = Connector(
    expected="the directory or the metadata file of a table, or s3://bucket/prefix; with a catalog, its warehouse",
    locate=locate_lake,
    params=IcebergParams,
    source="connectors.iceberg.source:IcebergSource",
    packages=(Package("pyiceberg", "pyiceberg~=0.12"), LAKE_SIGNER),
)

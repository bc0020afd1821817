"""The parameters of `duckdb:`: a table in a DuckDB file."""

from functools import partial
from pathlib import Path
from typing import Annotated

from runtimeconf.connector import Connector, Param, Params
from runtimeconf.fields import PathField
from runtimeconf.tables import locate_table


class DuckdbParams(Params):
    """The file."""

    duckdb_open: Annotated[Path, Param(PathField("the path of a database file"), is_path=True)]


DUCKDB = Connector(
    expected="the name of a table or view, such as schema.table",
    locate=partial(locate_table, 3, "set the path of the file in params.duckdb_open"),
    params=DuckdbParams,
    source="connectors.duckdb.source:DuckdbFileSource",
    is_local=True,
)

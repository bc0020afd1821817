"""The parameters of `sqlite:`: a table in a SQLite file."""

from functools import partial
from typing import Annotated

from runtimeconf.connector import Connector, Package, Param, Params
from runtimeconf.fields import ChoiceField, TextField
from runtimeconf.files import locate_path


class SqliteParams(Params):
    """The table, and whether its values have the declared types."""

    sqlite_table: Annotated[str, Param(TextField("the name of a table or view"))]
    sqlite_types: Annotated[str, Param(ChoiceField("declared", "text"))] = "declared"


SQLITE = Connector(
    expected="the path of a database file",
    locate=partial(locate_path, "//"),
    params=SqliteParams,
    source="connectors.sqlite.source:SqliteSource",
    packages=(
        Package("adbc_driver_sqlite", "adbc-driver-sqlite~=1.13"),
        Package("adbc_driver_manager", "adbc-driver-manager~=1.13"),
    ),
    is_local=True,
)

"""The parameters of `postgres:`: a table in PostgreSQL."""

from functools import partial
from typing import Annotated

from runtimeconf.addresses import parse_host
from runtimeconf.connector import Connector, Package, Param, Params
from runtimeconf.fields import ChoiceField, InvalidValueError, ParsedField, TextField
from runtimeconf.network import PORT, RootCertificateFile, parse_password
from runtimeconf.tables import locate_table


def _parse_server(text: str) -> str:
    """Return a host in lower case, or a Unix socket directory unchanged."""
    if text.startswith("/"):
        if not text.isprintable() or "," in text:
            raise InvalidValueError("a comma would add a second host")
        return text
    return parse_host(text)


_SERVER = ParsedField(
    "a host name, an IP address, or the absolute path of the server's socket directory", _parse_server
)


class PostgresParams(Params):
    """The server and the login."""

    pg_host: Annotated[str, Param(_SERVER, is_hidden=True)]
    pg_port: Annotated[int, Param(PORT)] = 5432
    pg_db: Annotated[str, Param(TextField("the name of a database", max_length=63))]
    pg_user: Annotated[str, Param(TextField("a user name", max_length=63))]
    pg_pass: Annotated[str, Param(ParsedField("a password", parse_password), is_secret=True)] = ""
    #: As in upstream, unencrypted connections and unverified servers must be requested explicitly.
    pg_sslmode: Annotated[str, Param(ChoiceField("disable", "prefer", "require", "verify-ca", "verify-full"))] = (
        "verify-full"
    )
    pg_sslrootcert: RootCertificateFile = None


POSTGRES = Connector(
    expected="the name of a table or view, such as schema.table",
    locate=partial(locate_table, 2, "set these in params.pg_host, pg_port, pg_db, pg_user and pg_pass"),
    params=PostgresParams,
    source="connectors.postgres.source:PostgresSource",
    packages=(
        Package("adbc_driver_postgresql", "adbc-driver-postgresql~=1.13"),
        Package("adbc_driver_manager", "adbc-driver-manager~=1.13"),
    ),
)

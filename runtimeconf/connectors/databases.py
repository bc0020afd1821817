"""The connectors that read a table of a database: `postgres:`, `mysql:`, `sqlite:`, `duckdb:`, `flightsql:`."""

from collections.abc import Mapping
from functools import partial
from urllib.parse import urlsplit

from runtimeconf.addresses import parse_host
from runtimeconf.connectors.connector import Connector, Package, Param
from runtimeconf.connectors.downloads import ALLOW_HTTP, PORT, check_credentials, parse_password, parse_token
from runtimeconf.connectors.files import locate_path
from runtimeconf.connectors.tables import locate_table, table_parts
from runtimeconf.fields import ChoiceField, InvalidValueError, ParsedField, PathField, TextField

#: Every ADBC driver is loaded by this one.
_MANAGER = Package("adbc_driver_manager", "adbc-driver-manager~=1.13")

_FLIGHT_SCHEMES = frozenset({"grpc", "grpc+tcp", "grpc+tls", "http", "https"})


def _parse_server(text: str) -> str:
    """Return a host in lower case, the directory of a Unix socket unchanged."""
    if text.startswith("/"):
        if not text.isprintable() or "," in text:
            raise InvalidValueError("a comma would name a second host")
        return text
    return parse_host(text)


def _parse_endpoint(text: str) -> str:
    """Return the URL of a Flight SQL server unchanged: scheme, host and port only."""
    url = urlsplit(text)
    if "@" in url.netloc:
        raise InvalidValueError("put user and password into flightsql_username and flightsql_password")
    try:
        is_complete = url.scheme in _FLIGHT_SCHEMES and url.hostname and url.port
    except ValueError:
        is_complete = False
    if not is_complete or url.path.strip("/") or url.query or url.fragment:
        raise InvalidValueError
    parse_host(url.hostname or "")
    return text


POSTGRES = Connector(
    name="postgres",
    expected="the name of a table or view, such as schema.table",
    locate=partial(locate_table, 2, "pg_host, pg_port, pg_db, pg_user and pg_pass of params hold that"),
    params=(
        Param(
            "pg_host",
            ParsedField(
                "a host name, an IP address, or the absolute path of the directory with the server's socket",
                _parse_server,
            ),
            is_required=True,
            is_hidden=True,
        ),
        Param("pg_port", PORT),
        Param("pg_db", TextField("the name of a database", max_length=63), is_required=True),
        Param("pg_user", TextField("the name of a user", max_length=63), is_required=True),
        Param("pg_pass", ParsedField("a password", parse_password), is_secret=True),
        Param("pg_sslmode", ChoiceField("disable", "prefer", "require", "verify-ca", "verify-full")),
        Param("pg_sslrootcert", PathField("the path of a PEM file of certificates"), is_path=True),
    ),
    packages=(Package("adbc_driver_postgresql", "adbc-driver-postgresql~=1.13"), _MANAGER),
)


def _check_mysql(location: str, params: Mapping[str, str]) -> str | None:
    if len(table_parts(location)) == 1 and "mysql_db" not in params:
        return "lacks the field mysql_db, the name of a database: from: names the table only"
    if params.get("mysql_sslmode") == "disabled" and "mysql_sslrootcert" in params:
        return "has mysql_sslrootcert, but mysql_sslmode: disabled does without TLS"
    return None


MYSQL = Connector(
    name="mysql",
    expected="the name of a table or view, such as database.table",
    locate=partial(
        locate_table, 2, "mysql_host, mysql_tcp_port, mysql_db, mysql_user and mysql_pass of params hold that"
    ),
    params=(
        Param("mysql_host", ParsedField("a host name or an IP address", parse_host), is_required=True, is_hidden=True),
        Param("mysql_tcp_port", PORT),
        Param("mysql_db", TextField("the name of a database", max_length=64)),
        Param("mysql_user", TextField("the name of a user", max_length=80), is_required=True),
        Param("mysql_pass", ParsedField("a password", parse_password), is_secret=True),
        Param("mysql_sslmode", ChoiceField("disabled", "preferred", "required")),
        Param("mysql_sslrootcert", PathField("the path of a PEM file of certificates"), is_path=True),
    ),
    check=_check_mysql,
    # `cryptography` is for passwords by caching_sha2_password, the default of MySQL, over connections without TLS.
    packages=(Package("pymysql", "pymysql~=1.2"), Package("cryptography", "cryptography>=46.0.7")),
)

SQLITE = Connector(
    name="sqlite",
    expected="the path of a database file",
    locate=partial(locate_path, "//"),
    params=(
        Param("sqlite_table", TextField("the name of a table or view"), is_required=True),
        Param("sqlite_types", ChoiceField("declared", "text")),
    ),
    packages=(Package("adbc_driver_sqlite", "adbc-driver-sqlite~=1.13"), _MANAGER),
)

DUCKDB = Connector(
    name="duckdb",
    expected="the name of a table or view, such as schema.table",
    locate=partial(locate_table, 3, "duckdb_open of params holds the path of the file"),
    params=(Param("duckdb_open", PathField("the path of a database file"), is_required=True, is_path=True),),
)


def _check_flightsql(_location: str, params: Mapping[str, str]) -> str | None:
    if "flightsql_token" in params and ("flightsql_username" in params or "flightsql_password" in params):
        return "has both flightsql_token and flightsql_username or flightsql_password: keep one"
    if ("flightsql_username" in params) != ("flightsql_password" in params):
        return "has only one of flightsql_username and flightsql_password"
    is_plain = params.get("flightsql_endpoint", "").startswith(("grpc:", "grpc+tcp:", "http:"))
    if is_plain and "flightsql_tls_root_certificate_file" in params:
        return "has flightsql_tls_root_certificate_file, but flightsql_endpoint has no TLS"
    credentials = ("flightsql_token", "flightsql_username", "flightsql_password")
    return check_credentials(params.get("flightsql_endpoint", ""), "a flightsql_endpoint", params, credentials)


FLIGHTSQL = Connector(
    name="flightsql",
    expected="the name of a table or view, such as catalog.schema.table",
    locate=partial(locate_table, 3, "flightsql_endpoint of params holds that"),
    params=(
        Param(
            "flightsql_endpoint",
            ParsedField(
                "a URL such as grpc+tls://host:50051, grpc://host:50051, https://host:443 or http://host:80",
                _parse_endpoint,
            ),
            is_required=True,
            is_hidden=True,
        ),
        Param("flightsql_username", TextField("the name of a user")),
        Param("flightsql_password", ParsedField("a password", parse_password), is_secret=True),
        Param("flightsql_token", ParsedField("a bearer token or an API key", parse_token), is_secret=True),
        Param("flightsql_tls_root_certificate_file", PathField("the path of a PEM file of certificates"), is_path=True),
        ALLOW_HTTP,
    ),
    check=_check_flightsql,
    packages=(Package("adbc_driver_flightsql", "adbc-driver-flightsql~=1.13"), _MANAGER),
)

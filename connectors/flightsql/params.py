"""The parameters of `flightsql:`: a table on an Arrow Flight SQL server."""

from functools import partial
from typing import Annotated
from urllib.parse import urlsplit

from runtimeconf.addresses import parse_host
from runtimeconf.connector import Connector, Package, Param, Params
from runtimeconf.fields import InvalidValueError, ParsedField, TextField
from runtimeconf.network import AllowHttp, RootCertificateFile, check_credentials, parse_password, parse_token
from runtimeconf.tables import locate_table

_FLIGHT_SCHEMES = frozenset({"grpc", "grpc+tcp", "grpc+tls", "http", "https"})


def _parse_endpoint(text: str) -> str:
    """Return the URL of a Flight SQL server unchanged: scheme, host and port only."""
    url = urlsplit(text)
    if "@" in url.netloc:
        raise InvalidValueError("put the user and password in flightsql_username and flightsql_password")
    try:
        is_complete = url.scheme in _FLIGHT_SCHEMES and url.hostname and url.port
    except ValueError:
        is_complete = False
    if not is_complete or url.path.strip("/") or url.query or url.fragment:
        raise InvalidValueError
    parse_host(url.hostname or "")
    return text


_ENDPOINT = ParsedField(
    "a URL such as grpc+tls://host:50051, grpc://host:50051, https://host:443 or http://host:80", _parse_endpoint
)


class FlightSqlParams(Params):
    """The server's address and the credentials."""

    flightsql_endpoint: Annotated[str, Param(_ENDPOINT, is_hidden=True)]
    flightsql_username: Annotated[str | None, Param(TextField("a user name"))] = None
    flightsql_password: Annotated[str | None, Param(ParsedField("a password", parse_password), is_secret=True)] = None
    flightsql_token: Annotated[
        str | None, Param(ParsedField("a bearer token or an API key", parse_token), is_secret=True)
    ] = None
    flightsql_tls_root_certificate_file: RootCertificateFile = None
    allow_http: AllowHttp = False

    @property
    def credentials(self) -> dict[str, str]:
        """The given credentials by name."""
        names = ("flightsql_token", "flightsql_username", "flightsql_password")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def problem(self, location: str) -> str | None:
        """Refuse two kinds of credentials, and any credentials without TLS; see `Params.problem`."""
        given = self.credentials.keys()
        if "flightsql_token" in given and len(given) > 1:
            return "has both flightsql_token and flightsql_username or flightsql_password: remove one"
        if ("flightsql_username" in given) != ("flightsql_password" in given):
            return "has only one of flightsql_username and flightsql_password"
        is_plain = self.flightsql_endpoint.startswith(("grpc:", "grpc+tcp:", "http:"))
        if is_plain and self.flightsql_tls_root_certificate_file is not None:
            return "has flightsql_tls_root_certificate_file, but flightsql_endpoint has no TLS"
        return check_credentials(self.flightsql_endpoint, "a flightsql_endpoint", [*given], allow_http=self.allow_http)


FLIGHTSQL = Connector(
    expected="the name of a table or view, such as catalog.schema.table",
    locate=partial(locate_table, 3, "set it in params.flightsql_endpoint"),
    params=FlightSqlParams,
    source="connectors.flightsql.source:FlightSqlSource",
    packages=(
        Package("adbc_driver_flightsql", "adbc-driver-flightsql~=1.13"),
        Package("adbc_driver_manager", "adbc-driver-manager~=1.13"),
    ),
)

"""The parameters of `graphql:`: a list in a GraphQL server's response to one query."""

import re
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from runtimeconf.connector import Connector, Package, Param, Params
from runtimeconf.fields import InvalidValueError, ParsedField
from runtimeconf.network import (
    DEFAULT_CLIENT_TIMEOUT_S,
    AllowHttp,
    ClientTimeout,
    MaxDownloadSize,
    RootCertificateFile,
    check_credentials,
    parse_origin,
    parse_password,
    parse_token,
)

_MAX_QUERY_LENGTH = 100_000


def _parse_pointer(text: str) -> str:
    """Return a JSON pointer (RFC 6901)."""
    if re.fullmatch(r"(?:/(?:[^/~]|~[01])*)+", text) is None:
        raise InvalidValueError("a pointer must begin with a slash, and ~ must be followed by 0 or 1")
    return text


def _parse_query(text: str) -> str:
    if not text.strip() or len(text) > _MAX_QUERY_LENGTH:
        raise InvalidValueError(f"not blank, and at most {_MAX_QUERY_LENGTH:,} characters")
    return text


def _locate(_name: str, text: str, _directory: Path) -> str:
    origin, path = parse_origin(text)
    if "?" in path or "#" in path:
        raise InvalidValueError("remove the query after the path: anyone who can list the datasets can see it")
    return origin + quote(path or "/", safe="%/:@!$&'()*+,;=~-._")


def _parse_depth(text: str) -> int:
    if re.fullmatch("[0-9]|10", text) is None:
        raise InvalidValueError
    return int(text)


_DEPTH = ParsedField("a whole number from 0 to 10", _parse_depth)


class GraphqlParams(Params):
    """The query, the position of the rows in the response, and the credentials."""

    graphql_query: Annotated[str, Param(ParsedField("a query", _parse_query), is_code=True)]
    json_pointer: Annotated[
        str, Param(ParsedField("a JSON pointer to the list, such as /data/orders/nodes", _parse_pointer))
    ]
    unnest_depth: Annotated[int, Param(_DEPTH)] = 0
    graphql_auth_token: Annotated[str | None, Param(ParsedField("a bearer token", parse_token), is_secret=True)] = None
    graphql_auth_user: Annotated[str | None, Param(ParsedField("a user name", parse_password))] = None
    graphql_auth_pass: Annotated[str | None, Param(ParsedField("a password", parse_password), is_secret=True)] = None
    graphql_tls_root_certificate_file: RootCertificateFile = None
    allow_http: AllowHttp = False
    client_timeout: ClientTimeout = DEFAULT_CLIENT_TIMEOUT_S
    max_download_size: MaxDownloadSize = None

    @property
    def pointer(self) -> list[str]:
        """The names and indexes in `json_pointer`."""
        return [part.replace("~1", "/").replace("~0", "~") for part in self.json_pointer.split("/")[1:]]

    def problem(self, location: str) -> str | None:
        """Refuse several credentials, and any credentials without TLS; see `Params.problem`."""
        user = self.graphql_auth_user
        if (user is not None) != (self.graphql_auth_pass is not None):
            return "has only one of graphql_auth_user and graphql_auth_pass"
        if self.graphql_auth_token is not None and user is not None:
            return "has both graphql_auth_token and graphql_auth_user: remove one"
        if ":" in (user or ""):
            return "has a colon in graphql_auth_user, which Basic authentication cannot send"
        credentials = ("graphql_auth_token", "graphql_auth_user", "graphql_auth_pass")
        sent = [name for name in credentials if getattr(self, name) is not None]
        return check_credentials(location, "a URL", sent, allow_http=self.allow_http)


GRAPHQL = Connector(
    expected="the URL of a server, such as https://host/graphql",
    locate=_locate,
    params=GraphqlParams,
    source="connectors.graphql.source:GraphqlSource",
    packages=(Package("graphql", "graphql-core~=3.3"),),
)

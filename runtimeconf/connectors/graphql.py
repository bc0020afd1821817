"""`graphql:`: a list in the answer of a GraphQL server to one query."""

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from runtimeconf.connectors.connector import Connector, Package, Param
from runtimeconf.connectors.downloads import (
    ALLOW_HTTP,
    CLIENT_TIMEOUT,
    MAX_DOWNLOAD_SIZE,
    check_credentials,
    parse_origin,
    parse_password,
    parse_token,
)
from runtimeconf.fields import ChoiceField, InvalidValueError, ParsedField, PathField

_MAX_QUERY_LENGTH = 100_000


def pointer_parts(text: str) -> list[str]:
    """
    Return the names and positions in a JSON pointer (RFC 6901).

    Raises:
        InvalidValueError: *text* is not one.
    """
    if re.fullmatch(r"(?:/(?:[^/~]|~[01])*)+", text) is None:
        raise InvalidValueError("a pointer begins with a slash, and ~ stands before 0 or 1 only")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _parse_pointer(text: str) -> str:
    pointer_parts(text)
    return text


def _parse_query(text: str) -> str:
    if not text.strip() or len(text) > _MAX_QUERY_LENGTH:
        raise InvalidValueError(f"not blank, and at most {_MAX_QUERY_LENGTH:,} characters")
    return text


def _locate(text: str, _directory: Path) -> str:
    origin, path = parse_origin(text)
    if "?" in path or "#" in path:
        raise InvalidValueError("no query after the path: everybody who may ask for the datasets sees this")
    return origin + quote(path or "/", safe="%/:@!$&'()*+,;=~-._")


def _check(location: str, params: Mapping[str, str]) -> str | None:
    if ("graphql_auth_user" in params) != ("graphql_auth_pass" in params):
        return "has only one of graphql_auth_user and graphql_auth_pass"
    if "graphql_auth_token" in params and "graphql_auth_user" in params:
        return "has both graphql_auth_token and graphql_auth_user: keep one"
    if ":" in params.get("graphql_auth_user", ""):
        return "has a colon in graphql_auth_user, which Basic authentication cannot send"
    credentials = ("graphql_auth_token", "graphql_auth_user", "graphql_auth_pass")
    return check_credentials(location, "a URL", params, credentials)


GRAPHQL = Connector(
    name="graphql",
    expected="the URL of a server, such as https://host/graphql",
    locate=_locate,
    params=(
        Param("graphql_query", ParsedField("a query", _parse_query), is_required=True, is_code=True),
        Param(
            "json_pointer",
            ParsedField("a JSON pointer to the list, such as /data/orders/nodes", _parse_pointer),
            is_required=True,
        ),
        Param("unnest_depth", ChoiceField(*map(str, range(11)))),
        Param("graphql_auth_token", ParsedField("a bearer token", parse_token), is_secret=True),
        Param("graphql_auth_user", ParsedField("the name of a user", parse_password)),
        Param("graphql_auth_pass", ParsedField("a password", parse_password), is_secret=True),
        Param("graphql_tls_root_certificate_file", PathField("the path of a PEM file of certificates"), is_path=True),
        ALLOW_HTTP,
        CLIENT_TIMEOUT,
        MAX_DOWNLOAD_SIZE,
    ),
    check=_check,
    packages=(Package("graphql", "graphql-core~=3.3"),),
)

"""`http:` and `https:`: a file of a web server."""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from urllib.parse import quote

from runtimeconf.connectors.connector import Connector, Param
from runtimeconf.connectors.downloads import (
    ALLOW_HTTP,
    CLIENT_TIMEOUT,
    MAX_DOWNLOAD_SIZE,
    PORT,
    check_credentials,
    parse_origin,
    parse_password,
    parse_token,
)
from runtimeconf.connectors.file_formats import EXCEL, FILE_PARAMS, check_files
from runtimeconf.fields import InvalidValueError, ParsedField, PathField

#: A field name (RFC 9110, 5.1), a colon, and a value of printable ASCII.
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)[ \t]*")

#: Headers that the runtime sets: for the connection, the length of the body or conditional requests.
_OWN_HEADERS = frozenset(
    {
        *("accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "range", "te", "trailer"),
        *("if-match", "if-modified-since", "if-none-match", "if-range", "if-unmodified-since"),
        *("proxy-authorization", "proxy-connection", "transfer-encoding", "upgrade"),
    }
)

#: Characters that need no escape in a path (RFC 3986, 3.3) or a query; `%` is assumed to begin an escape.
_PLAIN_IN_PATH = "%/:@!$&'()*+,;=~-._"
_PLAIN_IN_QUERY = _PLAIN_IN_PATH + "?"

_MAX_LENGTH = 8192


def parse_headers(text: str) -> list[tuple[str, str]]:
    """
    Return the headers in *text*, one per line.

    Raises:
        InvalidValueError: A line is not a header, or a header that the runtime sets itself.
    """
    headers = []
    for line in filter(None, map(str.strip, text.splitlines())):
        match = _HEADER.fullmatch(line)
        if match is None:
            raise InvalidValueError("a line must be a name, a colon and a value of printable ASCII")
        if match[1].lower() in _OWN_HEADERS:
            raise InvalidValueError(f"{match[1]} is set by the runtime itself")
        headers.append((match[1], match[2]))
    return headers


def _parse_headers_text(text: str) -> str:
    """Return the text of headers unchanged."""
    if not parse_headers(text):
        raise InvalidValueError("it is blank")
    if len(text) > _MAX_LENGTH:
        raise InvalidValueError(f"it is longer than {_MAX_LENGTH:,} characters")
    return text


def _parse_query(text: str) -> str:
    """Return the query of a URL; characters that a URL cannot hold are escaped."""
    query = text.removeprefix("?")
    if not query or not query.isprintable() or "#" in query or len(query) > _MAX_LENGTH:
        raise InvalidValueError(f"printable, without #, at most {_MAX_LENGTH:,} characters")
    return quote(query, safe=_PLAIN_IN_QUERY)


def _locate(scheme: str, text: str, _directory: Path) -> str:
    origin, path = parse_origin(f"{scheme}:{text}")
    if "?" in path or "#" in path:
        raise InvalidValueError("everybody who may ask for the datasets sees this: http_query of params takes a query")
    return origin + quote(path or "/", safe=_PLAIN_IN_PATH)


def _check(location: str, params: Mapping[str, str]) -> str | None:
    if "http_password" in params and "http_username" not in params:
        return "has http_password, but no http_username"
    if ":" in params.get("http_username", ""):
        return "has a colon in http_username, which Basic authentication cannot send"
    names = [name.lower() for name, _ in parse_headers(params.get("http_headers", ""))]
    ways = ["http_username"] * ("http_username" in params) + ["http_bearer_token"] * ("http_bearer_token" in params)
    ways += ["an Authorization header in http_headers"] * names.count("authorization")
    if len(ways) > 1:
        return f"has {' and '.join(ways)}: keep one"
    credentials = ("http_username", "http_password", "http_bearer_token", "http_headers")
    return check_credentials(location, "a URL", params, credentials) or check_files(params)


_PARAMS = (
    *FILE_PARAMS,
    Param("http_port", PORT),
    Param(
        "http_query",
        ParsedField("what follows the question mark of the URL, such as year=2026&format=csv", _parse_query),
        is_hidden=True,
    ),
    Param("http_username", ParsedField("the name of a user", parse_password)),
    Param("http_password", ParsedField("a password", parse_password), is_secret=True),
    Param("http_bearer_token", ParsedField("a bearer token", parse_token), is_secret=True),
    Param("http_headers", ParsedField("headers such as X-Token: abc, one a line", _parse_headers_text), is_secret=True),
    Param("http_tls_root_certificate_file", PathField("the path of a PEM file of certificates"), is_path=True),
    ALLOW_HTTP,
    CLIENT_TIMEOUT,
    MAX_DOWNLOAD_SIZE,
)


HTTP, HTTPS = (
    Connector(
        name=scheme,
        expected="the rest of the URL of a file, such as //host/data/flights.parquet",
        locate=partial(_locate, scheme),
        params=_PARAMS,
        check=_check,
        packages=(EXCEL,),
    )
    for scheme in ("http", "https")
)

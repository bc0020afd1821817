"""The parameters of `http:` and `https:`: a file on a web server."""

from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from runtimeconf.connector import Connector, Param
from runtimeconf.fields import InvalidValueError, ParsedField
from runtimeconf.file_formats import EXCEL, DownloadParams
from runtimeconf.network import (
    PORT,
    AllowHttp,
    RootCertificateFile,
    check_credentials,
    parse_headers,
    parse_origin,
    parse_password,
    parse_token,
)

#: Characters that need no escape in a path (RFC 3986, 3.3) or a query; `%` is assumed to begin an escape.
_PLAIN_IN_PATH = "%/:@!$&'()*+,;=~-._"
_PLAIN_IN_QUERY = _PLAIN_IN_PATH + "?"

_MAX_LENGTH = 8192


def _parse_headers(text: str) -> tuple[tuple[str, str], ...]:
    headers = parse_headers(text)
    if not headers:
        raise InvalidValueError("it is blank")
    if len(text) > _MAX_LENGTH:
        raise InvalidValueError(f"it is longer than {_MAX_LENGTH:,} characters")
    return headers


def _parse_query(text: str) -> str:
    """Return the query of a URL, with invalid characters escaped."""
    query = text.removeprefix("?")
    if not query or not query.isprintable() or "#" in query or len(query) > _MAX_LENGTH:
        raise InvalidValueError(f"printable characters without #, at most {_MAX_LENGTH:,} characters")
    return quote(query, safe=_PLAIN_IN_QUERY)


def _locate(scheme: str, text: str, _directory: Path) -> str:
    origin, path = parse_origin(f"{scheme}:{text}")
    if "?" in path or "#" in path:
        raise InvalidValueError("anyone who can list the datasets can see it: set the query in params.http_query")
    return origin + quote(path or "/", safe=_PLAIN_IN_PATH)


_QUERY = ParsedField("the query string of the URL, such as year=2026&format=csv", _parse_query)
_HEADERS = ParsedField("headers such as X-Token: abc, one per line", _parse_headers)


class HttpParams(DownloadParams):
    """The request options and the file options."""

    http_port: Annotated[int | None, Param(PORT)] = None
    http_query: Annotated[str | None, Param(_QUERY, is_hidden=True)] = None
    http_username: Annotated[str | None, Param(ParsedField("a user name", parse_password))] = None
    http_password: Annotated[str | None, Param(ParsedField("a password", parse_password), is_secret=True)] = None
    http_bearer_token: Annotated[str | None, Param(ParsedField("a bearer token", parse_token), is_secret=True)] = None
    http_headers: Annotated[tuple[tuple[str, str], ...], Param(_HEADERS, is_secret=True)] = ()
    http_tls_root_certificate_file: RootCertificateFile = None
    allow_http: AllowHttp = False

    def problem(self, location: str) -> str | None:
        """Refuse several credentials, and any credentials without TLS; see `Params.problem`."""
        if self.http_password is not None and self.http_username is None:
            return "has http_password, but no http_username"
        if ":" in (self.http_username or ""):
            return "has a colon in http_username, which Basic authentication cannot send"
        ways = [name for name in ("http_username", "http_bearer_token") if getattr(self, name) is not None]
        names = [name.lower() for name, _ in self.http_headers]
        ways += ["an Authorization header in http_headers"] * names.count("authorization")
        if len(ways) > 1:
            return f"has {' and '.join(ways)}: remove one"
        credentials = ("http_username", "http_password", "http_bearer_token", "http_headers")
        sent = [name for name in credentials if getattr(self, name)]
        return check_credentials(location, "a URL", sent, allow_http=self.allow_http) or super().problem(location)


HTTP = Connector(
    expected="the rest of the URL of a file, such as //host/data/flights.parquet",
    locate=_locate,
    params=HttpParams,
    source="connectors.http.source:HttpSource",
    packages=(EXCEL,),
)

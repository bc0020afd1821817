"""Shared code of the network connectors: parameters, URLs, headers, and the rules that require TLS."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from runtimeconf.addresses import split_host_port
from runtimeconf.connector import Param
from runtimeconf.fields import DurationField, FlagField, InvalidValueError, ParsedField, PathField, SizeField
from system.addresses import Address
from system.files import UnreadableFileError, read_regular_file

_MAX_CREDENTIAL_LENGTH = 16_384


#: A field name (RFC 9110, 5.1), a colon, and a value of printable ASCII.
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)[ \t]*")

#: Headers that the runtime sets itself, for the connection, the body length or conditional requests.
_OWN_HEADERS = frozenset(
    {
        *("accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "range", "te", "trailer"),
        *("if-match", "if-modified-since", "if-none-match", "if-range", "if-unmodified-since"),
        *("proxy-authorization", "proxy-connection", "transfer-encoding", "upgrade"),
    }
)


def _parse_port(text: str) -> int:
    if re.fullmatch(r"[1-9][0-9]{0,4}", text) is None or int(text) > 65535:
        raise InvalidValueError
    return int(text)


PORT = ParsedField("a port from 1 to 65535", _parse_port)


def parse_password(text: str) -> str:
    """Return a password verbatim: one line of any characters, sent as UTF-8. Raises InvalidValueError."""
    if not text:
        raise InvalidValueError("it is empty")
    if re.search(r"[\0\r\n]", text) or len(text) > _MAX_CREDENTIAL_LENGTH:
        raise InvalidValueError(f"it has several lines, or is longer than {_MAX_CREDENTIAL_LENGTH:,} characters")
    return text


def parse_token(text: str) -> str:
    """Return a token or key in printable ASCII, for a header or for signing. Raises InvalidValueError."""
    if not (text.isascii() and text.isprintable()):
        raise InvalidValueError("printable ASCII")
    return parse_password(text)


#: The time in seconds that a server may be silent. `refresh_timeout` limits the whole load.
ClientTimeout = Annotated[float, Param(DurationField("100ms", "1h"))]
DEFAULT_CLIENT_TIMEOUT_S = 30.0

#: Whether confidential data may be sent without TLS.
AllowHttp = Annotated[bool, Param(FlagField())]

#: The maximum size of one load in bytes, over all its files.
MaxDownloadSize = Annotated[int | None, Param(SizeField("1B", "1024TiB"))]

#: The only root certificates to trust; None means the default ones.
RootCertificateFile = Annotated[Path | None, Param(PathField("the path of a PEM file of certificates"), is_path=True)]


def parse_headers(text: str) -> tuple[tuple[str, str], ...]:
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
    return tuple(headers)


def parse_origin(text: str) -> tuple[str, str]:
    """
    Split a URL into its origin, `scheme://host:port` with the host in lower case, and the rest.

    The origin has a port only if the URL has one. No message shows the URL because it may contain a password.

    Raises:
        InvalidValueError: *text* is not an http or https URL.
    """
    match = re.fullmatch(r"(https?)://([^/?#]*)(.*)", text)
    if match is None:
        raise InvalidValueError("a URL begins with http:// or https://")
    scheme, authority, rest = match.groups()
    if "@" in authority:
        raise InvalidValueError("no user or password before the host: parameters hold these")
    host_port = split_host_port(authority)
    if host_port is None:
        raise InvalidValueError("not a host and a port")
    host, port = host_port
    return f"{scheme}://{str(Address(host, port or 0)).removesuffix(':0')}", rest


def parse_server(text: str) -> str:
    """Return the origin of *text*, a URL without a path. See `parse_origin`."""
    origin, rest = parse_origin(text)
    if rest not in {"", "/"}:
        raise InvalidValueError("only the scheme, the host and the port")
    return origin


def is_loopback(host: str) -> bool:
    """Return True if *host* is this machine: a loopback address or the name `localhost`."""
    return Address(host, 0).is_loopback


def is_near(host: str) -> bool:
    """Return True if *host* is this machine or a link-local address (RFC 3927), which no proxy can reach."""
    return is_loopback(host) or Address(host, 0).is_link_local


def lacks_tls(url: str | None, *, allow_http: bool) -> bool:
    """Return True if *url* is a remote URL without TLS and *allow_http* does not allow it."""
    parts = urlsplit(url or "")
    is_plain = parts.scheme in {"http", "grpc", "grpc+tcp"} and not is_loopback(parts.hostname or "")
    return is_plain and not allow_http


def check_credentials(url: str, what: str, sent: Sequence[str], *, allow_http: bool) -> str | None:
    """Return an error if the credentials *sent* would go to *url*, called *what*, without TLS; otherwise None."""
    if not sent or not lacks_tls(url, allow_http=allow_http):
        return None
    return f"has {what} without TLS: everybody on the way reads {' and '.join(sent)}; allow_http: true allows it"


MAX_PEM_BYTES = 1024 * 1024


def pem_problem(file: Path) -> str:
    """Return in a few words why *file* cannot be read; an empty string if it can."""
    try:
        content = read_regular_file(file, MAX_PEM_BYTES)
    except UnreadableFileError as exc:
        return f"cannot be read: {exc}"
    return "" if b"-----BEGIN " in content.data else "is not a PEM file"

"""Locations of files on a server, for connectors that read such a server like a bucket."""

import re
from pathlib import Path
from typing import Final

from runtimeconf.addresses import split_host_port
from runtimeconf.fields import InvalidValueError

#: The text after the colon in `from:`.
EXPECTED: Final = "a host with a path, a directory or a glob, such as //host/data/flights.parquet"

_MAX_PATH_BYTES = 4096


def server_of(location: str, default_port: int) -> tuple[str, int]:
    """Return the host and the port in *location*. The port defaults to *default_port*."""
    host, port = split_host_port(location.partition("://")[2].partition("/")[0]) or ("", None)
    return host, port or default_port


def locate_file(scheme: str, text: str, _directory: Path) -> str:
    """Return the URL of *scheme* and *text*, which must have no user or password. Raises InvalidValueError."""
    match = re.fullmatch(r"//([^/]*)/*(.*)", text)
    if match is None:
        raise InvalidValueError(f"write {scheme}:// before the host")
    authority, path = match.groups()
    if "@" in authority:
        raise InvalidValueError(f"remove the user and password before the host: use {scheme}_user and {scheme}_pass")
    found = split_host_port(authority)
    if found is None:
        raise InvalidValueError("not a host and a port")
    # FTP commands are lines.
    if not path.isprintable() or len(path.encode()) > _MAX_PATH_BYTES or ".." in path.split("/"):
        raise InvalidValueError(
            f"a path must be printable, must not contain .. and is limited to {_MAX_PATH_BYTES:,} bytes"
        )
    host, port = found
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}{f':{port}' if port else ''}/{path}"

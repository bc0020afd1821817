"""The `file:` connector, and the paths of all connectors that read local files."""

import glob
import os
import re
from pathlib import Path

from runtimeconf.connector import Connector
from runtimeconf.fields import InvalidValueError
from runtimeconf.file_formats import EXCEL, FileParams

#: A host with a user or port before the path, with or without the slashes of a URL.
_AUTHORITY = re.compile(r"(?:[^/]*:)?//[^/]*[@:]|[^/]*:[^/]*@")
#: The same, but certainly with a password. A directory name may contain one of these characters.
_PASSWORD = re.compile(r"//[^/]*:[^/]*@")
#: The first parameter of a query string.
_QUERY = re.compile(r"\?[^/]*=")


def refuse_url(text: str) -> None:
    """
    Refuse a path that looks like a URL with a user or a query string.

    Callers see `from:`, and both may contain a password.

    Raises:
        InvalidValueError: *text* looks like such a URL. The message shows no part of it.
    """
    if _AUTHORITY.match(text):
        raise InvalidValueError(
            "no user, password or port before the path: everybody who can list the datasets sees it"
        )
    if _QUERY.search(text):
        raise InvalidValueError("no query after the path: everybody who can list the datasets sees it")


def locate_path(prefix: str, _name: str, text: str, directory: Path) -> str:
    """Return *text* without *prefix* as an absolute path. Raises InvalidValueError, as `refuse_url` does."""
    refuse_url(text)
    path = text.removeprefix(prefix)
    if not path.strip():
        raise InvalidValueError("there is no path after the colon")
    return str(directory / path)


def _locate(_name: str, text: str, directory: Path) -> str:
    """Return an absolute path or glob. Refuse a URL with a password. A question mark is part of a glob here."""
    if _PASSWORD.match(text):
        raise InvalidValueError("no user and password before the path: everybody who can list the datasets sees it")
    path = text.removeprefix("//")
    if not path.strip():
        raise InvalidValueError("there is no path after the colon")
    start = str(directory)
    if glob.has_magic(path):
        start = glob.escape(start)  # brackets in the directory of the configuration file are literal
    return os.path.join(start, path)  # noqa: PTH118 (a pattern, and Path would drop a slash at its end)


FILE = Connector(
    expected="the path of a file, a directory or a glob",
    locate=_locate,
    params=FileParams,
    source="datasources.sources.files:FileSource",
    packages=(EXCEL,),
    is_local=True,
    formats_in_place=("parquet", "csv"),
)

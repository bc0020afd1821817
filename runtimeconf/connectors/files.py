"""`file:`, and what every connector that reads files shares with it."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path

from runtimeconf.connectors.connector import Connector, Param
from runtimeconf.fields import Choice, UnfitError

#: The format of the files, where their names do not tell it.
FILE_FORMAT = Param(name="file_format", shape=Choice("parquet", "csv", "json", "ndjson"))


#: A host with a user or a port before the path, with or without the slashes that a URL has.
_AUTHORITY = re.compile(r"(?:[^/]*:)?//[^/]*[@:]|[^/]*:[^/]*@")
#: The same with a password for certain: a directory may well have one of these characters in its name.
_PASSWORD = re.compile(r"//[^/]*:[^/]*@")
#: The first parameter of a query.
_QUERY = re.compile(r"\?[^/]*=")


def refuse_url(text: str) -> None:
    """
    Refuse a path that looks like a URL with a user or a query: callers see `from:`, and these may hold a password.

    Raises:
        UnfitError: It does. The message shows nothing of it.
    """
    if _AUTHORITY.match(text):
        raise UnfitError("no user, password or port before the path: everybody who may ask for the datasets sees this")
    if _QUERY.search(text):
        raise UnfitError("no query after the path: everybody who may ask for the datasets sees this")


def locate_path(text: str, directory: Path) -> str:
    """
    Give the absolute path of *text*, a path or a glob, where relative paths begin in *directory*.

    Raises:
        UnfitError: There is no path.
    """
    path = text.removeprefix("//")
    if not path.strip():
        raise UnfitError("there is no path after the colon")
    start = str(directory)
    if glob.has_magic(path):
        start = glob.escape(start)  # brackets in the path of the YAML are no pattern
    return os.path.join(start, path)  # noqa: PTH118 (a pattern, and Path would drop a slash at its end)


def _locate_file(text: str, directory: Path) -> str:
    """As `locate_path`, but for a URL with a password; what may be a query is a glob here."""
    if _PASSWORD.match(text):
        raise UnfitError("no user and password before the path: everybody who may ask for the datasets sees this")
    return locate_path(text, directory)


FILE = Connector(
    name="file",
    expected="the path of a file, a directory or a glob",
    locate=_locate_file,
    params=(FILE_FORMAT,),
)

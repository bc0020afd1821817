"""`file:`, and what every connector that reads files shares with it."""

from __future__ import annotations

import glob
import os
from pathlib import Path

from runtimeconf.connectors.connector import Connector, Param
from runtimeconf.shapes import Choice, UnfitError

#: The format of the files, where their names do not tell it.
FILE_FORMAT = Param(name="file_format", shape=Choice("parquet", "csv", "json", "ndjson"))


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


FILE = Connector(
    name="file",
    expected="the path of a file, a directory or a glob",
    locate=locate_path,
    params=(FILE_FORMAT,),
)

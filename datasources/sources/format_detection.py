"""Detect the format of files by their names, and limit their number."""

import itertools
import resource
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from datasources.errors import SourceError
from datasources.sources.formats import FORMATS, FileFormat

#: Descriptors reserved for the rest of the process (sockets, snapshots, logs).
_RESERVED_DESCRIPTORS = 128

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class DetectedFormat:
    """The class that reads all files of a dataset, and whether they are *gzipped*."""

    format: type[FileFormat]
    gzipped: bool


def extension(name: str) -> tuple[str, bool]:
    """Return the extension of *name* in lower case without its dot, and whether `.gz` follows it."""
    name = name.lower()
    gzipped = name.endswith(".gz")
    return Path(name.removesuffix(".gz")).suffix.removeprefix("."), gzipped


def detect_format(files: Sequence[str], shown: str, file_format: str | None) -> DetectedFormat:
    """
    Return the format of *files* by their names and the parameter *file_format*; *shown* names them in errors.

    Raises:
        SourceError: They have several formats, or an unknown one.
    """
    found: dict[DetectedFormat, str] = {}
    for file in files:
        name, gzipped = extension(file)
        if file_format is not None and (len(files) == 1 or name not in FORMATS):
            name = file_format
        if name not in FORMATS:
            raise SourceError(
                f"The format of '{file}' cannot be told from its name: set params.file_format to parquet, csv or json."
            )
        found.setdefault(DetectedFormat(FORMATS[name], gzipped), file)
    if file_format is not None:
        wanted = FORMATS[file_format]
        for detected, file in found.items():
            if detected.format is not wanted:
                raise SourceError(f"'{shown}' mixes kinds: '{file}' is not {wanted.name}.")
    if len(found) > 1:
        one, other, *_ = found.values()
        raise SourceError(f"'{shown}' mixes kinds, such as '{one}' and '{other}': a dataset has files of one.")
    (detected,) = found
    return refuse_gzipped_parquet(detected, files[0])


def refuse_gzipped_parquet(detected: DetectedFormat, file: str) -> DetectedFormat:
    """
    Return *detected*, unless it is a gzipped Parquet file, which is compressed inside already.

    Raises:
        SourceError: It is; the sentence names *file*.
    """
    if detected.gzipped and detected.format is FORMATS["parquet"]:
        raise SourceError(f"'{file}' is compressed twice: Parquet must not be gzipped.")
    return detected


def limited_list(files: Iterable[_T], shown: str, none: str) -> list[_T]:
    """
    Return *files* as a list. *shown* names them in errors; *none* is the error for an empty list.

    Raises:
        SourceError: There are no files, or more than this process may have open.
    """
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # One descriptor pins a file; the engine opens another.
    limit = max(1, (open_files - _RESERVED_DESCRIPTORS) // 2)
    found = list(itertools.islice(files, limit + 1))
    if len(found) > limit:
        raise SourceError(
            f"'{shown}' has more than {limit} files, which is what the limit of {open_files} open files allows: "
            "raise it (ulimit -n), or write fewer, larger files."
        )
    if not found:
        raise SourceError(f"'{shown}' {none}.")
    return found

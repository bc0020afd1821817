"""Detects the format of files from their names, and limits their number."""

import itertools
import resource
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from datasources.errors import SourceError
from datasources.sources.csv_files import Csv
from datasources.sources.excel import Excel
from datasources.sources.formats import FileFormat, Parquet
from datasources.sources.json_files import Json
from runtimeconf.file_formats import KINDS, FileParams, split_extension

#: The formats by kind.
_FORMATS: Mapping[str, type[FileFormat]] = {each.kind: each for each in (Parquet, Csv, Json, Excel)}

#: Descriptors reserved for the rest of the process (sockets, snapshots, logs).
_RESERVED_DESCRIPTORS = 128

_T = TypeVar("_T")


class DetectedFormat(Struct, frozen=True):
    """The class that reads all files of a dataset, and their *compression*, a value of `file_compression_type`."""

    format: type[FileFormat]
    compression: str


def detect_format(files: Sequence[str], shown: str, params: FileParams) -> DetectedFormat:
    """
    Return the format of *files* from their names and the dataset's *params*. *shown* names them in errors.

    Raises:
        SourceError: The files have several formats or an unknown format.
    """
    file_format = params.file_format
    found: dict[DetectedFormat, str] = {}
    for file in files:
        name, compression = split_extension(file)
        if file_format is not None and (len(files) == 1 or name not in KINDS):
            name = file_format
        if name not in KINDS:
            raise SourceError(
                f"The format of '{file}' cannot be determined from its name: set params.file_format to parquet, csv, "
                "json or xlsx."
            )
        found.setdefault(compressed(_FORMATS[KINDS[name]], compression, params, file), file)
    if file_format is not None:
        wanted = _FORMATS[KINDS[file_format]]
        for detected, file in found.items():
            if detected.format is not wanted:
                raise SourceError(f"'{shown}' mixes formats: '{file}' is not {wanted.name}.")
    if len(found) > 1:
        one, other, *_ = found.values()
        raise SourceError(
            f"'{shown}' mixes formats, such as '{one}' and '{other}': all files of a dataset must have the same format."
        )
    (detected,) = found
    return detected


def format_named(name: str) -> type[FileFormat]:
    """Return the class for *name*, an extension or a value of `file_format`."""
    return _FORMATS[KINDS[name]]


def compressed(format_: type[FileFormat], compression: str | None, params: FileParams, file: str) -> DetectedFormat:
    """
    Return *format_* with *compression* (None for none), unless `file_compression_type` in *params* overrides it.

    Raises:
        SourceError: The format is already compressed internally. The message names *file*.
    """
    found = params.file_compression_type or compression or "UNCOMPRESSED"
    if found != "UNCOMPRESSED" and format_.kind in {"parquet", "xlsx"}:
        raise SourceError(f"'{file}' is compressed twice: {format_.name} is already compressed.")
    return DetectedFormat(format_, found)


def limited_list(files: Iterable[_T], shown: str, none: str) -> list[_T]:
    """
    Return *files* as a list. *shown* names them in errors. *none* is the error for an empty list.

    Raises:
        SourceError: There are no files, or more than this process may have open.
    """
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # One descriptor pins a file, and the engine opens another.
    limit = max(1, (open_files - _RESERVED_DESCRIPTORS) // 2)
    found = list(itertools.islice(files, limit + 1))
    if len(found) > limit:
        raise SourceError(
            f"'{shown}' has more than {limit} files, the most that the limit of {open_files} open files allows: "
            "raise it (ulimit -n), or write fewer, larger files."
        )
    if not found:
        raise SourceError(f"'{shown}' {none}.")
    return found

"""Which format files have, by their names, and how many of them one load takes."""

from __future__ import annotations

import itertools
import resource
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from datasources.errors import SourceError
from datasources.sources.formats import FORMATS, FileFormat

#: Descriptors left to the rest of the process (sockets, snapshots, logs) when the files of a dataset are opened.
_RESERVED_DESCRIPTORS = 128

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Kind:
    """What all files of a dataset are: of the format *name*, a key of `FORMATS`, and *gzipped* or not."""

    name: str
    gzipped: bool

    @property
    def format(self) -> type[FileFormat]:
        """What reads them."""
        return FORMATS[self.name]


def extension(name: str) -> tuple[str, bool]:
    """Return the extension of *name* in small letters without its dot, and whether `.gz` follows it."""
    name = name.lower()
    gzipped = name.endswith(".gz")
    return Path(name.removesuffix(".gz")).suffix.removeprefix("."), gzipped


def kind_of(files: Sequence[str], shown: str, file_format: str | None) -> Kind:
    """
    Return what *files* are, by their names and the parameter *file_format*; *shown* stands for all of them.

    Raises:
        SourceError: They are of several kinds, or of one that is not known.
    """
    kinds: dict[tuple[type[FileFormat], bool], str] = {}
    name = ""
    for file in files:
        name, gzipped = extension(file)
        if file_format is not None and (len(files) == 1 or name not in FORMATS):
            name = file_format
        if name not in FORMATS:
            raise SourceError(
                f"The format of '{file}' cannot be told from its name: set params.file_format to parquet, csv or json."
            )
        kinds.setdefault((FORMATS[name], gzipped), file)
    if file_format is not None:
        name = file_format
        wanted = FORMATS[file_format]
        for (kind, _), file in kinds.items():
            if kind is not wanted:
                raise SourceError(f"'{shown}' mixes kinds: '{file}' is not {wanted.name}.")
    if len(kinds) > 1:
        one, other, *_ = kinds.values()
        raise SourceError(f"'{shown}' mixes kinds, such as '{one}' and '{other}': a dataset has files of one.")
    ((_, gzipped),) = kinds
    return once_compressed(Kind(name, gzipped), files[0])


def once_compressed(kind: Kind, file: str) -> Kind:
    """
    Return *kind*, unless it is one that is compressed inside already.

    Raises:
        SourceError: It is; the sentence names *file*.
    """
    if kind.gzipped and kind.format is FORMATS["parquet"]:
        raise SourceError(f"'{file}' is compressed twice: Parquet is not to be gzipped.")
    return kind


def gathered(files: Iterable[_T], shown: str, none: str) -> list[_T]:
    """
    Return *files* as a list. *shown* stands for all of them, *none* says that there is none.

    Raises:
        SourceError: There is none, or there are more than this process may have open.
    """
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # One descriptor pins a file, another is the engine's own.
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

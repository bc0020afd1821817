"""
Sources in object storage or on a file server: objects in a store, downloaded and then read as local files.

Each object is looked up first, and then requested in exactly that version (If-Match with its ETag) if the store
supports it. If the store does not, or if there can be several objects, they are looked up again after the download. An
object added, replaced or deleted in the meantime would mix two states.
"""

import glob
import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from fnmatch import fnmatchcase
from typing import ClassVar, Generic, Protocol, Self, TypeVar

from connectors.bucket import StoredObject
from connectors.origin import Body, Downloads
from datasources.deadline import Deadline
from datasources.errors import SourceError
from datasources.sources.format_detection import (
    DetectedFormat,
    compressed,
    detect_format,
    limited_list,
)
from datasources.sources.formats import FileFormat
from datasources.sources.scratch_files import ScratchSpace
from datasources.sources.source import Load
from runtimeconf.file_formats import KINDS, DownloadParams, split_extension
from runtimeconf.model import DatasetConfig

_Params = TypeVar("_Params", bound=DownloadParams)


class Store(Protocol):
    """
    A store of objects, such as a `Bucket`, for one load. The owner closes it.

    Attributes:
        is_pinned: Whether `get` returns exactly the version that was found.
    """

    is_pinned: ClassVar[bool]

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def shown(self, key: str) -> str:
        """Return *key* for use in errors."""

    def look(self, key: str) -> StoredObject | None:
        """Return the object *key*; None if there is none. Raises SourceError."""

    def listed(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects whose keys begin with *prefix*. Raises SourceError."""

    def get(self, found: StoredObject) -> AbstractContextManager[Body]:
        """Request an object. Raises SourceError."""


class ObjectSource(ABC, Generic[_Params]):
    """An object, the objects below a prefix, or the objects whose keys match a glob. All have one format."""

    def __init__(self, dataset: DatasetConfig, params: _Params) -> None:
        self._params = params
        self._shown = dataset.from_
        self._name, _, self._key = dataset.location.partition("://")[2].partition("/")

    @abstractmethod
    def _store(self, deadline: Deadline) -> Store:
        """Return the store of `_name`, for one load that ends at *deadline*."""

    @contextmanager
    def open(self, load: Load) -> Iterator[FileFormat]:
        """Download the objects; see `Source.open`."""
        with ExitStack() as stack:
            space = ScratchSpace(load, stack)
            with self._store(load.deadline) as bucket:
                found = self._find(bucket)
                shown = [bucket.shown(one.key) for one in found]
                detected = detect_format(shown, self._shown, self._params)
                downloads = Downloads(space, self._params.max_download_size)
                files = []
                formats = set()
                for one, name in zip(found, shown, strict=True):
                    with bucket.get(one) as answer:
                        formats.add(self._as_sent(detected, answer, name))
                        files.append(downloads.save(answer, name))
                if len(formats) > 1:
                    raise SourceError(f"'{self._shown}' mixes formats: only some of its objects are stored with gzip.")
                is_one = found[0].key == self._key and bucket.is_pinned
                if not is_one and self._find(bucket) != found:
                    raise SourceError(
                        f"The objects of '{self._shown}' changed during the read; the next refresh will retry."
                    )
            (detected,) = formats
            yield detected.format(
                files,
                self._shown,
                space,
                self._params,
                compression=detected.compression,
                version=self._version(found),
            )

    def has_changed(self, version: str, load: Load) -> bool:
        """Compare the ETags of the objects."""
        with self._store(load.deadline) as bucket:
            return self._version(self._find(bucket)) != version

    def _version(self, found: Sequence[StoredObject]) -> str | None:
        """Return a version string for the objects found; None if it would not show every change."""
        return version_of(found)

    def _as_sent(self, detected: DetectedFormat, answer: Body, shown: str) -> DetectedFormat:
        """Return the format of the bytes of *answer*. An object stored with an encoding is sent with it."""
        encodings = {part.strip() for part in answer.headers.get("content-encoding", "").lower().split(",")}
        # aws-chunked describes the upload, not the bytes.
        encodings -= {"", "identity", "aws-chunked"}
        if not encodings:
            return detected
        if not encodings <= {"gzip", "x-gzip"}:
            raise SourceError(f"'{shown}' is stored with an encoding other than gzip.")
        return compressed(detected.format, "GZIP", self._params, shown)

    def _find(self, bucket: Store) -> list[StoredObject]:
        key = self._key
        if glob.has_magic(key):
            pattern = key.split("/")
            beginning = re.split(r"[*?[]", key, maxsplit=1)[0]
            matching = (
                one for one in bucket.listed(beginning) if one.key == key or _matches(one.key.split("/"), pattern)
            )
            found = limited_list(matching, self._shown, "matches no object")
            # An object whose key equals the pattern takes precedence.
            return [one for one in found if one.key == key] or sorted(found)
        if key and not key.endswith("/"):
            single = bucket.look(key)
            if single is not None:
                return [single]
            if split_extension(key)[0] in KINDS:
                raise SourceError(
                    f"'{self._shown}' does not exist; to read the objects below it, write it with a slash at the end."
                )
            key += "/"
        below = (one for one in bucket.listed(key) if _is_data(one.key.removeprefix(key)))
        return sorted(limited_list(below, self._shown, "has no object below it"))


def version_of(found: Sequence[StoredObject]) -> str | None:
    """Return a string that changes when any of the objects changes; None if one has no ETag."""
    if not all(one.tag for one in found):
        return None
    return hashlib.sha256(json.dumps([(one.key, one.tag) for one in found]).encode()).hexdigest()


def _is_data(path: str) -> bool:
    """Return whether an object below a prefix is data, and not a folder marker or another program's marker."""
    return all(part and part[0] not in "._" for part in path.split("/"))


def _matches(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """
    Return whether the segments of a key match a glob's segments. `**` matches any number of segments.

    Each segment of the pattern is compared with each name once, so the time is bounded by the product of the lengths.
    """
    # Whether the names from each index match the rest of the pattern, which grows from its end.
    matched = [False] * len(names) + [True]
    for part in reversed(pattern):
        after = matched.copy()
        for at in reversed(range(len(names) + 1)):
            fits = at < len(names) and _fits(names[at], part)
            matched[at] = after[at] or (fits and matched[at + 1]) if part == "**" else fits and after[at + 1]
    return matched[0] and names[-1] != ""


def _fits(name: str, part: str) -> bool:
    """Return whether a segment of a key matches a segment of a glob. Wildcards do not match a leading dot."""
    return name == part or (name != "" and (name[0] != "." or part[:1] == ".") and fnmatchcase(name, part))

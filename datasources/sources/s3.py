"""
`s3:` sources: objects of a bucket, downloaded and then read as local files.

Each object is looked up first, and then requested in exactly that version (If-Match with its ETag). If there can be
several, they are listed again after the download: an object that was added or deleted meanwhile would mix two states.
"""

import glob
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase

from datasources.errors import SourceError
from datasources.sources.format_detection import (
    DetectedFormat,
    compressed,
    detect_format,
    limited_list,
)
from datasources.sources.formats import FileFormat
from datasources.sources.origin import Answer, Downloads
from datasources.sources.s3_bucket import Bucket, StoredObject
from datasources.sources.scratch import ScratchSpace
from datasources.sources.source import Load
from runtimeconf.connectors.file_formats import KINDS, split_extension
from runtimeconf.model import DatasetConfig


class S3Source:
    """An object, the objects below a prefix, or those whose keys match a glob; all of one format."""

    def __init__(self, dataset: DatasetConfig) -> None:
        self._params = dataset.params
        self._shown = dataset.from_
        self._bucket, _, self._key = dataset.location.removeprefix("s3://").partition("/")

    @contextmanager
    def open(self, load: Load) -> Iterator[FileFormat]:
        """Download the objects; see `Source.open`."""
        with ExitStack() as stack:
            space = ScratchSpace(load, stack)
            with Bucket(self._bucket, self._params, load.deadline) as bucket:
                found = self._find(bucket)
                shown = [bucket.shown(one.key) for one in found]
                detected = detect_format(shown, self._shown, self._params)
                downloads = Downloads(space, self._params.get("max_download_size"))
                files = []
                formats = set()
                for one, name in zip(found, shown, strict=True):
                    with bucket.get(one) as answer:
                        formats.add(self._as_sent(detected, answer, name))
                        files.append(downloads.save(answer, name))
                if len(formats) > 1:
                    raise SourceError(f"'{self._shown}' mixes kinds: some of its objects are stored with gzip.")
                if found[0].key != self._key and self._find(bucket) != found:
                    raise SourceError(
                        f"The objects of '{self._shown}' changed while they were read; the next refresh reads them "
                        "again."
                    )
            (detected,) = formats
            yield detected.format(
                files,
                self._shown,
                space,
                self._params,
                compression=detected.compression,
                version=version_of(found),
            )

    def has_changed(self, version: str, load: Load) -> bool:
        """Compare the ETags of the objects."""
        with Bucket(self._bucket, self._params, load.deadline) as bucket:
            return version_of(self._find(bucket)) != version

    def _as_sent(self, detected: DetectedFormat, answer: Answer, shown: str) -> DetectedFormat:
        """Return the format of the bytes of *answer*: an object that was stored with an encoding is sent with it."""
        encodings = {part.strip() for part in answer.headers.get("content-encoding", "").lower().split(",")}
        # aws-chunked describes the upload, not the bytes.
        encodings -= {"", "identity", "aws-chunked"}
        if not encodings:
            return detected
        if not encodings <= {"gzip", "x-gzip"}:
            raise SourceError(f"'{shown}' is stored with an encoding other than gzip.")
        return compressed(detected.format, "GZIP", self._params, shown)

    def _find(self, bucket: Bucket) -> list[StoredObject]:
        key = self._key
        if glob.has_magic(key):
            pattern = key.split("/")
            beginning = re.split(r"[*?[]", key, maxsplit=1)[0]
            matching = (
                one for one in bucket.listed(beginning) if one.key == key or _matches(one.key.split("/"), pattern)
            )
            found = limited_list(matching, self._shown, "matches no object")
            # If there is an object with the pattern as its key, it is the one.
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
    """Return a text that changes as soon as one of the objects does; None if one has no ETag."""
    if not all(one.tag for one in found):
        return None
    return hashlib.sha256(json.dumps([(one.key, one.tag) for one in found]).encode()).hexdigest()


def _is_data(path: str) -> bool:
    """Return whether an object below a prefix is data: neither a marker of another program nor one for a folder."""
    return all(part and part[0] not in "._" for part in path.split("/"))


def _matches(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """
    Return whether the parts of a key match those of a glob, as for a path; `**` matches any number of parts.

    Each part of the pattern is compared with each name once, so the time is bounded by the product of the two lengths.
    """
    # Whether the names from each index on match the rest of the pattern, which grows from its end.
    matched = [False] * len(names) + [True]
    for part in reversed(pattern):
        after = matched.copy()
        for at in reversed(range(len(names) + 1)):
            fits = at < len(names) and _fits(names[at], part)
            matched[at] = after[at] or (fits and matched[at + 1]) if part == "**" else fits and after[at + 1]
    return matched[0] and names[-1] != ""


def _fits(name: str, part: str) -> bool:
    """Return whether one part of a key matches one of a glob; no wildcard matches a leading dot."""
    return name == part or (name != "" and (name[0] != "." or part[:1] == ".") and fnmatchcase(name, part))

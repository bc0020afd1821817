"""
`s3:` sources: objects of a bucket, downloaded and then read as local files are.

An object is found first, and then asked for in that very generation (If-Match on its entity tag). Where there may be
several, they are listed once more when all are here: an object that came or went meanwhile makes them a mix of two
states.
"""

from __future__ import annotations

import glob
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase

from datasources.errors import SourceError
from datasources.sources.downloads import Downloads
from datasources.sources.files import FileScan
from datasources.sources.format_detection import Kind, extension, gathered, kind_of, once_compressed
from datasources.sources.formats import FORMATS
from datasources.sources.origin import Answer
from datasources.sources.s3_bucket import Bucket, StoredObject
from datasources.sources.source import Load
from runtimeconf.model import DatasetConfig


class S3Source:
    """An object, the objects below a prefix, or those whose keys match a glob; all of one format."""

    def __init__(self, dataset: DatasetConfig) -> None:
        self._params = dataset.params
        self._shown = dataset.from_
        self._bucket, _, self._key = dataset.location.removeprefix("s3://").partition("/")

    @contextmanager
    def open(self, load: Load) -> Iterator[FileScan]:
        """Bring the objects, as `Source.open` promises."""
        with ExitStack() as stack:
            with Bucket(self._bucket, self._params, load.deadline) as bucket:
                found = self._find(bucket)
                shown = [bucket.shown(one.key) for one in found]
                kind = kind_of(shown, self._shown, self._params.get("file_format"))
                downloads = Downloads.of(load, stack, self._params.get("max_download_size"))
                files = []
                kinds = set()
                for one, name in zip(found, shown, strict=True):
                    with bucket.get(one) as answer:
                        kinds.add(_as_sent(kind, answer, name))
                        files.append(downloads.save(answer, name))
                if len(kinds) > 1:
                    raise SourceError(f"'{self._shown}' mixes kinds: some of its objects are stored with gzip.")
                if found[0].key != self._key and self._find(bucket) != found:
                    raise SourceError(
                        f"The objects of '{self._shown}' changed while they were read; the next refresh reads them "
                        "again."
                    )
            (kind,) = kinds
            reader = kind.format(files, gzipped=kind.gzipped, deadline=load.deadline)
            yield FileScan(reader, self._shown, version_of(found))

    def has_changed(self, version: str, load: Load) -> bool:
        """Compare what the bucket says about the objects with what it said."""
        with Bucket(self._bucket, self._params, load.deadline) as bucket:
            return version_of(self._find(bucket)) != version

    def _find(self, bucket: Bucket) -> list[StoredObject]:
        key = self._key
        if glob.has_magic(key):
            pattern = key.split("/")
            beginning = re.split(r"[*?[]", key, maxsplit=1)[0]
            matching = (
                one for one in bucket.listed(beginning) if one.key == key or _matches(one.key.split("/"), pattern)
            )
            found = gathered(matching, self._shown, "matches no object")
            # A key that has these letters in it, and is there as it stands, is that object.
            return [one for one in found if one.key == key] or _sorted(found)
        if key and not key.endswith("/"):
            single = bucket.look(key)
            if single is not None:
                return [single]
            if extension(key)[0] in FORMATS:
                raise SourceError(
                    f"'{self._shown}' does not exist; to read the objects below it, write it with a slash at the end."
                )
            key += "/"
        below = (one for one in bucket.listed(key) if _is_data(one.key.removeprefix(key)))
        return _sorted(gathered(below, self._shown, "has no object below it"))


def version_of(found: Sequence[StoredObject]) -> str | None:
    """Return a text that is another as soon as one of the objects is; None where one has no tag."""
    if not all(one.tag for one in found):
        return None
    return hashlib.sha256(json.dumps([(one.key, one.tag) for one in found]).encode()).hexdigest()


def _sorted(found: list[StoredObject]) -> list[StoredObject]:
    """Return *found* in the order of their keys; not every server lists them so."""
    return sorted(found, key=lambda one: one.key)


def _as_sent(kind: Kind, answer: Answer, shown: str) -> Kind:
    """Return what the bytes of *answer* are: those of an object that was stored with an encoding have it still."""
    encodings = {part.strip() for part in answer.headers.get("content-encoding", "").lower().split(",")}
    # With this one chunks were signed when it was stored; it says nothing about the bytes.
    encodings -= {"", "identity", "aws-chunked"}
    if not encodings <= {"gzip", "x-gzip"}:
        raise SourceError(f"'{shown}' is stored with an encoding other than gzip.")
    return once_compressed(Kind(kind.name, kind.gzipped or bool(encodings)), shown)


def _is_data(path: str) -> bool:
    """Say whether an object below a prefix is data: not a mark of another program, nor one that stands for a folder."""
    return all(part and part[0] not in "._" for part in path.split("/"))


def _matches(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """
    Say whether the parts of a key match those of a glob, as those of a path do; `**` is any number of parts.

    All ways to match are followed side by side: the time is that of the two lengths, whatever keys a bucket has.
    """
    reached = _after_stars({0}, pattern)
    for name in names:
        following = set()
        for at in reached - {len(pattern)}:
            if _fits(name, pattern[at]):
                following.add(at if pattern[at] == "**" else at + 1)
        reached = _after_stars(following, pattern)
    return len(pattern) in reached and names[-1] != ""


def _fits(name: str, part: str) -> bool:
    """Say whether one part of a key fits one of a glob: no wildcard stands for a dot at the beginning."""
    return name == part or (name != "" and (name[0] != "." or part[:1] == ".") and fnmatchcase(name, part))


def _after_stars(reached: set[int], pattern: Sequence[str]) -> set[int]:
    """Add the places that are reached by letting a `**` stand for nothing."""
    for at, part in enumerate(pattern):
        if part == "**" and at in reached:
            reached.add(at + 1)
    return reached

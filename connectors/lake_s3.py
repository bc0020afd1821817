"""
The root of a table in an S3 bucket.

Files are read in ranges over the connection of `s3:` sources, so the same rules apply for timeouts, redirects,
certificates, proxies and credentials.
"""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from connectors.bucket import StoredObject
from connectors.lake import TableRoot
from connectors.s3_bucket import S3Bucket
from datasources.deadline import Deadline
from datasources.errors import SourceError
from runtimeconf.s3_params import S3Params


@contextmanager
def s3_root(url: str, params: S3Params, deadline: Deadline) -> Iterator[TableRoot]:
    """
    Open the root `s3://bucket/prefix`. *params* are the dataset's endpoint, region and credentials.

    Raises:
        SourceError: See `S3Bucket`.
    """
    name, prefix = _bucket_and_key(url)
    with S3Bucket(name, params, deadline) as bucket:
        yield _S3Root(url, bucket, prefix)


class _S3Root(TableRoot):
    """A prefix in a bucket, open as long as the bucket is. See `TableRoot` for the methods."""

    def __init__(self, shown: str, bucket: S3Bucket, prefix: str) -> None:
        super().__init__(shown)
        self._bucket = bucket
        self._prefix = prefix

    def names(self, directory: str) -> set[str]:
        prefix = f"{self._key(directory)}/"
        found = {one.key.removeprefix(prefix) for one in self._bucket.listed(prefix, delimiter="/")}
        # Leave out the directory's own marker and deeper keys, because not every server supports delimiters.
        return {name for name in found if name and "/" not in name}

    def has(self, path: str) -> bool:
        return self._bucket.look(self._key(path)) is not None

    def open(self, path: str) -> pa.NativeFile:
        found = self._bucket.look(self._key(path))
        if found is None:
            raise SourceError(f"'{path}' of '{self.shown}' cannot be read: it does not exist.")
        if found.size is None:
            raise SourceError(f"'{path}' of '{self.shown}' cannot be read: the server does not report its length.")
        return pa.PythonFile(_Ranges(self._bucket, found, found.size), mode="r")

    def below(self, directory: str) -> TableRoot:
        return _S3Root(f"{self.shown.rstrip('/')}/{directory}", self._bucket, self._key(directory))

    def relative(self, location: str) -> str | None:
        # `s3a:` and `s3n:` are Hadoop's names for `s3:`.
        if location.partition("://")[0] not in {"s3", "s3a", "s3n"}:
            return None
        name, key = _bucket_and_key(location)
        prefix = f"{self._prefix}/"
        return key.removeprefix(prefix) if name == self._bucket.name and key.startswith(prefix) else None

    def _key(self, path: str) -> str:
        return f"{self._prefix}/{path}"


class _Ranges(io.RawIOBase):
    """An object as a file. Each read is one request."""

    def __init__(self, bucket: S3Bucket, found: StoredObject, size: int) -> None:
        super().__init__()
        self._bucket = bucket
        self._found = found
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._position)
        count = left if size < 0 else min(size, left)
        if not count:
            return b""
        content = self._bucket.read(self._found, self._position, count)
        self._position += count
        return content


def _bucket_and_key(url: str) -> tuple[str, str]:
    name, _, key = url.partition("://")[2].partition("/")
    return name, key.strip("/")

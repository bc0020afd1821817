"""
Where a table of files lies: a directory of the disk or a prefix of a bucket, and nothing outside of it.

The files of a table name other files of it. Whoever can write to the table can write any name there, so each name is
judged here, and what leads out of the table is refused: absolute paths, URLs, `..`, and symbolic links out of it.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from datasets.deadline import Deadline
from datasets.errors import SnapshotError, SourceError
from runtimeconf.model import DatasetConfig

#: How much of a file tells it from another one of the same size and time (bytes).
_STAMP_BYTES = 64 * 1024

#: A service that does not answer for so long (seconds) is given up on, unless the load ends earlier.
_ANSWER_S = 60.0
_CONNECT_S = 10.0
_ATTEMPTS = 3

#: The region of services that have none; signatures need one.
_DEFAULT_REGION = "us-east-1"

#: What a message of the S3 client contains, and what we say instead: the message quotes hosts and keys.
_S3_REASONS: Mapping[str, str] = {
    "NO_SUCH_BUCKET": "there is no such bucket",
    "INVALID_ACCESS_KEY_ID": "s3_key is not known there",
    "SIGNATURE_DOES_NOT_MATCH": "s3_secret is wrong",
    "ACCESS_DENIED": "access is denied: look at s3_key, s3_secret and the permissions",
    "EXPIRED_TOKEN": "s3_session_token has expired",
    "InvalidToken": "s3_session_token is wrong",
    "NETWORK_CONNECTION": "the service cannot be reached, or does not answer",
    "REQUEST_TIMEOUT": "the service does not answer",
    "HTTP response code 403": "access is denied: look at s3_key, s3_secret and the permissions",
    "HTTP response code 301": "the bucket is in another region: set s3_region",
}


class TableRoot(ABC):
    """The place of one table. *shown* is the place as the YAML's author wrote it."""

    def __init__(self, shown: str) -> None:
        self.shown = shown

    @abstractmethod
    def names(self, directory: str) -> dict[str, int]:
        """
        Return the names and the sizes in bytes of the files in *directory*; none where there is no such directory.

        Raises:
            SourceError: It cannot be read.
        """

    @abstractmethod
    def open(self, path: str) -> pa.NativeFile:
        """
        Open a file for reading at any place in it; the caller closes it. *path* is one that `inside` returned.

        Raises:
            SourceError: It is not there, is no regular file, lies outside, or cannot be read.
        """

    @abstractmethod
    def below(self, directory: str) -> TableRoot:
        """Return the place *directory* in this one."""

    @abstractmethod
    def relative(self, location: str) -> str | None:
        """Return the path in this place of an absolute *location*; None when it is elsewhere."""

    @abstractmethod
    def has(self, path: str) -> bool:
        """Say whether there is a file *path*. Raises as `names`."""

    def read(self, path: str, limit: int) -> bytes:
        """
        Return the content of a file.

        Raises:
            SourceError: As `open`; or it has more than *limit* bytes.
        """
        with self.reading(path), self.open(path) as file:
            if file.size() > limit:
                raise SourceError(f"'{path}' of '{self.shown}' is larger than {limit // 1024 // 1024} MiB.")
            content: bytes = file.read()
        return content

    def stamp(self, path: str) -> str | None:
        """
        Return what tells a file from another one that was put in its place; None when there is no file.

        Raises:
            SourceError: It cannot be read.
        """
        if not self.has(path):
            return None
        with self.reading(path), self.open(path) as file:
            head = file.read(_STAMP_BYTES)
            return hashlib.sha256(b"%d %b" % (file.size(), head)).hexdigest()[:32]

    @contextmanager
    def reading(self, path: str) -> Iterator[None]:
        """Turn what goes wrong while the file *path* is read into a sentence that names it."""
        try:
            yield
        except (SourceError, SnapshotError, MemoryError):
            raise
        except OSError as exc:
            raise SourceError(f"'{path}' of '{self.shown}' cannot be read: {reason(exc)}.") from exc


def inside(path: str) -> str | None:
    """Return the relative *path* of a file without superfluous parts; None when it could lead elsewhere."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", path) or path.startswith("/") or not path.isprintable() or "\\" in path:
        return None
    parts = [part for part in path.split("/") if part not in {"", "."}]
    return "/".join(parts) if parts and ".." not in parts else None


def reason(error: OSError) -> str:
    """Say what is wrong in words without host, credentials or paths."""
    text = str(error)
    known = next((said for part, said in _S3_REASONS.items() if part in text), None)
    if known is not None:
        return known
    if isinstance(error, FileNotFoundError):
        return "it does not exist"
    if error.errno is not None and "AWS Error" not in text:
        return os.strerror(error.errno)
    return "the service refuses it" if "AWS Error" in text else "its content is damaged"


class LocalRoot(TableRoot):
    """
    A directory.

    Raises:
        SourceError: It is not there, or is no directory.
    """

    def __init__(self, path: str, shown: str) -> None:
        super().__init__(shown)
        self._root = os.path.realpath(path)
        if not Path(self._root).is_dir():
            what = "is not a directory" if Path(self._root).exists() else "does not exist"
            raise SourceError(f"'{shown}' {what}.")

    def names(self, directory: str) -> dict[str, int]:
        """As `TableRoot.names`."""
        found = {}
        try:
            with os.scandir(Path(self._root, directory)) as entries:
                for entry in entries:
                    if entry.is_file():
                        found[entry.name] = entry.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as exc:
            raise SourceError(f"'{self.shown}' cannot be read: {exc.strerror}.") from exc
        return found

    def has(self, path: str) -> bool:
        """As `TableRoot.has`."""
        return Path(self._root, path).is_file()

    def open(self, path: str) -> pa.NativeFile:
        """As `TableRoot.open`."""
        target = Path(self._root, path)
        descriptor = None
        with self.reading(path):
            try:
                # Before it is opened: opening alone can act on a device.
                if not stat.S_ISREG(target.stat().st_mode):
                    raise SourceError(f"'{path}' of '{self.shown}' is not a regular file.")
                descriptor = os.open(target, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
                by_descriptor = Path(f"/proc/self/fd/{descriptor}")
                # What was opened, whatever the names on the way stand for by now.
                if not by_descriptor.readlink().is_relative_to(self._root):
                    raise SourceError(f"'{path}' of '{self.shown}' is a link that leads out of the table.")
                return pa.OSFile(str(by_descriptor))
            finally:
                if descriptor is not None:
                    os.close(descriptor)

    def below(self, directory: str) -> TableRoot:
        """As `TableRoot.below`."""
        return LocalRoot(str(Path(self._root, directory)), f"{self.shown.rstrip('/')}/{directory}")

    def relative(self, location: str) -> str | None:
        """As `TableRoot.relative`."""
        path = local_path(location)
        if path is None:
            return None
        real = Path(os.path.realpath(path))
        return str(real.relative_to(self._root)) if real.is_relative_to(self._root) else None


class S3Root(TableRoot):
    """
    What lies below a prefix of a bucket.

    Args:
        url: `s3://bucket/prefix`.
        params: The parameters of the dataset: endpoint, region and credentials.
        deadline: Bounds how long an answer is waited for.
    """

    def __init__(self, url: str, params: Mapping[str, str], deadline: Deadline) -> None:
        super().__init__(url)
        self._file_system = _connect(params, deadline)
        self._root = _bucket_and_key(url)

    def names(self, directory: str) -> dict[str, int]:
        """As `TableRoot.names`."""
        with self.reading(directory):
            selector = pafs.FileSelector(self._at(directory), allow_not_found=True)
            infos = self._file_system.get_file_info(selector)
            if (
                not infos
                and self._file_system.get_file_info(self._root.partition("/")[0]).type == pafs.FileType.NotFound
            ):
                raise SourceError(f"'{self.shown}' cannot be read: there is no such bucket.")
        return {info.base_name: info.size for info in infos if info.is_file}

    def has(self, path: str) -> bool:
        """As `TableRoot.has`."""
        with self.reading(path):
            return bool(self._file_system.get_file_info(self._at(path)).is_file)

    def open(self, path: str) -> pa.NativeFile:
        """As `TableRoot.open`."""
        with self.reading(path):
            return self._file_system.open_input_file(self._at(path))

    def below(self, directory: str) -> TableRoot:
        """As `TableRoot.below`."""
        root = object.__new__(S3Root)
        root.shown = f"{self.shown.rstrip('/')}/{directory}"
        root._file_system, root._root = self._file_system, self._at(directory)
        return root

    def relative(self, location: str) -> str | None:
        """As `TableRoot.relative`; `s3a:` and `s3n:` are what Hadoop calls the same."""
        if urlsplit(location).scheme not in {"s3", "s3a", "s3n"}:
            return None
        prefix = f"{self._root}/"
        key = _bucket_and_key(location)
        return key.removeprefix(prefix) if key.startswith(prefix) else None

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}".rstrip("/")


def root_of(dataset: DatasetConfig, deadline: Deadline) -> TableRoot:
    """
    Return the place that `from:` names.

    Raises:
        SourceError: It is not there.
    """
    if dataset.location.startswith("s3://"):
        return S3Root(dataset.location, dataset.params, deadline)
    shown = re.sub(r"^[a-z_]+:(//)?", "", dataset.from_)
    return LocalRoot(dataset.location, shown)


def local_path(location: str) -> str | None:
    """Return the path that a location on this machine stands for, None when it is elsewhere."""
    if location.startswith("/"):
        return location
    match = re.match(r"file:(?://)?(/.*)", location, re.DOTALL)
    return match[1] if match else None


def _bucket_and_key(url: str) -> str:
    return url.partition("://")[2].strip("/")


def _connect(params: Mapping[str, str], deadline: Deadline) -> pafs.S3FileSystem:
    """Make the client. It never asks the machine for credentials: they are in the parameters, or none are used."""
    deadline.check()
    endpoint = urlsplit(params.get("s3_endpoint", ""))
    is_public = params.get("s3_auth", "key" if "s3_key" in params else "public") == "public"
    return pafs.S3FileSystem(
        anonymous=is_public,
        access_key=None if is_public else params["s3_key"],
        secret_key=None if is_public else params["s3_secret"],
        session_token=None if is_public else params.get("s3_session_token"),
        region=params.get("s3_region", _DEFAULT_REGION),
        endpoint_override=endpoint.netloc or None,
        scheme=endpoint.scheme or "https",
        connect_timeout=min(_CONNECT_S, deadline.left_s),
        request_timeout=min(_ANSWER_S, deadline.left_s),
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
    )

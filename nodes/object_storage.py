"""
The object storage that nodes share: small documents with conditional writes, and snapshot files.

Every important write names the version that it replaces, so if two nodes write at once, one is refused.
"""

import hashlib
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import obstore
from msgspec import Struct
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotModifiedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import S3Store

from datasources.deadline import Deadline
from datasources.errors import SharedStorageError, SnapshotError
from runtimeconf.model import SnapshotsConfig
from runtimeconf.s3_params import S3Params
from system.files import UnreadableFileError, read_regular_file

logger = logging.getLogger(__name__)

#: Timeout in seconds for a document request, because others wait for the response.
QUICK_S = 5.0
_CONNECT_S = 4.0
#: A response within this many seconds is fast.
_FAST_S = 1.0

_PART_BYTES = 8 * 1024 * 1024
_MAX_DOCUMENT_BYTES = 64 * 1024 * 1024
_MAX_PEM_BYTES = 1024 * 1024

#: The result of reading a document if the caller already knows the version.
Unchanged = Literal["unchanged"]


class Document(Struct, frozen=True):
    """The content of a document, and the tag of its version."""

    content: bytes
    tag: str


class ObjectStorage:
    """
    The objects below the location of *config*. Thread-safe.

    Raises:
        SharedStorageError: The certificates of `s3_tls_root_certificate_file` cannot be read.
    """

    def __init__(self, config: SnapshotsConfig) -> None:
        self._answers, self._last_s = False, 0.0
        self._answered: float | None = None
        self.use(config)

    def use(self, config: SnapshotsConfig) -> None:
        """Send further requests with the params of *config*, for the same location. Raises SharedStorageError."""
        part_s = S3Params.of(config.params).client_timeout
        self._documents, self._files = (
            _store(config, min(part_s, QUICK_S), retries=0),
            _store(config, part_s, retries=3),
        )

    @property
    def is_quick(self) -> bool:
        """Whether a waiting caller can be made to wait for the storage, because it has just responded quickly."""
        return self._answers and self._last_s < _FAST_S

    @property
    def answered_s(self) -> float | None:
        """Seconds since the storage last responded; None if it never did."""
        return None if self._answered is None else time.monotonic() - self._answered

    def read(self, name: str, known_tag: str | None = None) -> Document | Unchanged | None:
        """
        Return the document *name*; None if there is none.

        Raises:
            SharedStorageError: The storage does not respond or refuses the request.
        """
        began, self._answers = time.monotonic(), True
        try:
            found = obstore.get(self._documents, name, options={"if_none_match": known_tag} if known_tag else {})
            if found.meta["size"] > _MAX_DOCUMENT_BYTES:
                raise SharedStorageError(
                    f"The object {name} of runtime.snapshots is too large: something else wrote it."
                )
            return Document(bytes(found.bytes()), found.meta["e_tag"] or "")
        except NotModifiedError:
            return "unchanged"
        except FileNotFoundError:
            return None
        except BaseError as exc:
            self._answers = False
            raise _refusal(exc) from exc
        finally:
            self._last_s = time.monotonic() - began
            if self._answers:
                self._answered = time.monotonic()

    def write(self, name: str, content: bytes, replaces: str | None) -> str | None:
        """
        Write a document if its current version has the tag *replaces*, or if none exists and *replaces* is None.

        Returns:
            The tag of the new version; None if the condition is not met.

        Raises:
            SharedStorageError: See `read`. The document may have been written nevertheless.
        """
        try:
            mode: Literal["create"] | obstore.UpdateVersion = "create" if replaces is None else {"e_tag": replaces}
            return obstore.put(self._documents, name, content, mode=mode, use_multipart=False)["e_tag"] or ""
        except (AlreadyExistsError, PreconditionError):
            return None
        except FileNotFoundError as exc:
            if replaces is not None:
                return None
            raise SharedStorageError("The bucket of runtime.snapshots does not exist.") from exc
        except BaseError as exc:
            raise _refusal(exc) from exc

    def put(self, name: str, content: bytes) -> None:
        """Write a document unconditionally. Raises the same errors as `write`."""
        try:
            obstore.put(self._documents, name, content, use_multipart=False)
        except (BaseError, FileNotFoundError) as exc:
            raise _refusal(exc) from exc

    def tags(self, directory: str) -> dict[str, str]:
        """Return the tag of each object below *directory*, by relative name. Raises SharedStorageError."""
        try:
            pages = obstore.list(self._documents, directory, chunk_size=1000)
            return {one["path"].removeprefix(f"{directory}/"): one["e_tag"] or "" for page in pages for one in page}
        except (BaseError, FileNotFoundError) as exc:
            raise _refusal(exc) from exc

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects. One that does not exist is not an error. Raises SharedStorageError."""
        for name in names:
            try:
                with suppress(FileNotFoundError):
                    obstore.delete(self._documents, name)
            except BaseError as exc:
                raise _refusal(exc) from exc

    def upload(self, name: str, path: Path, deadline: Deadline) -> None:
        """
        Write the file *path* to an object, which is not visible before it is complete.

        Raises:
            SnapshotError: The storage does not accept it, the file cannot be read, or *deadline* has passed.
        """
        try:
            file = path.open("rb", buffering=0)
        except OSError as exc:
            raise SnapshotError(f"A snapshot to share cannot be read: {exc.strerror}.") from exc
        try:
            with file:
                writer = obstore.open_writer(self._files, name, buffer_size=_PART_BYTES, max_concurrency=2)
                while part := file.read(_PART_BYTES):
                    deadline.check()
                    writer.write(part)
                writer.close()
        except (BaseError, OSError) as exc:
            raise _refusal(exc) from exc

    def download(
        self, name: str, path: Path, size: int, deadline: Deadline, *, progress: Callable[[], None] = lambda: None
    ) -> str | None:
        """
        Write an object of *size* bytes to the new file *path*, and sync it to disk. Call *progress* for each part.

        Returns:
            The SHA-256 of the content, "" if the size differs, or None if the object does not exist.

        Raises:
            SnapshotError: The storage does not return it, or *deadline* has passed.
            OSError: The file cannot be written.
        """
        try:
            if obstore.head(self._files, name)["size"] != size:
                return ""
        except FileNotFoundError:
            return None
        except BaseError as exc:
            raise _refusal(exc) from exc
        checksum = hashlib.sha256()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            for start in range(0, size, _PART_BYTES):
                deadline.check()
                progress()
                try:
                    part = obstore.get_range(self._files, name, start=start, end=min(size, start + _PART_BYTES))
                except FileNotFoundError:
                    return None
                except BaseError as exc:
                    raise _refusal(exc) from exc
                checksum.update(part)
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        return checksum.hexdigest()


def _store(config: SnapshotsConfig, timeout_s: float, retries: int) -> S3Store:
    bucket, _, prefix = config.location.removeprefix("s3://").partition("/")
    params = S3Params.of(config.params)
    endpoint, path = params.address_of(bucket)
    options: obstore.store.ClientConfig = {
        "allow_http": endpoint.startswith("http://"),
        "timeout": timedelta(seconds=timeout_s),
        "connect_timeout": timedelta(seconds=min(timeout_s, _CONNECT_S)),
        "user_agent": "querykeep",
    }
    if params.s3_tls_root_certificate_file is not None:
        try:
            options["root_certificate"] = read_regular_file(params.s3_tls_root_certificate_file, _MAX_PEM_BYTES).data
        except UnreadableFileError as exc:
            raise SharedStorageError(f"The s3_tls_root_certificate_file of runtime.snapshots {exc}.") from exc
    keys: dict[str, Any] = {}
    if params.s3_key is not None:  # Otherwise the machine's credentials are used.
        keys = {"access_key_id": params.s3_key, "secret_access_key": params.s3_secret}
        if params.s3_session_token is not None:
            keys["session_token"] = params.s3_session_token
    return S3Store(
        bucket,
        prefix=prefix,
        endpoint=endpoint,
        region=params.s3_region,
        virtual_hosted_style_request=not path,
        client_options=options,
        retry_config={"max_retries": retries, "retry_timeout": timedelta(seconds=timeout_s)},
        **keys,
    )


def _refusal(error: Exception) -> SharedStorageError:
    """Return a sentence for *error*. Its own text contains addresses and quotes the server."""
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        reason = "refuses access: see the params of runtime.snapshots"
    elif isinstance(error, FileNotFoundError):
        reason = "does not have the bucket of runtime.snapshots"
    else:
        reason = "does not respond, or failed"
    return SharedStorageError(f"The storage of shared snapshots {reason}.")


def within(directory: str, names: Collection[str]) -> list[str]:
    """Return *names* prefixed with *directory*."""
    return [f"{directory}/{name}" for name in names]

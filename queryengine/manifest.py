"""
The catalog of published data: one manifest, which is replaced as a whole by an atomic rename.

`datasources` builds and publishes snapshots, and `queryengine` reads them. A snapshot is an immutable DuckDB file with
one table named like its dataset. A snapshot file is deleted right after a manifest without it is published, so a reader
that does not find a file reads the manifest again.
"""

import errno
import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from runtimeconf.model import DatasetConfig
from system.files import MissingFileError, UnreadableFileError, read_regular_file

#: The format of the manifest and the snapshots. Data with another version is rebuilt from the sources, with a warning.
FORMAT_VERSION = 2

MANIFEST_NAME = "manifest.json"

#: The directory of a second manifest, for data that replaces published data once another configuration takes effect.
STAGED_DIRECTORY = "staged"
SNAPSHOT_DIRECTORY = "snapshots"

#: In the directory of an engine that another engine has replaced. Such an engine opens no more published data.
REPLACED_NAME = "replaced"

#: The maximum size of a manifest. A column needs about 1 KiB, so there is room for tens of thousands of columns.
MAX_MANIFEST_BYTES = 64 * 1024 * 1024

#: The maximum number of snapshots without data that a manifest remembers.
_MOST_FORMER = 1_000

#: Identifies one manifest: modification time in nanoseconds, inode and size; None if there is no manifest.
Signature = tuple[int, int, int] | None


class ManifestError(Exception):
    """The manifest cannot be used. `str()` is a sentence without a path."""


class Column(Struct, frozen=True, kw_only=True):
    """A column of a dataset: its name and its DuckDB type, such as `DECIMAL(18,3)`."""

    name: str
    type: str


class Snapshot(Struct, frozen=True, kw_only=True):
    """
    One published version of one dataset.

    `file` is a name inside `SNAPSHOT_DIRECTORY`, and `sha256` and `size_bytes` describe that file. `created_at` is
    ISO 8601 in UTC. `source` is a fingerprint of the settings that the snapshot was built from, so that it is rebuilt
    after the configuration changes. `source_version` identifies the version of the source and the `refresh_sql`, in a
    format that only `datasources` reads. It is None if the source has no version. `origin` is a fingerprint of those
    settings that decide what the columns mean. `retyped` has the lower-case names and first types of the columns that
    had another type in an earlier snapshot of this origin, or that have disappeared. With `is_reordered`, upserts may
    have moved rows, so their order may depend on any column.
    """

    dataset: str
    file: str
    rows: int
    size_bytes: int
    sha256: str
    created_at: str
    source: str
    source_version: str | None = None
    columns: tuple[Column, ...]
    origin: str = ""
    retyped: tuple[Column, ...] = ()
    is_reordered: bool = False


class Manifest(Struct, frozen=True, kw_only=True):
    """
    All published snapshots. `generation` increases by one with each publication.

    `former` has the last snapshots of datasets that have none now. Their files are gone, but not the first types of
    their columns.
    """

    generation: int
    snapshots: tuple[Snapshot, ...] = ()
    former: tuple[Snapshot, ...] = ()


def without_data(known: Mapping[str, Snapshot], snapshots: Collection[Snapshot]) -> tuple[Snapshot, ...]:
    """Return the `former` of a manifest with *snapshots*. *known* has the last ones by lower-case dataset name."""
    present = {one.dataset.lower() for one in snapshots}
    return tuple(one for name, one in known.items() if name not in present)[-_MOST_FORMER:]


def manifest_path(state_dir: Path) -> Path:
    """Return the path of the manifest in *state_dir*. Each publication replaces the file."""
    return state_dir / MANIFEST_NAME


def signature(path: str) -> Signature:
    """Return the signature of the manifest at *path*."""
    try:
        stat = os.stat(path)  # noqa: PTH116 - for each statement; a Path takes three times as long
    except OSError:
        return None
    return _signature_of(stat)


class Pin:
    """
    Keeps the manifest at *path* open, so that no later manifest can have its inode, and therefore its `signature`.

    Otherwise, if two manifests are replaced within one tick of the file system's clock, the next one might look like
    the first. `is_held` is False if there is no manifest or no free descriptor. Its signature may then recur.
    """

    def __init__(self, path: str) -> None:
        self._descriptor: int | None = None
        self.signature = signature(path)
        with suppress(OSError):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self.signature = _signature_of(os.fstat(self._descriptor))
        self.is_held = self._descriptor is not None

    def close(self) -> None:
        """Close the manifest. Repeated calls from one thread are harmless."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _signature_of(stat: os.stat_result) -> Signature:
    return stat.st_mtime_ns, stat.st_ino, stat.st_size


def snapshot_path(state_dir: Path, snapshot: Snapshot) -> Path:
    """Return the path of the file of *snapshot*, which is deleted once a newer manifest no longer contains it."""
    return state_dir / SNAPSHOT_DIRECTORY / snapshot.file


def parquet_file(file: str) -> str:
    """Return the name of the Parquet object for the snapshot *file*, without a leading `_`, which clusters skip."""
    return f"{Path(file).stem.lstrip('_')}.parquet"


def read_manifest(state_dir: Path) -> Manifest:
    """
    Return the published manifest. If nothing was ever published, return generation 0 without snapshots.

    Raises:
        ManifestError: The file cannot be read, is damaged, or has the format version of another release.
    """
    try:
        text = read_regular_file(manifest_path(state_dir), MAX_MANIFEST_BYTES).data
    except MissingFileError:
        return Manifest(generation=0)
    except UnreadableFileError as exc:
        raise ManifestError(f"The manifest of published data cannot be read: {exc}.") from exc
    return _decode(text)


def read_declared(state_dir: Path, datasets: Sequence[DatasetConfig]) -> tuple[Manifest, bool]:
    """
    Return the published manifest with only the data that *datasets* declare, and whether none of it is missing.

    While another configuration takes effect, data that it declares differently is staged. It is included if *datasets*
    declare it, so that no statement reads data that its key's configuration does not declare.

    Raises:
        ManifestError: See `read_manifest`.
    """
    fingerprints = {one.name.lower(): one.fingerprint for one in datasets if one.fingerprint}

    def declared(manifest: Manifest) -> dict[str, Snapshot]:
        named = {one.dataset.lower(): one for one in manifest.snapshots}
        return {name: one for name, one in named.items() if fingerprints.get(name, one.source) == one.source}

    published = read_manifest(state_dir)
    found = declared(published)
    if len(found) == len(published.snapshots):
        return published, True
    changed = with_readers({one.dataset.lower() for one in published.snapshots} - found.keys(), datasets)
    found = {name: one for name, one in found.items() if name not in changed}
    staged = declared(read_manifest(state_dir / STAGED_DIRECTORY))
    missing = with_readers(changed - staged.keys(), datasets)
    found |= {name: staged[name] for name in changed - missing}
    return replace(published, snapshots=tuple(found.values())), not missing


def with_readers(names: set[str], datasets: Iterable[DatasetConfig]) -> set[str]:
    """Return the lower-case *names* of datasets, and those of the materialized views that read one of them."""
    views = {one.name.lower(): one.view.reads for one in datasets if one.view is not None}
    found = more = set(names)
    while more:
        more = {name for name, reads in views.items() if not more.isdisjoint(reads)} - found
        found = found | more
    return found


def write_manifest(state_dir: Path, manifest: Manifest) -> bool:
    """
    Publish *manifest*. After this returns, every reader sees it.

    Returns:
        Whether the manifest is certain to survive a power failure. If the disk does not confirm the write, the previous
            manifest may reappear.

    Raises:
        OSError: The manifest cannot be written, or is too large to be read. The previous one stays published.
    """
    text = _encode(manifest)
    if len(text) > MAX_MANIFEST_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    target = manifest_path(state_dir)
    temporary = target.with_name(f"{MANIFEST_NAME}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    try:
        sync_directory(state_dir)
    except OSError:
        return False
    return True


def sync_directory(directory: Path) -> None:
    """
    Make the names in *directory* durable. A rename is on disk only after its directory has been synced.

    Raises:
        OSError: The directory cannot be opened or synced.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _canonical(content: Mapping[str, Any]) -> bytes:
    """Return the canonical JSON of *content*, from which the checksum is computed."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def _encode(manifest: Manifest) -> bytes:
    fields: dict[str, Any] = {"generation": manifest.generation}
    fields["snapshots"] = [snapshot_fields(snapshot) for snapshot in manifest.snapshots]
    if manifest.former:
        fields["former"] = [snapshot_fields(snapshot) for snapshot in manifest.former]
    content = _canonical(fields)
    checksum = hashlib.sha256(content).hexdigest()
    head = f'{{"format_version":{FORMAT_VERSION},"checksum":"{checksum}","content":'
    return head.encode("ascii") + content + b"}\n"


def snapshot_fields(snapshot: Snapshot) -> dict[str, Any]:
    """Return *snapshot* as JSON types."""
    columns = {name: list(map(asdict, getattr(snapshot, name))) for name in ("columns", "retyped")}
    return {**asdict(snapshot), **columns}


def _decode(text: bytes) -> Manifest:
    try:
        document = json.loads(text)
        version = document["format_version"]
        if version != FORMAT_VERSION:
            # Check this before the checksum, because another release may compute the checksum differently.
            raise ManifestError(
                f"The manifest of published data has format version {version!r:.40}, not {FORMAT_VERSION}."
            )
        content = document["content"]
        if hashlib.sha256(_canonical(content)).hexdigest() != document["checksum"]:
            raise ManifestError("The manifest of published data is damaged: its checksum is wrong.")
        return Manifest(
            generation=int(content["generation"]),
            snapshots=tuple(snapshot_of(item) for item in content["snapshots"]),
            former=tuple(snapshot_of(item) for item in content.get("former", ())),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise ManifestError(
            "The manifest of published data is damaged: it does not have the format that this release writes."
        ) from exc


def snapshot_of(item: dict[str, Any]) -> Snapshot:
    """
    Return the snapshot from *item*, which `snapshot_fields` returned.

    Raises:
        ValueError, KeyError, TypeError: *item* is not a snapshot.
    """
    columns = {name: tuple(Column(**one) for one in item.get(name, ())) for name in ("columns", "retyped")}
    snapshot = Snapshot(**{**item, **columns})
    if Path(snapshot.file).name != snapshot.file:
        raise ValueError("a snapshot is a name inside its directory")
    return snapshot

"""
Copies the log of a Delta table into a load's scratch directory.

The deltalake library reads the copy, so it needs no network or credentials, and reads one version. Every path in the
copy is checked before the library sees it, so the log names no file outside the table. The rules are defined in the
Delta transaction log protocol.
"""

import base64
import json
import re
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from connectors.lake import TableRoot, inside
from datasources.errors import SourceError
from datasources.sources.source import Load

LOG = "_delta_log"
_SIDECARS = f"{LOG}/_sidecars"

_COMMIT = re.compile(r"(\d{20})\.json")
#: Classic checkpoints (in one or more parts) and version 2 checkpoints.
_CHECKPOINT = re.compile(
    r"(\d{20})\.checkpoint(?:\.parquet|\.(\d{10})\.(\d{10})\.parquet|\.[0-9A-Fa-f-]{36}\.(?:parquet|json))"
)

_BLOCK_BYTES = 1024 * 1024
#: The number of checkpoint rows checked at once.
_ROWS = 4096

#: Maps the digits of Z85 (ZeroMQ RFC 32), which encodes deletion vector names, to the digits of base64.b85decode.
_FROM_Z85 = str.maketrans(
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
    ";_`|~",  # not Z85 digits: removing them makes the length wrong
)

#: The columns of a checkpoint that name files.
_NAMING = ("add.deletionVector.storageType", "add.deletionVector.pathOrInlineDv", "sidecar.path")

#: Commits passed to the library at once. It reads each in a thread whose stack counts against a loader's memory.
_STEP = 16


def commit_path(version: int) -> str:
    """Return the path of the commit of *version*."""
    return f"{LOG}/{version:020}.json"


class LogCopy:
    """
    A copy in *directory* of the part of the log that the newest *version* needs.

    Raises:
        SourceError: There is no table, or its log has a gap.
    """

    def __init__(self, root: TableRoot, load: Load) -> None:
        self._root = root
        self._load = load
        self._left_bytes = load.scratch_bytes
        self._sidecars: set[str] = set()
        self._vectors: set[str] = set()
        self.directory = load.scratch / "delta"
        self.has_deletion_vectors = False
        names = root.names(LOG)
        commits = {int(match[1]) for name in names if (match := _COMMIT.fullmatch(name))}
        checkpoints = _complete(names)
        if not commits and not checkpoints:
            raise SourceError(f"'{root.shown}' is not a Delta table: it has no {LOG}.")
        start = self.version = max(checkpoints, default=-1)
        while self.version + 1 in commits:
            self.version += 1
        if commits and self.version < max(commits):
            raise SourceError(f"The log of '{root.shown}' is missing version {self.version + 1}.")
        self._checkpoint = [f"{LOG}/{name}" for name in checkpoints.get(start, ())]
        self._commits = [commit_path(number) for number in range(start + 1, self.version + 1)]

    def steps(self) -> Iterator[None]:
        """
        Copy the log step by step. After each step the library can read a newer version of the table.

        Raises:
            SourceError: A file of the log is missing or damaged, or names a file outside the table.
            OSError: The disk is full.
        """
        for path in self._checkpoint:
            self._copy(path)
        for name in sorted(self._sidecars):
            self._copy(f"{_SIDECARS}/{name}")
        if self._checkpoint:
            yield
        for start in range(0, len(self._commits), _STEP):
            for path in self._commits[start : start + _STEP]:
                self._copy(path)
            yield

    def copy_deletion_vectors(self) -> None:
        """Copy the deletion vectors. Raises the same errors as `steps`."""
        for path in sorted(self._vectors):
            # Vectors replaced by later versions may have been deleted.
            if self._root.has(path):
                self._fetch(path)

    def require(self, features: frozenset[str]) -> None:
        """Add a version to the copy that requires only *features* of its readers."""
        names = sorted(features)
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": names, "writerFeatures": names}
        path = self.directory / commit_path(self.version + 1)
        path.write_text(json.dumps({"protocol": protocol}), encoding="utf-8")

    def _copy(self, path: str) -> None:
        """Copy a file of the log and check the paths in it."""
        target = self._fetch(path)
        try:
            for action in _json_actions(target) if path.endswith(".json") else _parquet_actions(target):
                self._check(action)
        except (ValueError, TypeError, AttributeError, RecursionError, pa.ArrowException, OSError):
            raise SourceError(f"'{path}' of '{self._root.shown}' is damaged.") from None

    def _fetch(self, path: str) -> Path:
        target = self.directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with self._root.open(path) as source, target.open("wb") as file:
            while True:
                # Only errors of the read are explained. A full disk is not an error of the table.
                with self._root.reading(path):
                    block: bytes = source.read(_BLOCK_BYTES)
                if not block:
                    return target
                self._load.deadline.check()
                self._left_bytes -= len(block)
                if self._left_bytes < 0:
                    raise SourceError(
                        f"The log of '{self._root.shown}' is larger than query.temp_directory_limit: write a "
                        "checkpoint, or raise the limit."
                    )
                file.write(block)

    def _check(self, action: dict[str, Any]) -> None:
        sidecar, vector = action.get("sidecar"), (action.get("add") or {}).get("deletionVector")
        if sidecar is not None:
            name = sidecar["path"]
            if re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", name) is None:
                raise outside(self._root)
            self._sidecars.add(name)
        if vector is not None:
            self.has_deletion_vectors = True
            kind, text = vector["storageType"], vector["pathOrInlineDv"]
            if kind == "u":
                self._vectors.add(self._vector_path(text))
            elif kind != "i":
                raise outside(self._root)

    def _vector_path(self, text: str) -> str:
        """Return the path of a deletion vector: a prefix, and 20 characters that encode a UUID."""
        prefix, encoded = text[:-20], text[-20:]
        if re.fullmatch(r"[A-Za-z0-9_-]*", prefix) is None:
            raise outside(self._root)
        name = uuid.UUID(bytes=base64.b85decode(encoded.translate(_FROM_Z85)))
        path = inside(f"{prefix}/deletion_vector_{name}.bin".lstrip("/"))
        if path is None:
            raise outside(self._root)
        return path


def _complete(names: Iterable[str]) -> dict[int, list[str]]:
    """Return the files of each complete checkpoint, by version."""
    found: dict[int, list[str]] = {}
    parts: dict[tuple[int, int], list[str]] = {}
    for name in sorted(names):
        match = _CHECKPOINT.fullmatch(name)
        if match is None:
            continue
        if match[3] is not None:
            parts.setdefault((int(match[1]), int(match[3])), []).append(name)
        else:
            # One is enough because all checkpoints of a version are equivalent.
            found.setdefault(int(match[1]), [name])
    for (version, count), members in parts.items():
        if len(members) == count:
            found.setdefault(version, members)
    return found


def _json_actions(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            if line.strip():
                yield json.loads(line, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a repeated name, because readers disagree on which one counts."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("repeated name")
    return made


def _parquet_actions(path: Path) -> Iterator[dict[str, Any]]:
    with pq.ParquetFile(path) as file:
        present = {file.schema.column(index).path for index in range(len(file.schema.names))}
        columns = [name for name in _NAMING if name in present]
        if not columns:
            return
        for batch in file.iter_batches(_ROWS, columns=columns, use_threads=False):
            yield from batch.to_pylist()


def outside(root: TableRoot) -> SourceError:
    """Return the error for a table whose log names a file outside the table."""
    return SourceError(
        f"The log of '{root.shown}' references a file outside the table, as in a shallow clone: only files in the "
        "table can be read."
    )

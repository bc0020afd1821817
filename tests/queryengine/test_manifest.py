import json
import os
import resource
import stat
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from queryengine import manifest as module
from queryengine.manifest import Column, Manifest, ManifestError, Snapshot

FLIGHTS = Snapshot(
    dataset="flights",
    file="flights-1.duckdb",
    rows=3,
    size_bytes=4096,
    sha256="ab" * 32,
    created_at="2026-01-01T00:00:00Z",
    source="cd" * 32,
    columns=(Column(name="a", type="INTEGER"), Column(name="ü \" '", type="STRUCT(b VARCHAR)")),
)


def test_reads_what_was_written(tmp_path: Path) -> None:
    manifest = Manifest(generation=7, snapshots=(FLIGHTS,))
    assert module.read_manifest(tmp_path) == Manifest(generation=0), "nothing is published yet"

    assert module.write_manifest(tmp_path, manifest)

    assert module.read_manifest(tmp_path) == manifest
    assert module.snapshot_path(tmp_path, FLIGHTS) == tmp_path / "snapshots" / "flights-1.duckdb"
    assert [entry.name for entry in tmp_path.iterdir()] == [module.MANIFEST_NAME]
    assert stat.S_IMODE(module.manifest_path(tmp_path).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        pytest.param({"format_version": 999}, "format version 999, not 2", id="another release"),
        pytest.param({"checksum": "00"}, "damaged", id="wrong checksum"),
        pytest.param({"content": {"generation": 2, "snapshots": []}}, "damaged", id="content edited by hand"),
        pytest.param({"content": None}, "damaged", id="no content"),
        pytest.param({"content": []}, "damaged", id="content is a list"),
        pytest.param(b"", "damaged", id="empty"),
        pytest.param(b"null", "damaged", id="null"),
        pytest.param(b"[]", "damaged", id="list"),
        pytest.param(b"{}", "damaged", id="no version"),
        pytest.param(b"\xff\xfe", "damaged", id="not UTF-8"),
        pytest.param(b"[" * 200_000, "damaged", id="nested beyond the parser"),
    ],
)
def test_r18_a_changed_manifest_is_refused(tmp_path: Path, changes: dict[str, Any] | bytes, complaint: str) -> None:
    module.write_manifest(tmp_path, Manifest(generation=1, snapshots=(FLIGHTS,)))
    path = module.manifest_path(tmp_path)
    if isinstance(changes, dict):
        changes = json.dumps({**json.loads(path.read_bytes()), **changes}).encode()
    path.write_bytes(changes)

    with pytest.raises(ManifestError, match=complaint):
        module.read_manifest(tmp_path)


def test_a_snapshot_outside_its_directory_is_refused(tmp_path: Path) -> None:
    module.write_manifest(tmp_path, Manifest(generation=1, snapshots=(replace(FLIGHTS, file="../../etc/passwd"),)))

    with pytest.raises(ManifestError, match="damaged"):
        module.read_manifest(tmp_path)


def test_a_manifest_too_large_to_be_ours_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module.write_manifest(tmp_path, Manifest(generation=1, snapshots=(FLIGHTS,)))
    monkeypatch.setattr(module, "MAX_MANIFEST_BYTES", 100)

    with pytest.raises(ManifestError, match="larger than"):
        module.read_manifest(tmp_path)


def test_reading_takes_the_memory_of_what_is_there(tmp_path: Path) -> None:
    module.write_manifest(tmp_path, Manifest(generation=7, snapshots=(FLIGHTS,)))
    module.read_manifest(tmp_path)

    tracemalloc.start()
    try:
        module.read_manifest(tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1024 * 1024


@pytest.mark.parametrize(("make", "complaint"), [(os.mkfifo, "a named pipe"), (os.mkdir, "cannot be read")])
def test_what_is_no_file_is_an_error_without_its_path_and_no_wait(
    tmp_path: Path, make: Callable[[Path], None], complaint: str
) -> None:
    make(module.manifest_path(tmp_path))

    with pytest.raises(ManifestError, match=complaint) as caught:
        module.read_manifest(tmp_path)

    assert str(tmp_path) not in str(caught.value)


def full(_descriptor: int) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        pytest.param("os.fsync", full, "No space", id="the disk is full"),
        pytest.param(f"{module.__name__}.MAX_MANIFEST_BYTES", 300, "File too large", id="it could not be read again"),
    ],
)
def test_a_failed_publication_leaves_the_old_one_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: object, complaint: str
) -> None:
    module.write_manifest(tmp_path, Manifest(generation=1))
    monkeypatch.setattr(name, value)

    with pytest.raises(OSError, match=complaint):
        module.write_manifest(tmp_path, Manifest(generation=2, snapshots=(FLIGHTS,)))

    assert module.read_manifest(tmp_path).generation == 1
    assert [entry.name for entry in tmp_path.iterdir()] == [module.MANIFEST_NAME]


@given(st.binary(max_size=200))
def test_no_bytes_at_all_make_the_decoder_fail_otherwise(text: bytes) -> None:
    with pytest.raises(ManifestError):
        module._decode(text)


names = st.text(min_size=1, max_size=20)
snapshots = st.builds(
    Snapshot,
    dataset=names,
    file=st.from_regex(r"[a-z0-9_]{1,20}\.duckdb", fullmatch=True),
    rows=st.integers(min_value=0, max_value=2**63),
    size_bytes=st.integers(min_value=0),
    sha256=names,
    created_at=names,
    source=names,
    columns=st.lists(st.builds(Column, name=names, type=names), max_size=3).map(tuple),
)


@given(st.builds(Manifest, generation=st.integers(min_value=0), snapshots=st.lists(snapshots, max_size=3).map(tuple)))
def test_any_manifest_survives_its_file_format(manifest: Manifest) -> None:
    assert module._decode(module._encode(manifest)) == manifest


def test_a_pin_keeps_its_inode_from_every_later_manifest(tmp_path: Path) -> None:
    path = tmp_path / module.MANIFEST_NAME
    module.write_manifest(tmp_path, Manifest(generation=1))
    pin = module.Pin(str(path))
    assert (pin.is_held, pin.signature) == (True, module.signature(str(path)))

    for generation in range(2, 10):
        module.write_manifest(tmp_path, Manifest(generation=generation))
        assert path.stat().st_ino != (pin.signature and pin.signature[1])

    pin.close()
    pin.close()


def test_what_is_not_there_or_cannot_be_opened_is_not_held(tmp_path: Path) -> None:
    path = str(tmp_path / module.MANIFEST_NAME)
    assert (module.Pin(path).is_held, module.Pin(path).signature) == (False, None)

    module.write_manifest(tmp_path, Manifest(generation=1))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        pin = module.Pin(path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert (pin.is_held, pin.signature) == (False, module.signature(path))
    pin.close()

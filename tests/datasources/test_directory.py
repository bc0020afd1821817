import errno
import json
import logging
import os
import resource
import shutil
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import duckdb
import pytest

from datasources.errors import SnapshotError
from datasources.snapshots.directory import SnapshotDirectory
from datasources.snapshots.snapshot import Order
from queryengine.manifest import Manifest, Snapshot, manifest_path, read_manifest, snapshot_path, write_manifest
from runtimeconf.model import AccelerationConfig, DatasetConfig
from system.errors import StateDirectoryError
from tests.datasources.sources.test_files import put
from tests.datasources.support import builder, deadline, declare, files_below, rows
from tests.datasources.test_snapshot import flip


def publish(directory: Path, datasets: Sequence[DatasetConfig]) -> list[Snapshot]:
    """Load and publish *datasets* as a runtime that then ends would."""
    made = builder(directory)
    served = SnapshotDirectory(directory / "state", datasets)
    snapshots = []
    for dataset in datasets:
        put(directory, dataset.from_.removeprefix("file:"))
        snapshots.append(made.build(Order(dataset), deadline()))
        served.publish(snapshots[-1])
    return snapshots


@pytest.fixture
def dataset(tmp_path: Path) -> DatasetConfig:
    return declare(tmp_path, "a.csv")


def test_a_new_version_takes_the_place_of_the_old_one_whose_file_is_gone_at_once(
    tmp_path: Path, dataset: DatasetConfig
) -> None:
    (old,) = publish(tmp_path, [dataset])
    served = SnapshotDirectory(tmp_path / "state", [dataset])
    running = duckdb.connect(str(snapshot_path(tmp_path / "state", old)), read_only=True)
    put(tmp_path, "a.csv", "a,b\n2,new\n")

    new = builder(tmp_path).build(Order(dataset), deadline())
    served.publish(new)

    assert read_manifest(tmp_path / "state").generation == 2
    assert read_manifest(tmp_path / "state").snapshots == (new,)
    assert served.snapshot("d") == new
    assert files_below(tmp_path) == ["manifest.json", f"snapshots/{new.file}"]
    assert running.execute("FROM d").fetchall() == [(1, "x")]
    running.close()


def test_a_snapshot_is_kept_when_descriptors_run_out(tmp_path: Path, dataset: DatasetConfig) -> None:
    (snapshot,) = publish(tmp_path, [dataset])
    served = SnapshotDirectory(tmp_path / "state", [dataset])
    path = snapshot_path(tmp_path / "state", snapshot)
    path.chmod(0o400)  # so it has to be read again
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            served.withdraw_damaged()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    assert served.withdraw_damaged() == {}
    assert served.snapshot("d") == snapshot
    assert path.exists()


def test_a_failed_write_of_the_manifest_keeps_the_served_data(tmp_path: Path, dataset: DatasetConfig) -> None:
    made = builder(tmp_path)
    served = SnapshotDirectory(tmp_path / "state", [dataset])
    put(tmp_path, "a.csv")
    snapshot = made.build(Order(dataset), deadline())
    manifest_path(tmp_path / "state").mkdir()

    with pytest.raises(SnapshotError, match=r"^The manifest .* written to the state directory: Is a directory\.$"):
        served.publish(snapshot)

    assert served.snapshot("d") is None
    assert files_below(tmp_path) == []


def test_r02_a_publication_that_the_disk_does_not_confirm_is_served_and_what_it_may_fall_back_to_stays(
    tmp_path: Path, dataset: DatasetConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    state_dir = tmp_path / "state"
    (old,) = publish(tmp_path, [dataset])
    before = manifest_path(state_dir).read_bytes()
    served = SnapshotDirectory(state_dir, [dataset])
    made = builder(tmp_path)
    unconfirmed, confirmed = made.build(Order(dataset), deadline()), made.build(Order(dataset), deadline())
    sync = os.fsync

    def fail_for_directories(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_for_directories)
        served.publish(unconfirmed)

    assert served.snapshot("d") == unconfirmed
    assert read_manifest(state_dir).snapshots == (unconfirmed,)
    assert "a power failure may revert it" in caplog.text
    shutil.copytree(state_dir, tmp_path / "after")
    manifest_path(tmp_path / "after").write_bytes(before)
    assert SnapshotDirectory(tmp_path / "after", [dataset]).snapshot("d") == old

    served.publish(confirmed)

    assert files_below(tmp_path) == ["manifest.json", f"snapshots/{confirmed.file}"]


def test_r02_leftovers_of_a_killed_predecessor_are_swept_and_foreign_files_are_not(
    tmp_path: Path, dataset: DatasetConfig
) -> None:
    (snapshot,) = publish(tmp_path, [dataset])
    state_dir = tmp_path / "state"
    for name in (
        "snapshots/d-0000000000000000.duckdb",
        "snapshots/d-0000000000000000.duckdb.wal",
        f"snapshots/{snapshot.file}.wal",
        "snapshots/d-0000000000000001.duckdb.tmp/file",
        "manifest.json.4711.tmp",
        "refresh_tmp/d-0123456789abcdef/duckdb_temp_storage-0.tmp",
    ):
        put(state_dir, name, b"left")
    foreign = ["snapshots/note", "snapshots/mine.duckdb", "snapshots/a/b", "refresh_tmp/note", "manifest.json.old.tmp"]
    for name in foreign:
        put(state_dir, name, b"mine")
    (state_dir / "snapshots/d-0000000000000002.duckdb").symlink_to(tmp_path / "a.csv")
    (state_dir / "refresh_tmp/d-0000000000000003").symlink_to(tmp_path)
    (state_dir / "refresh_tmp/d-0123456789abcdef/link").symlink_to(tmp_path)

    served = SnapshotDirectory(state_dir, [dataset])

    assert served.snapshot("d") == snapshot
    assert files_below(tmp_path) == sorted(["manifest.json", f"snapshots/{snapshot.file}", *foreign])
    assert list((state_dir / "refresh_tmp").iterdir()) == [state_dir / "refresh_tmp/note"]
    assert (tmp_path / "a.csv").exists()
    assert rows(tmp_path, snapshot) == [(1, "x")]


@pytest.mark.parametrize("name", ["snapshots", "refresh_tmp"])
def test_nothing_is_deleted_through_a_link(tmp_path: Path, name: str) -> None:
    state_dir, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    state_dir.mkdir(mode=0o700)
    put(elsewhere, "d-0000000000000000.duckdb", b"mine")
    put(elsewhere, "d-0123456789abcdef/file", b"mine")
    (state_dir / name).symlink_to(elsewhere)

    SnapshotDirectory(state_dir, [])

    assert (elsewhere / "d-0000000000000000.duckdb").exists()
    assert (elsewhere / "d-0123456789abcdef/file").exists()


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda bad, _: flip(bad, 9000), id="flipped"),
        pytest.param(lambda bad, _: bad.write_bytes(bad.read_bytes()[:-4096]), id="truncated"),
        pytest.param(lambda bad, _: bad.unlink(), id="deleted"),
        pytest.param(lambda bad, good: shutil.copy(good, bad), id="foreign"),
    ],
)
def test_r18_a_damaged_snapshot_is_not_served_again(
    tmp_path: Path, damage: Callable[[Path, Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    datasets = [declare(tmp_path, "a.csv", name="a"), declare(tmp_path, "b.csv", name="b")]
    bad, good = publish(tmp_path, datasets)
    damage(snapshot_path(tmp_path / "state", bad), snapshot_path(tmp_path / "state", good))

    served = SnapshotDirectory(tmp_path / "state", datasets)

    assert served.snapshot("a") is None
    assert served.snapshot("b") == good
    assert read_manifest(tmp_path / "state").generation == 3
    assert files_below(tmp_path) == ["manifest.json", f"snapshots/{good.file}"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "It will be reloaded from the source." in caplog.text


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(lambda text: json.dumps({**json.loads(text), "format_version": 1}), id="version"),
        pytest.param(lambda _: "\0" * 100, id="garbage"),
        pytest.param(lambda text: text.replace('"rows":1', '"rows":7'), id="checksum"),
    ],
)
def test_r18_a_manifest_that_cannot_be_used_starts_anew_with_a_warning(
    tmp_path: Path, dataset: DatasetConfig, damaged: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    publish(tmp_path, [dataset])
    path = manifest_path(tmp_path / "state")
    path.write_text(damaged(path.read_text()))

    served = SnapshotDirectory(tmp_path / "state", [dataset])

    assert served.snapshot("d") is None
    assert read_manifest(tmp_path / "state").generation > 1_000_000
    assert files_below(tmp_path) == ["manifest.json"]
    assert "All data will be reloaded from the sources." in caplog.text


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(Path.unlink, id="gone"),
        pytest.param(lambda path: path.write_text("{"), id="junk"),
        pytest.param(lambda path: write_manifest(path.parent, Manifest(generation=1)), id="older"),
    ],
)
def test_r18_a_manifest_that_is_damaged_later_is_written_again(
    tmp_path: Path, dataset: DatasetConfig, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    (snapshot,) = publish(tmp_path, [dataset])
    served = SnapshotDirectory(tmp_path / "state", [dataset])
    path = manifest_path(tmp_path / "state")
    whole = path.stat()
    os.utime(path)  # It looks otherwise and is the same.
    for _ in range(2):
        served.restore()
    assert path.stat().st_ino == whole.st_ino
    damage(path)

    served.restore()

    assert read_manifest(tmp_path / "state") == Manifest(generation=2, snapshots=(snapshot,))
    assert caplog.messages[-1].endswith("It will be rewritten.")


def test_a_dataset_that_is_no_longer_declared_or_was_declared_otherwise_disappears(tmp_path: Path) -> None:
    gone, kept, old = (declare(tmp_path, "a.csv", name=name) for name in "abc")
    _, snapshot, _ = publish(tmp_path, [gone, kept, old])
    changed = declare(tmp_path, "a.csv", name="c", acceleration=AccelerationConfig(refresh_sql="SELECT a FROM c"))

    served = SnapshotDirectory(tmp_path / "state", [kept, changed])

    assert served.snapshot("c") is None
    assert read_manifest(tmp_path / "state").snapshots == (snapshot,)
    assert files_below(tmp_path) == ["manifest.json", f"snapshots/{snapshot.file}"]


def test_an_unwritable_state_directory_is_reported(tmp_path: Path) -> None:
    put(tmp_path, "state/snapshots", b"a file")

    with pytest.raises(StateDirectoryError, match=r"^The state directory cannot be written: File exists\.$"):
        SnapshotDirectory(tmp_path / "state", [])


def test_what_other_declarations_do_not_have_stays_published_until_it_is_dropped(tmp_path: Path) -> None:
    gone, kept, old = (declare(tmp_path, "a.csv", name=name) for name in "abc")
    snapshots = publish(tmp_path, [gone, kept, old])
    served = SnapshotDirectory(tmp_path / "state", [gone, kept, old])
    changed = declare(tmp_path, "a.csv", name="c", acceleration=AccelerationConfig(refresh_sql="SELECT a FROM c"))
    manifest = read_manifest(tmp_path / "state")

    served.redeclare([kept, changed])
    assert [served.snapshot(name) for name in "abc"] == [None, snapshots[1], None]
    assert read_manifest(tmp_path / "state") == manifest
    served.redeclare([gone, kept, old])
    assert [served.snapshot(name) for name in "abc"] == snapshots

    served.redeclare([kept, changed])
    snapshot_path(tmp_path / "state", snapshots[0]).unlink()
    assert served.withdraw_damaged() == {}
    new = builder(tmp_path).build(Order(changed), deadline())
    served.publish(new)
    assert read_manifest(tmp_path / "state").snapshots == tuple(snapshots[1:])
    assert served.snapshot("c") == new
    served.redeclare([gone, kept, old])
    assert served.snapshot("c") == snapshots[2]
    assert files_below(tmp_path) == ["manifest.json", *sorted(f"snapshots/{one.file}" for one in snapshots[1:])]

    served.redeclare([kept, changed])
    new = builder(tmp_path).build(Order(changed), deadline())
    served.publish(new)
    served.drop_undeclared()
    served.drop_undeclared()
    assert read_manifest(tmp_path / "state").snapshots == (snapshots[1], new)
    assert files_below(tmp_path) == ["manifest.json", *sorted(f"snapshots/{one.file}" for one in (snapshots[1], new))]


def test_staged_data_is_served_if_what_it_replaces_was_withdrawn(tmp_path: Path) -> None:
    (old,) = publish(tmp_path, [declare(tmp_path, "a.csv")])
    changed = declare(tmp_path, "a.csv", acceleration=AccelerationConfig(refresh_sql="SELECT a FROM d"))
    served = SnapshotDirectory(tmp_path / "state", [declare(tmp_path, "a.csv")])
    served.redeclare([changed])
    new = builder(tmp_path).build(Order(changed), deadline())
    served.publish(new)
    snapshot_path(tmp_path / "state", old).unlink()
    assert served.withdraw_damaged() == {}

    served.drop_undeclared()

    assert read_manifest(tmp_path / "state").snapshots == (new,)
    assert served.snapshot("d") == new

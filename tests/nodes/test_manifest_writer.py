import threading
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from datasources.deadline import Deadline
from datasources.errors import SharedStorageError, SnapshotError
from datasources.snapshots.parquet import export
from nodes import manifest_writer as module
from nodes.documents import MANIFEST, SharedManifest
from nodes.manifest_writer import ManifestWriter
from nodes.object_storage import ObjectStorage
from queryengine.manifest import SNAPSHOT_DIRECTORY, Snapshot, parquet_file
from tests.datasources.support import MIB, deadline
from tests.nodes.storage_server import SharedStorage
from tests.system.harness import wait_for


def published(shared: SharedStorage) -> SharedManifest:
    return SharedManifest.decode(shared.document(MANIFEST))


def another(directory: Path, snapshot: Snapshot, number: int) -> Snapshot:
    """Return a snapshot with the same content in another file."""
    other = replace(snapshot, file=f"d-{number:016x}.duckdb")
    snapshots = directory / "state" / SNAPSHOT_DIRECTORY
    (snapshots / other.file).write_bytes((snapshots / snapshot.file).read_bytes())
    return other


def begin(storage: ObjectStorage, directory: Path, node: str = "a", epoch: int = 1) -> ManifestWriter:
    writer = ManifestWriter(storage, node, epoch, directory / "state")
    writer.take_over()
    return writer


def test_a_snapshot_is_uploaded_and_then_named(
    tmp_path: Path, shared: SharedStorage, storage: ObjectStorage, snapshot: Snapshot
) -> None:
    writer = begin(storage, tmp_path)
    assert published(shared) == SharedManifest(epoch=1, node="a", generation=1, snapshots=())

    writer.publish(snapshot, deadline())

    assert published(shared) == SharedManifest(epoch=1, node="a", generation=2, snapshots=(snapshot,))
    assert f"snapshots/{snapshot.file}" in shared.names()


def test_an_earlier_holder_of_the_lease_cannot_publish(
    tmp_path: Path, shared: SharedStorage, storage: ObjectStorage, snapshot: Snapshot
) -> None:
    first = begin(storage, tmp_path)
    second = begin(storage, tmp_path, "b", 2)

    for call in (
        lambda: first.publish(snapshot, deadline()),
        lambda: first.publish(snapshot, deadline()),
        lambda: first.remove_unused(()),
        lambda: begin(storage, tmp_path, "a", 1),
        lambda: begin(storage, tmp_path, "c", 2),  # the lease was deleted, and somebody else has the same epoch
    ):
        with pytest.raises(SharedStorageError, match="Another node is now the publisher"):
            call()

    assert (first.fenced_by, second.fenced_by) == (2, None)
    assert published(shared) == SharedManifest(epoch=2, node="b", generation=2, snapshots=())
    second.publish(snapshot, deadline())
    assert published(shared).snapshots == (snapshot,)


def test_what_an_earlier_holder_publishes_until_the_takeover_is_kept(
    tmp_path: Path, shared: SharedStorage, storage: ObjectStorage, snapshot: Snapshot
) -> None:
    first = begin(storage, tmp_path)
    second = ManifestWriter(storage, "b", 2, tmp_path / "state")
    second._read()
    first.publish(snapshot, deadline())

    assert not second._write(())
    assert second.take_over().snapshots == (snapshot,)
    assert published(shared).epoch == 2


def test_a_publication_whose_answer_was_lost_is_not_taken_back_and_nothing_is_deleted(
    tmp_path: Path,
    shared: SharedStorage,
    storage: ObjectStorage,
    snapshot: Snapshot,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    writer = begin(storage, tmp_path)
    writer.publish(snapshot, deadline())
    lost = another(tmp_path, snapshot, 1)
    shared.fault("lost", only=MANIFEST)
    with pytest.raises(SharedStorageError, match="does not respond"):
        writer.publish(lost, deadline())
    assert published(shared).snapshots == (lost,)
    with pytest.raises(SharedStorageError, match="does not respond"):
        writer.remove_unused(())
    assert f"snapshots/{lost.file}" in shared.names()
    shared.fault()

    for call in (writer.settle, partial(writer.remove_unused, ()), partial(writer.publish, snapshot, deadline())):
        with pytest.raises(SharedStorageError, match="reads the published data again"):
            call()

    assert (writer.fenced_by, writer.is_overtaken) == (1, True)
    assert published(shared).snapshots == (lost,)
    assert {f"snapshots/{one.file}" for one in (snapshot, lost)} <= set(shared.names())
    assert begin(storage, tmp_path, epoch=2).take_over().snapshots == (lost,)


def test_a_publication_whose_answer_was_lost_is_replaced_by_the_next_of_its_dataset(
    tmp_path: Path, shared: SharedStorage, storage: ObjectStorage, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    writer = begin(storage, tmp_path)
    other = replace(another(tmp_path, snapshot, 1), dataset="other")
    for one in (snapshot, other):
        writer.publish(one, deadline())
    shared.fault("lost", only=MANIFEST)
    with pytest.raises(SharedStorageError, match="does not respond"):
        writer.publish(another(tmp_path, snapshot, 2), deadline())
    shared.fault()
    newest = another(tmp_path, snapshot, 3)

    writer.publish(newest, deadline())

    assert set(published(shared).snapshots) == {newest, other}
    generation = published(shared).generation
    writer.settle()
    assert published(shared).generation == generation


def test_a_publication_that_never_arrived_cannot_arrive_later(
    tmp_path: Path, shared: SharedStorage, storage: ObjectStorage, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    writer = begin(storage, tmp_path)
    writer.publish(snapshot, deadline())
    tag = writer._tag
    shared.fault("down", only=MANIFEST)
    late = another(tmp_path, snapshot, 1)
    with pytest.raises(SharedStorageError, match="does not respond"):
        writer.publish(late, deadline())
    shared.fault()

    writer.remove_unused(())

    asked = SharedManifest(epoch=1, node="a", generation=3, snapshots=(late,))
    assert storage.write(MANIFEST, asked.encode(), tag) is None
    assert published(shared).snapshots == (snapshot,)
    assert [name for name in shared.names() if name.startswith("snapshots")] == [f"snapshots/{snapshot.file}"]


def test_only_what_nobody_names_is_removed(
    tmp_path: Path, shared: SharedStorage, storage: ObjectStorage, snapshot: Snapshot
) -> None:
    writer = begin(storage, tmp_path)
    versions = [snapshot, *(another(tmp_path, snapshot, number) for number in range(1, 4))]
    for version in versions:
        writer.publish(version, deadline())

    writer.remove_unused({versions[1].file})

    left = {name for name in shared.names() if name.startswith("snapshots")}
    assert left == {f"snapshots/{versions[1].file}", f"snapshots/{versions[3].file}"}


def test_undeclared_datasets_are_withdrawn_and_what_is_served_is_published(
    tmp_path: Path, shared: SharedStorage, storage: ObjectStorage, snapshot: Snapshot
) -> None:
    writer = begin(storage, tmp_path)
    writer.publish(snapshot, deadline())
    other = replace(another(tmp_path, snapshot, 1), dataset="other")

    writer.align({"d", "other"}, lambda: [another(tmp_path, snapshot, 2), other], deadline())
    assert set(published(shared).snapshots) == {snapshot, other}
    writer.align({"other"}, lambda: [other], deadline())
    assert published(shared).snapshots == (other,)
    generation = published(shared).generation
    writer.align({"other"}, lambda: [other], deadline())
    assert published(shared).generation == generation


def test_data_that_was_published_meanwhile_is_not_replaced_by_older_data(
    tmp_path: Path, shared: SharedStorage, storage: ObjectStorage, snapshot: Snapshot
) -> None:
    writer = begin(storage, tmp_path)
    newer = another(tmp_path, snapshot, 1)
    shared.fault(delay_s=1.0, only=snapshot.file)
    aligning = threading.Thread(target=partial(writer.align, {"d"}, lambda: [snapshot], deadline()))
    aligning.start()
    wait_for(lambda: snapshot.file in writer._uploading, "the upload")

    writer.publish(newer, deadline())  # A refresh ends.
    aligning.join()

    assert published(shared).snapshots == (newer,)


def test_a_later_publisher_knows_the_types_of_what_was_withdrawn(
    tmp_path: Path, shared: SharedStorage, storage: ObjectStorage, snapshot: Snapshot
) -> None:
    writer = begin(storage, tmp_path)
    writer.publish(snapshot, deadline())
    writer.align((), tuple, deadline())

    later = begin(storage, tmp_path, "b", 2)

    assert (published(shared).snapshots, later.former(snapshot.dataset.upper())) == ((), snapshot)
    later.publish(replace(snapshot, source="other"), deadline())
    assert published(shared).former == ()


def test_a_manifest_that_was_deleted_is_written_again(
    tmp_path: Path, shared: SharedStorage, storage: ObjectStorage, snapshot: Snapshot
) -> None:
    writer = begin(storage, tmp_path)
    writer.publish(snapshot, deadline())
    shared.delete(MANIFEST)

    writer.remove_unused(())

    assert published(shared).snapshots == (snapshot,)


def test_what_something_without_the_lease_wrote_is_replaced(
    tmp_path: Path, shared: SharedStorage, storage: ObjectStorage, snapshot: Snapshot
) -> None:
    writer = begin(storage, tmp_path, epoch=3)
    shared.put(MANIFEST, SharedManifest(epoch=1, node="x", generation=9, snapshots=()).encode())

    writer.publish(snapshot, deadline())

    assert published(shared) == SharedManifest(epoch=3, node="a", generation=10, snapshots=(snapshot,))


def test_a_file_that_is_gone_is_not_named(
    tmp_path: Path, shared: SharedStorage, storage: ObjectStorage, snapshot: Snapshot
) -> None:
    writer = begin(storage, tmp_path)

    with pytest.raises(SnapshotError):
        writer.publish(replace(snapshot, file=f"d-{1:016x}.duckdb"), deadline())

    assert published(shared).snapshots == ()


def test_a_publication_is_tried_again_while_the_storage_does_not_answer(
    tmp_path: Path, shared: SharedStorage, storage: ObjectStorage, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.2)
    writer = begin(storage, tmp_path)
    shared.fault("lost", only=MANIFEST)
    healing = threading.Timer(0.3, shared.fault)
    healing.start()

    writer.publish(snapshot, deadline())

    healing.join()
    assert published(shared).snapshots == (snapshot,)


def test_a_server_that_ignores_conditions_is_not_used(
    tmp_path: Path, shared: SharedStorage, storage: ObjectStorage
) -> None:
    shared.fault("unconditional")

    with pytest.raises(SharedStorageError, match="ignores conditional writes"):
        begin(storage, tmp_path)


def test_a_file_that_somebody_deleted_is_reported(
    tmp_path: Path, shared: SharedStorage, storage: ObjectStorage, snapshot: Snapshot
) -> None:
    writer = begin(storage, tmp_path)
    writer.publish(snapshot, deadline())
    assert writer.remove_unused(()) == []
    shared.delete(f"snapshots/{snapshot.file}")

    assert writer.remove_unused(()) == [snapshot]
    writer.upload(snapshot, deadline())
    assert writer.remove_unused(()) == []


def test_a_cluster_gets_parquet(
    tmp_path: Path, shared: SharedStorage, storage: ObjectStorage, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exporter(missing: Snapshot, limit: Deadline) -> None:
        export(tmp_path / "state", missing, 64 * MIB, limit)

    writer = ManifestWriter(storage, "a", 1, tmp_path / "state", exporter=exporter, linger_s=30.0)
    writer.take_over()
    parquet = f"snapshots/{parquet_file(snapshot.file)}"

    writer.publish(snapshot, deadline())
    assert {f"snapshots/{snapshot.file}", parquet} <= set(shared.names())
    assert shared.document(parquet).startswith(b"PAR1")

    shared.delete(parquet)
    assert writer.remove_unused(()) == [snapshot]
    writer.upload(snapshot, deadline())
    assert writer.remove_unused(()) == []

    # Statements may read what is superseded until they must have ended.
    other = another(tmp_path, snapshot, 1)
    writer.publish(other, deadline())
    writer.remove_unused({snapshot.file})
    monkeypatch.setattr(writer, "_linger_s", 0.0)
    writer.remove_unused({snapshot.file})
    assert parquet in shared.names()
    monkeypatch.setattr(writer, "_linger_s", 30.0)
    writer.remove_unused(())
    assert parquet in shared.names()
    monkeypatch.setattr(writer, "_linger_s", 0.0)
    writer.remove_unused(())
    assert not {f"snapshots/{snapshot.file}", parquet}.intersection(shared.names())
    assert f"snapshots/{parquet_file(other.file)}" in shared.names()

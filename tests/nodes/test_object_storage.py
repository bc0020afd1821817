import hashlib
import signal
from pathlib import Path

import pytest

from datasources.deadline import Deadline
from datasources.errors import SharedStorageError, SnapshotError
from nodes import object_storage
from nodes.object_storage import Document, ObjectStorage
from runtimeconf.model import SnapshotsConfig
from tests.datasources.support import MIB, deadline
from tests.nodes.storage_server import BUCKET, KEYS, SharedStorage, storage_process


def test_a_document_is_written_only_in_place_of_the_version_that_was_read(storage: ObjectStorage) -> None:
    assert storage.read("a.json") is None

    first = storage.write("a.json", b"1", None)

    assert first is not None
    assert storage.write("a.json", b"2", None) is None
    assert storage.read("a.json") == Document(b"1", first)
    assert storage.read("a.json", first) == "unchanged"
    second = storage.write("a.json", b"2", first)
    assert second is not None
    assert storage.write("a.json", b"3", first) is None
    assert storage.write("missing.json", b"3", first) is None
    assert storage.read("a.json", first) == Document(b"2", second)


def test_objects_are_listed_and_deleted(storage: ObjectStorage) -> None:
    for number in range(6):  # more than a page of the server
        storage.put(f"nodes/{number}.json", b"{}")
    storage.put("other/1.json", b"{}")

    assert sorted(storage.tags("nodes")) == [f"{number}.json" for number in range(6)]
    assert storage.tags("nothing") == {}
    storage.delete(["nodes/0.json", "nodes/missing.json"])
    assert "0.json" not in storage.tags("nodes")


@pytest.mark.parametrize("size", [0, 1, 8 * MIB, 20 * MIB + 1])
def test_a_file_arrives_as_it_was(tmp_path: Path, storage: ObjectStorage, size: int) -> None:
    content = (b"0123456789abcde" * (size // 15 + 1))[:size]
    (tmp_path / "up").write_bytes(content)

    storage.upload("snapshots/a", tmp_path / "up", deadline())
    checksum = storage.download("snapshots/a", tmp_path / "down", size, deadline())

    assert checksum == hashlib.sha256(content).hexdigest()
    assert (tmp_path / "down").read_bytes() == content
    assert (tmp_path / "down").stat().st_mode & 0o777 == 0o600
    assert storage.download("snapshots/b", tmp_path / "down", max(size, 1), deadline()) is None


@pytest.mark.parametrize("content", [b"", b"short"])
def test_an_object_of_another_size_has_no_checksum(
    tmp_path: Path, shared: SharedStorage, storage: ObjectStorage, content: bytes
) -> None:
    shared.put("snapshots/a", content)

    assert storage.download("snapshots/a", tmp_path / "down", 7, deadline()) == ""


def test_a_file_that_cannot_be_read_is_not_blamed_on_the_storage(tmp_path: Path, storage: ObjectStorage) -> None:
    with pytest.raises(SnapshotError, match="cannot be read: No such file") as caught:
        storage.upload("snapshots/a", tmp_path / "absent", deadline())

    assert not isinstance(caught.value, SharedStorageError)


def test_a_transfer_ends_with_its_deadline(tmp_path: Path, storage: ObjectStorage) -> None:
    (tmp_path / "up").write_bytes(b"content")
    storage.upload("snapshots/a", tmp_path / "up", deadline())
    passed = deadline(0)

    with pytest.raises(SnapshotError, match="stopped after 0 s"):
        storage.upload("snapshots/b", tmp_path / "up", passed)
    with pytest.raises(SnapshotError, match="stopped after 0 s"):
        storage.download("snapshots/a", tmp_path / "down", 7, passed)

    assert list(storage.tags("snapshots")) == ["a"]


def _refusals(storage: ObjectStorage, directory: Path) -> set[str]:
    """Return what each call says, without secrets."""
    (directory / "up").write_bytes(b"content")
    limit: Deadline = deadline()
    sentences = set()
    for call in (
        lambda: storage.read("a"),
        lambda: storage.write("a", b"", None),
        lambda: storage.put("a", b""),
        lambda: storage.tags("nodes"),
        lambda: storage.delete(["a"]),
        lambda: storage.upload("a", directory / "up", limit),
        lambda: storage.download("a", directory / "down", 7, limit),
    ):
        with pytest.raises(SharedStorageError) as caught:
            call()
        sentences.add(str(caught.value))
        assert KEYS["s3_secret"] not in repr(caught.value.__cause__)
    return sentences


def test_a_storage_that_refuses_is_told_from_one_that_fails(
    tmp_path: Path, shared: SharedStorage, storage: ObjectStorage
) -> None:
    storage.put("a", b"content")
    shared.fault("denied")
    denied = _refusals(storage, tmp_path)
    shared.fault("down")
    down = _refusals(storage, tmp_path)

    # A server refuses to delete several objects at once in other words.
    assert denied - down == {"The storage of shared snapshots refuses access: see the params of runtime.snapshots."}
    assert down == {"The storage of shared snapshots does not respond, or failed."}
    assert not storage.is_quick
    shared.fault()
    storage.read("a")
    assert storage.is_quick


def test_a_bucket_that_does_not_exist_is_named_as_the_cause(shared: SharedStorage) -> None:
    params = shared.config().params
    storage = ObjectStorage(SnapshotsConfig(location="s3://absent/nodes", role="auto", params=params))

    assert storage.read("a") is None
    with pytest.raises(SharedStorageError, match=r"bucket of runtime.snapshots"):
        storage.write("a", b"", None)
    with pytest.raises(SharedStorageError, match=r"bucket of runtime.snapshots"):
        storage.put("a", b"")


def test_a_storage_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with storage_process() as (shared, process):
        ObjectStorage(shared.config()).put("a", b"content")
        monkeypatch.setattr(object_storage, "QUICK_S", 0.3)
        storage = ObjectStorage(shared.config())
        process.send_signal(signal.SIGSTOP)

        with pytest.raises(SharedStorageError, match="does not respond"):
            storage.read("a")


def test_a_document_of_any_size_is_not_read(storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.put("a", b"0123456789")
    monkeypatch.setattr(object_storage, "_MAX_DOCUMENT_BYTES", 9)

    with pytest.raises(SharedStorageError, match="too large"):
        storage.read("a")


def test_a_certificate_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    params = {**KEYS, "s3_session_token": "t", "s3_tls_root_certificate_file": str(tmp_path / "ca.pem")}
    config = SnapshotsConfig(location=f"s3://{BUCKET}/nodes", role="auto", params=params)

    with pytest.raises(SharedStorageError, match="s3_tls_root_certificate_file"):
        ObjectStorage(config)
    (tmp_path / "ca.pem").write_text("nothing\n")
    assert KEYS["s3_secret"] not in repr(config)

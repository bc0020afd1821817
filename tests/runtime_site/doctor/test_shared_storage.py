"""What `doctor` says of the storage that nodes share."""

from collections.abc import Iterator

import pytest

from datasources.sharing.documents import LEASE, MANIFEST, Holder, SharedManifest
from datasources.sharing.object_storage import ObjectStorage
from runtime_site.doctor import shared_storage
from tests.datasources.sharing.storage_server import KEYS, SharedStorage, storage_in_thread


@pytest.fixture
def shared() -> Iterator[SharedStorage]:
    with storage_in_thread() as running:
        running.prefix = "doctor"  # Servers in one process have the same content.
        yield running


def test_it_tells_what_is_published_and_by_whom(shared: SharedStorage) -> None:
    def finding() -> tuple[str, str]:
        (found,) = shared_storage.check(shared.config())
        return found.level, found.text

    assert finding() == ("note", "s3://lake/doctor answers; nothing is published there yet.")
    storage = ObjectStorage(shared.config())
    storage.put(MANIFEST, SharedManifest(epoch=1, node="a", generation=1).encode())
    storage.put("nodes/a.json", b"{}")
    assert finding() == ("ok", "s3://lake/doctor answers: 0 snapshots, 1 nodes; no node publishes at the moment.")
    storage.put(LEASE, Holder(epoch=1, node="a", beat=1).encode())
    assert finding() == ("ok", "s3://lake/doctor answers: 0 snapshots, 1 nodes; node a publishes.")

    shared.fault("denied")
    level, text = finding()
    assert (level, KEYS["s3_secret"] in text) == ("error", False)

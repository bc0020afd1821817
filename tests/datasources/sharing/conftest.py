"""The storage of the tests: one server for a module, a prefix for each test."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from datasources.sharing.object_storage import ObjectStorage
from queryengine.manifest import SNAPSHOT_DIRECTORY, Snapshot
from tests.datasources.sharing.storage_server import SharedStorage, storage_in_thread
from tests.datasources.sources.test_files import put
from tests.datasources.support import builder, deadline, declare, loaded

_NUMBERS = itertools.count()


@pytest.fixture(scope="package")
def server() -> Iterator[SharedStorage]:
    with storage_in_thread() as running:
        yield running


@pytest.fixture
def shared(server: SharedStorage) -> Iterator[SharedStorage]:
    """The storage, with a prefix that nothing else uses."""
    server.prefix = f"test-{next(_NUMBERS)}"
    yield server
    server.fault()


@pytest.fixture
def storage(shared: SharedStorage) -> ObjectStorage:
    return ObjectStorage(shared.config())


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    """A snapshot of the dataset `d`, whose file is in the state directory of the test."""
    (tmp_path / "state" / SNAPSHOT_DIRECTORY).mkdir(parents=True)
    put(tmp_path, "a.csv")
    return loaded(builder(tmp_path), declare(tmp_path, "a.csv"), None, deadline())

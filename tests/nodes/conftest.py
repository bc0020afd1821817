"""The storage of the tests: one server, a prefix for each test, and nodes that share it."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodes.object_storage import ObjectStorage
from queryengine.manifest import SNAPSHOT_DIRECTORY, Snapshot
from tests.datasources.sources.test_files import put
from tests.datasources.support import builder, deadline, declare, loaded
from tests.nodes.fleet import Fleet, quick_leases
from tests.nodes.storage_server import SharedStorage, storage_in_thread
from tests.runtimeconf.conftest import load_text, yaml_file

__all__ = ["fleet", "load_text", "server", "shared", "snapshot", "storage", "yaml_file"]

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


@pytest.fixture
def fleet(tmp_path: Path, shared: SharedStorage) -> Iterator[Fleet]:
    """No node yet, and a source with one row."""
    with quick_leases():
        nodes = Fleet(tmp_path, shared)
        nodes.write(1)
        yield nodes
        nodes.close()

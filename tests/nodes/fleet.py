"""Nodes over one storage, each with a state directory of its own; all read `a.csv` in the directory of the test."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from datasources.control import DatasetState, RefreshRun
from nodes import lease
from nodes import node as module
from nodes.documents import MANIFEST
from nodes.node import Node
from nodes.publisher import Publisher
from runtimeconf.model import DatasetConfig, RuntimeConfig, SharingRole
from tests.datasources.sources.test_files import put
from tests.datasources.support import accelerated, configure, finished, served
from tests.nodes.storage_server import SharedStorage
from tests.system.harness import wait_for


@contextmanager
def quick_leases() -> Iterator[None]:
    """Renew leases all the time, and take them after 4 s. A node of a busy machine may wait for one second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "RENEWAL_S", 0.1)
        patch.setattr(lease, "EXPIRY_S", 4.0)
        yield


class Fleet:
    """The nodes of a test, by their names."""

    def __init__(self, directory: Path, shared: SharedStorage) -> None:
        self.directory = directory
        self.shared = shared
        self.nodes: dict[str, Node] = {}

    def write(self, number: int) -> None:
        """Replace the source of the dataset `d` by one row with this number."""
        put(self.directory, "a.csv", f"a,b\n{number},x\n".encode())

    def config(self, name: str, role: SharingRole = "auto", *datasets: DatasetConfig, **more: Any) -> RuntimeConfig:
        """Make the configuration of a node; *more* are fields of it, `max_staleness_s`, or `params` of the storage."""
        shared = self.shared.config(role, params=more.pop("params", {}))
        max_staleness_s = more.pop("max_staleness_s", None)
        declared = datasets or (accelerated(self.directory),)
        config = configure(self.directory / name, *declared, snapshots=shared, **more)
        return replace(config, query=replace(config.query, max_staleness_s=max_staleness_s))

    def start(self, name: str, *arguments: Any, **more: Any) -> Node:
        """Start a node, and return at once. The arguments are those of `config`."""
        (self.directory / name / "state").mkdir(parents=True, exist_ok=True)
        config = self.config(name, *arguments, **more)
        assert config.snapshots is not None
        node = self.nodes[name] = Node(config, config.snapshots)
        node.start()
        return node

    def loaded(self, name: str, *arguments: Any, **more: Any) -> Node:
        """Start a node, and wait until it serves data."""
        node = self.start(name, *arguments, **more)
        wait_for(node.is_loaded, f"{name} to load")
        return node

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        """Return what the engine of a node would read."""
        return served(self.directory / name)

    def shows(self, name: str, number: int) -> None:
        """Wait until a node serves the row with this number."""
        wait_for(lambda: self.rows(name) == [(number, "x")], f"{name} to serve {number}")

    def state(self, name: str) -> DatasetState:
        return self.nodes[name].datasets()[0]

    def refresh(self, name: str, number: int, *, read: int | None = None) -> RefreshRun:
        """Write a row to the source, ask a node to refresh, and wait for it there; *read* is its number there."""
        self.write(number)
        node = self.nodes[name]
        run = finished(node, node.request_refresh("d"))
        assert run.status == "succeeded", run
        assert self.rows(name) == [(number if read is None else read, "x")]
        return run

    def published(self) -> list[str]:
        """Return the datasets in the shared manifest."""
        return [one["dataset"] for one in json.loads(self.shared.document(MANIFEST))["snapshots"]]

    def publisher(self) -> str | None:
        """Return the name of the node that publishes."""
        return next((name for name, node in self.nodes.items() if node.sharing().is_publishing), None)

    def stop(self, name: str) -> None:
        assert self.nodes.pop(name).stop(30)

    def kill(self, name: str) -> Node:
        """End a node without a word to the others, as a crash would."""
        node = self.nodes.pop(name)
        node._stop.set()
        for thread in node._threads:
            thread.join()
        if isinstance(node._role, Publisher):
            assert node._role.control._end(30)
        return node

    def close(self) -> None:
        self.shared.fault()
        for name in list(self.nodes):
            self.stop(name)

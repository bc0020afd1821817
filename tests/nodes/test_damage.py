"""Nodes whose shared storage, or own copy, has been damaged, or holds what something else has written."""

import json

import pytest
from msgspec.structs import replace

from nodes.documents import LEASE, MANIFEST, STATE, SharedState
from queryengine.manifest import SNAPSHOT_DIRECTORY, read_manifest
from tests.datasources.support import accelerated, appended, finished
from tests.datasources.test_snapshot import flip
from tests.nodes.fleet import Fleet
from tests.system.harness import wait_for

pytestmark = pytest.mark.plugin


@pytest.mark.exhaustive
def test_a_snapshot_that_was_damaged_in_the_storage_or_is_gone_is_not_taken(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodes.follower._RETRY_S", 0.5)
    monkeypatch.setattr("nodes.publisher._REMOVAL_S", 1000.0)  # The publisher would make up for it.
    fleet.loaded("a")
    fleet.loaded("b", "follower")
    fleet.stop("b")
    run = fleet.refresh("a", 2)
    (name,) = (f"snapshots/{one.file}" for one in read_manifest(fleet.directory / "a" / "state").snapshots)
    whole = fleet.shared.document(name)
    fleet.shared.put(name, whole[:-1] + b"!")

    follower = fleet.loaded("b", "follower")
    wait_for(lambda: "damaged in the shared storage" in str(fleet.state("b").error), "the fault")
    assert fleet.rows("b") == [(1, "x")]
    assert [listed.status for listed in follower.history("d") if listed.id == run.id] == ["running"]
    fleet.shared.delete(name)
    wait_for(lambda: "missing from the shared storage" in str(fleet.state("b").error), "the other fault")
    fleet.shared.put(name, whole)

    fleet.shows("b", 2)
    wait_for(lambda: fleet.state("b").error is None, "the fault to go")


@pytest.mark.exhaustive
def test_an_upload_that_fails_when_a_node_begins_to_publish_is_made_up_for(fleet: Fleet) -> None:
    fleet.loaded("a")
    fleet.stop("a")
    fleet.shared.delete(*fleet.shared.names())
    fleet.shared.fault("down", only="/snapshots/")
    (fleet.directory / "a.csv").unlink()
    fleet.loaded("a")
    wait_for(lambda: fleet.nodes["a"].sharing().error, "the failure")

    fleet.shared.fault()

    fleet.loaded("b", "follower")
    assert fleet.rows("b") == [(1, "x")]


def test_a_copy_that_is_damaged_on_the_disk_is_loaded_again(fleet: Fleet) -> None:
    fleet.loaded("a")
    fleet.loaded("b", "follower")
    (path,) = (fleet.directory / "b" / "state" / SNAPSHOT_DIRECTORY).iterdir()
    flip(path, 9000)

    wait_for(lambda: read_manifest(fleet.directory / "b" / "state").generation > 2, "the repair")
    fleet.shows("b", 1)


def test_a_publisher_reads_a_damaged_copy_from_the_storage_and_not_from_the_source(fleet: Fleet) -> None:
    dataset = appended(fleet.directory)
    node = fleet.loaded("a", "auto", dataset)
    fleet.write(2)
    assert finished(node, node.request_refresh("d")).status == "succeeded"
    fleet.write(3)
    state_dir = fleet.directory / "a" / "state"
    before = read_manifest(state_dir)
    flip(state_dir / SNAPSHOT_DIRECTORY / before.snapshots[0].file, 9000)

    wait_for(lambda: read_manifest(state_dir).generation > before.generation, "the loss")
    wait_for(lambda: read_manifest(state_dir).snapshots == before.snapshots, "the repair")
    wait_for(lambda: fleet.publisher() == "a", "the lease")
    assert finished(node, node.request_refresh("d")).status == "succeeded"

    assert fleet.rows("a") == [(1, "x"), (2, "x"), (3, "x")]


@pytest.mark.exhaustive
def test_documents_of_something_else_are_a_fault_and_the_data_stays(fleet: Fleet) -> None:
    fleet.loaded("a")
    follower = fleet.loaded("b", "follower")
    fleet.kill("a")
    fleet.shared.put(MANIFEST, b"{}")

    wait_for(lambda: "something else is writing there" in str(follower.sharing().error), "the fault")

    assert fleet.rows("b") == [(1, "x")]


def test_an_empty_snapshot_in_the_storage_holds_up_no_other_dataset(fleet: Fleet) -> None:
    datasets = accelerated(fleet.directory), replace(accelerated(fleet.directory), name="e")
    fleet.loaded("a", "auto", *datasets)
    (name,) = (one.file for one in read_manifest(fleet.directory / "a" / "state").snapshots if one.dataset == "d")
    fleet.kill("a")  # It would upload its copy again.
    fleet.shared.put(f"snapshots/{name}", b"")

    follower = fleet.start("b", "follower", *datasets)

    wait_for(lambda: follower.waiting_for() == ("d",), "the other dataset")
    wait_for(lambda: "damaged in the shared storage" in str(fleet.state("b").error), "the fault")


def test_a_snapshot_that_changes_its_content_does_not_replace_the_one_that_is_served(fleet: Fleet) -> None:
    fleet.loaded("a")
    follower = fleet.loaded("b", "follower")
    fleet.kill("a")
    fields = json.loads(fleet.shared.document(MANIFEST))
    fields["snapshots"][0]["sha256"] = "0" * 64
    fleet.shared.put(MANIFEST, json.dumps(fields).encode())

    wait_for(lambda: "changes a snapshot of d" in str(follower.sharing().error), "the fault")

    assert fleet.rows("b") == [(1, "x")]


def test_a_lease_that_something_else_wrote_is_a_fault(fleet: Fleet) -> None:
    node = fleet.loaded("a")
    fleet.shared.put(LEASE, b"{}")

    wait_for(lambda: "something else is writing there" in str(node.sharing().error), "the fault")


@pytest.mark.parametrize("name", [LEASE, STATE])
def test_a_node_that_begins_to_publish_replaces_what_something_else_wrote(fleet: Fleet, name: str) -> None:
    fleet.loaded("a")
    fleet.kill("a")
    fleet.shared.put(name, b"{")
    fleet.write(2)

    fleet.loaded("b")

    fleet.shows("b", 2)
    wait_for(lambda: fleet.nodes["b"].sharing().error is None, "the fault to go")
    wait_for(lambda: fleet.shared.document(name) != b"{", "the document")


def test_a_follower_takes_what_is_published_though_something_else_wrote_the_state(fleet: Fleet) -> None:
    fleet.loaded("a")
    fleet.kill("a")
    fleet.shared.put(STATE, b"{")

    follower = fleet.loaded("b", "follower")

    assert fleet.rows("b") == [(1, "x")]
    wait_for(lambda: "state.json of runtime.snapshots" in str(follower.sharing().error), "the fault")


def test_the_state_of_an_earlier_publisher_is_ignored(fleet: Fleet) -> None:
    fleet.loaded("a")
    follower = fleet.loaded("b", "follower")
    wait_for(lambda: follower.history("d"), "the state")
    fleet.kill("a")

    fleet.shared.put(STATE, SharedState(epoch=0, datasets=(), runs={}).encode())
    assert follower.history("d")
    fleet.shared.put(STATE, SharedState(epoch=9, datasets=(), runs={}).encode())
    wait_for(lambda: not follower.history("d"), "the later state")


@pytest.mark.exhaustive
def test_snapshots_that_nobody_needs_are_removed(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodes.publisher._REMOVAL_S", 0.0)
    fleet.loaded("a")
    fleet.loaded("b", "follower")

    for number in range(2, 5):
        fleet.refresh("b", number)

    def files() -> list[str]:
        return [name for name in fleet.shared.names() if name.startswith("snapshots/")]

    wait_for(lambda: len(files()) == 1, "the removal")
    wait_for(lambda: len(list((fleet.directory / "b" / "state" / SNAPSHOT_DIRECTORY).iterdir())) == 1, "that of b")
    (last,) = files()
    fleet.shared.delete(last)
    wait_for(lambda: files() == [last], "the upload of what somebody else removed")

import json
import time

import pytest
from msgspec.structs import replace

from datasources.control import AdmittedSql
from datasources.errors import (
    DatasetError,
    DatasetsUnavailableError,
    SharedStorageError,
)
from datasources.refresh.service import DatasetService, load_once
from nodes import manifest_writer
from nodes.documents import LEASE, MANIFEST, Holder, Presence, SharedManifest
from nodes.publisher import Publisher
from queryengine.manifest import SNAPSHOT_DIRECTORY, parquet_file, read_manifest
from runtimeconf.model import DatasetConfig, Documentation, EngineConfig, SharingRole
from system.addresses import Address
from tests.datasources.sources.test_files import put
from tests.datasources.support import accelerated, appended, deadline, finished, served
from tests.file_limit import file_limit
from tests.nodes.fleet import Fleet
from tests.system.harness import wait_for

pytestmark = pytest.mark.plugin


def test_one_node_loads_and_all_serve_the_same_file(fleet: Fleet) -> None:
    fleet.loaded("a")
    fleet.loaded("b")
    fleet.loaded("c", "follower")

    states = [fleet.state(name) for name in "abc"]

    assert [fleet.rows(name) for name in "abc"] == [[(1, "x")]] * 3
    assert len({(state.snapshot, state.refreshed_at, state.rows) for state in states}) == 1
    assert fleet.publisher() == "a"
    assert len({node.sharing().publisher for node in fleet.nodes.values()}) == 1
    assert all(node.sharing().answered_s is not None for node in fleet.nodes.values())


def test_nodes_tell_what_the_yaml_says_of_a_dataset_and_load_it_by_sql_of_datafusion(fleet: Fleet) -> None:
    documentation = Documentation(description="Flights by day", metadata={"owner": "ops"})
    dataset = replace(
        accelerated(fleet.directory, name="air.days", refresh_sql="SELECT a, initcap(b) AS b FROM air.days"),
        documentation=documentation,
    )
    fleet.loaded("a", "auto", dataset)
    follower = fleet.loaded("b", "follower", dataset)
    run = follower.request_refresh("air.days", AdmittedSql("SELECT nvl(a, 0) + 1 AS a, b FROM air.days"))

    assert (finished(follower, run, "air.days").error, served(fleet.directory / "b", "air.days")) == (None, [(2, "x")])
    for state in map(fleet.state, "ab"):
        assert (state.name, state.description, state.metadata) == ("air.days", "Flights by day", {"owner": "ops"})


def test_rows_expire_on_every_node(fleet: Fleet) -> None:
    put(fleet.directory, "a.csv", f"a,b\n{time.time():.0f},new\n{time.time() - 3600:.0f},old\n".encode())
    dataset = replace(
        accelerated(fleet.directory, retention_period_s=600.0, retention_check_interval_s=3600.0),
        time_column="a",
        time_format="unix_seconds",
    )
    fleet.loaded("a", "auto", dataset)
    fleet.loaded("b", "follower", dataset)

    for name in "ab":
        assert [b for _, b in fleet.rows(name)] == ["new"]


def test_another_node_publishes_when_the_publisher_dies_and_a_dead_one_cannot_any_more(fleet: Fleet) -> None:
    fleet.loaded("a")
    fleet.loaded("b")
    fleet.refresh("a", 2)
    dead = fleet.kill("a")
    former = fleet.nodes["b"].history("d")

    wait_for(lambda: fleet.publisher() == "b", "the lease to move")
    fleet.refresh("b", 3)

    (snapshot,) = read_manifest(fleet.directory / "a" / "state").snapshots
    assert isinstance(dead._role, Publisher)
    with pytest.raises(SharedStorageError, match="Another node is now the publisher"):
        dead._role.manifest.publish(snapshot, deadline())
    assert SharedManifest.decode(fleet.shared.document(MANIFEST)).epoch == 2
    assert {run.id for run in former} <= {run.id for run in fleet.nodes["b"].history("d")}
    fleet.start("a")
    fleet.shows("a", 3)
    assert fleet.publisher() == "b"


def test_a_node_that_is_cut_off_says_that_it_does_not_publish_before_another_one_does(fleet: Fleet) -> None:
    lonely, other = fleet.loaded("a", params={"s3_key": "key-of-a"}), fleet.loaded("b")
    assert (lonely.sharing().is_publishing, lonely.sharing().publishes_s > 0) == (True, True)
    fleet.shared.fault("down", only="key-of-a")
    both = 0

    def has_moved() -> bool:
        nonlocal both
        moved = other.sharing().is_publishing
        both += moved and lonely.sharing().is_publishing
        return moved

    wait_for(has_moved, "the lease to move")

    assert both == 0
    assert (lonely.sharing().publisher, lonely.sharing().publishes_s) == ("", 0.0)
    fleet.shared.fault()
    wait_for(lambda: lonely.sharing().publisher == other.sharing().node, "the node to come back")


def test_a_refresh_that_a_cut_off_node_accepted_stays_in_its_list(fleet: Fleet) -> None:
    lonely = fleet.loaded("a", params={"s3_key": "key-of-a"})
    other = fleet.loaded("b")
    before = [run.id for run in lonely.history("d")]
    fleet.shared.fault("down", only="key-of-a")
    accepted = finished(lonely, lonely.request_refresh("d"))
    assert accepted.status == "failed"
    wait_for(lambda: other.sharing().is_publishing, "the lease to move")
    theirs = finished(other, other.request_refresh("d"))
    fleet.shared.fault()
    wait_for(lambda: lonely.sharing().publisher == other.sharing().node, "the node to come back")

    def ids() -> list[str]:
        return [run.id for run in fleet.nodes["a"].history("d")]

    wait_for(lambda: theirs.id in ids(), "the list")
    assert accepted in lonely.history("d")
    assert ids().index(theirs.id) < ids().index(accepted.id) < ids().index(before[0])
    assert len(set(ids())) == len(ids())
    # Also after a restart, and once it publishes again.
    fleet.stop("a")
    fleet.loaded("a")
    assert accepted in fleet.nodes["a"].history("d")
    fleet.stop("b")
    wait_for(lambda: fleet.publisher() == "a", "the lease to come back")
    assert accepted in fleet.nodes["a"].history("d")
    assert theirs.id in ids()


@pytest.mark.exhaustive
def test_a_publisher_that_is_cut_off_loses_the_lease_and_then_serves_what_the_other_publishes(fleet: Fleet) -> None:
    lonely = fleet.loaded("a", params={"s3_key": "key-of-a"})
    fleet.loaded("b")
    fleet.shared.fault("down", only="key-of-a")
    wait_for(lambda: fleet.nodes["b"].sharing().is_publishing, "the lease to move")

    fleet.refresh("b", 2)

    assert fleet.rows("a") == [(1, "x")]
    failed = finished(lonely, lonely.request_refresh("d"))
    assert failed.status == "failed"
    fleet.shared.fault()
    fleet.shows("a", 2)
    assert lonely.sharing().publisher == fleet.nodes["b"].sharing().node
    fleet.stop("b")
    wait_for(lambda: lonely.sharing().is_publishing, "the lease to come back")
    fleet.refresh("a", 3)


def test_a_publication_whose_answer_was_lost_is_served_by_its_node_too(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_writer, "_PAUSE_S", 0.0)
    node = fleet.loaded("a")
    fleet.shared.fault("lost", only=MANIFEST)
    fleet.write(2)
    assert finished(node, node.request_refresh("d")).status == "failed"
    assert fleet.rows("a") == [(1, "x")]
    fleet.shared.fault()

    fleet.shows("a", 2)

    follower = fleet.loaded("b", "follower")
    assert fleet.rows("b") == [(2, "x")]
    wait_for(lambda: node.sharing().is_publishing, "it to publish again")
    fleet.refresh("a", 3)
    assert follower.is_loaded()
    fleet.shows("b", 3)


@pytest.mark.exhaustive
def test_a_lease_that_somebody_deleted_is_taken_again_with_a_later_epoch(fleet: Fleet) -> None:
    fleet.loaded("a")
    fleet.loaded("b")
    fleet.shared.delete(LEASE)

    def is_settled() -> bool:
        lease, manifest = fleet.shared.document(LEASE), SharedManifest.decode(fleet.shared.document(MANIFEST))
        holder = Holder.decode(lease)
        return manifest.epoch > 1 and (holder.node, holder.epoch) == (manifest.node, manifest.epoch)

    wait_for(lambda: LEASE in fleet.shared.names() and is_settled(), "a publisher")

    fleet.refresh("b", 2)

    fleet.shows("a", 2)


@pytest.mark.parametrize("kind", [pytest.param("down", marks=pytest.mark.exhaustive), "denied"])
def test_without_the_storage_nodes_serve_what_they_have_and_say_so(fleet: Fleet, kind: str) -> None:
    fleet.loaded("a")
    follower = fleet.loaded("b", "follower")
    wait_for(lambda: follower.history("d"), "the history, which is shared after the data")
    fleet.shared.fault(kind)
    wait_for(lambda: all(node.sharing().error for node in fleet.nodes.values()), "the nodes to notice")
    fleet.write(2)

    failed = finished(fleet.nodes["a"], fleet.nodes["a"].request_refresh("d"))
    with pytest.raises(DatasetsUnavailableError, match="storage of shared snapshots"):
        follower.request_refresh("d")

    assert (failed.status, str(failed.error).startswith("The storage of shared snapshots")) == ("failed", True)
    assert fleet.rows("a") == fleet.rows("b") == [(1, "x")]
    assert follower.history("d")
    assert follower.is_loaded()
    fleet.shared.fault()
    wait_for(lambda: not any(node.sharing().error for node in fleet.nodes.values()), "the nodes to recover")
    wait_for(lambda: fleet.publisher() is not None, "a publisher")
    fleet.refresh("b", 3)


def test_data_that_is_too_old_makes_a_node_unready_until_it_is_checked_again(fleet: Fleet) -> None:
    dataset = accelerated(fleet.directory, refresh_check_interval_s=0.2)
    fleet.loaded("a", "auto", dataset)
    follower = fleet.loaded("b", "follower", dataset, max_staleness_s=1.5)
    fleet.shared.fault("down")

    wait_for(lambda: follower.waiting_for() == ("d",), "the data to be too old")
    assert fleet.state("b").age_s
    assert fleet.rows("b") == [(1, "x")]
    fleet.shared.fault()
    wait_for(follower.is_loaded, "the data to be checked")


def test_a_node_that_comes_back_without_the_storage_serves_its_copy_and_reads_no_source(fleet: Fleet) -> None:
    fleet.loaded("a")
    fleet.stop("a")
    fleet.shared.fault("down")
    fleet.write(2)

    node = fleet.loaded("a")

    assert fleet.rows("a") == [(1, "x")]
    wait_for(lambda: node.sharing().error, "the node to notice")
    assert fleet.publisher() is None
    fleet.shared.fault()
    fleet.shows("a", 2)


def test_a_node_that_becomes_one_of_several_publishes_what_it_has(fleet: Fleet) -> None:
    fleet.loaded("a")
    fleet.stop("a")
    fleet.shared.delete(*fleet.shared.names())
    (fleet.directory / "a.csv").unlink()

    fleet.loaded("a")
    fleet.loaded("b", "follower")

    assert fleet.rows("b") == [(1, "x")]


def test_a_follower_whose_disk_is_full_says_so_and_loads_when_there_is_room(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodes.follower._RETRY_S", 0.2)
    fleet.loaded("a")
    with file_limit(100_000):
        follower = fleet.start("b", "follower")
        wait_for(lambda: fleet.state("b").error, "the fault")

        assert "cannot be written to the state directory" in str(fleet.state("b").error)
        assert (fleet.state("b").status, follower.waiting_for()) == ("Error", ("d",))
        assert list((fleet.directory / "b" / "state" / SNAPSHOT_DIRECTORY).iterdir()) == []
    wait_for(follower.is_loaded, "the load")


def test_a_node_stays_one_of_the_live_ones_during_a_long_download(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.loaded("a")
    before = {name for name in fleet.shared.names() if name.startswith("nodes/")}
    monkeypatch.setattr("nodes.object_storage._PART_BYTES", 4096)
    monkeypatch.setattr("nodes.presence.RENEWAL_S", 0.0)

    fleet.loaded("b", "follower")

    (name,) = {name for name in fleet.shared.names() if name.startswith("nodes/")} - before
    assert json.loads(fleet.shared.document(name))["beat"] > 100


def test_a_node_that_cannot_load_what_is_published_does_not_load_from_the_source_instead(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodes.follower._RETRY_S", 0.2)
    monkeypatch.setattr("nodes.node._REST_S", 0.5)
    dataset = appended(fleet.directory)
    node = fleet.loaded("a", "auto", dataset)
    fleet.write(2)
    assert finished(node, node.request_refresh("d")).status == "succeeded"
    fleet.stop("a")
    fleet.write(3)

    with file_limit(100_000):
        fleet.start("b", "auto", dataset)
        wait_for(lambda: fleet.state("b").error, "the fault")
        time.sleep(1)
        assert fleet.publisher() is None

    wait_for(lambda: fleet.publisher() == "b", "the lease")
    fleet.nodes["b"].request_refresh("d")
    wait_for(lambda: fleet.rows("b") == [(1, "x"), (2, "x"), (3, "x")], "the rows")


def test_a_follower_that_need_not_have_data_is_ready_once_it_has_tried(fleet: Fleet) -> None:
    follower = fleet.start("b", "follower", ready_state="on_registered")

    wait_for(follower.is_loaded, "the first look")

    assert fleet.state("b").status == "Initializing"


def test_a_load_beside_the_other_nodes_is_refused(fleet: Fleet) -> None:
    with pytest.raises(DatasetError, match="only running nodes load"):
        load_once(fleet.config("a"), ["d"], [])


def test_a_second_publisher_warns_and_waits(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    fleet.loaded("a", "publisher")
    fleet.loaded("b", "publisher")

    wait_for(lambda: "although its role is publisher" in caplog.text, "the warning")
    assert fleet.publisher() == "a"


def test_a_request_for_a_dataset_that_the_publisher_does_not_have_is_dropped(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.loaded("a")
    other = accelerated(fleet.directory, name="other")
    follower = fleet.start("b", "follower", accelerated(fleet.directory), other)
    assert follower.waiting_for() == ("other",) or "other" in follower.waiting_for()

    run = follower.request_refresh("other")

    wait_for(lambda: run.id not in [listed.id for listed in follower.history("other")], "the request to go")
    assert "requested through another node is not possible" in caplog.text


def test_a_service_of_several_nodes_follows_another_configuration(fleet: Fleet) -> None:
    roles: dict[str, SharingRole] = {"a": "publisher", "b": "follower"}
    services = {}
    for name, role in roles.items():
        services[name] = DatasetService(fleet.config(name, role), exclusive=True)
        services[name].start()
    try:
        for service in services.values():
            wait_for(service.is_loaded, "the load")
        put(fleet.directory, "b.csv", b"a,b\n7,x\n")
        for name, role in roles.items():
            new = accelerated(fleet.directory, "b.csv", name="e")
            services[name].replace(fleet.config(name, role, new, generation=2), [])
            assert served(fleet.directory / name) == [(1, "x")]
            wait_for(lambda: not services[name].waiting_for(), "the new dataset")  # noqa: B023
            services[name].commit()

        for name, service in services.items():
            assert [state.name for state in service.datasets()] == ["e"]
            assert served(fleet.directory / name, "e") == [(7, "x")]
            sharing = service.sharing()
            assert sharing is not None
            assert sharing.is_publishing == (name == "a")
        wait_for(lambda: "d" not in _published(fleet), "the withdrawal")
    finally:
        for service in services.values():
            service.stop(30)


def test_params_that_the_storage_refuses_do_not_take_effect(fleet: Fleet) -> None:
    service = DatasetService(fleet.config("a", "publisher"), exclusive=True)
    service.start()
    try:
        wait_for(service.is_loaded, "the load")
        fleet.shared.fault("down", only="key-of-a")
        with pytest.raises(SharedStorageError):
            service.replace(fleet.config("a", "publisher", generation=2, params={"s3_key": "key-of-a"}), [])
        service.replace(fleet.config("a", "publisher", generation=3, params={"s3_key": "key-of-b"}), [])
        fleet.shared.fault("down")
        service.replace(fleet.config("a", "publisher"), [])
        fleet.shared.fault()

        put(fleet.directory, "a.csv", b"a,b\n7,x\n")
        service.request_refresh("d")
        wait_for(lambda: served(fleet.directory / "a") == [(7, "x")], "the refresh")
    finally:
        service.stop(30)


def _published(fleet: Fleet) -> set[str]:
    return {one.dataset for one in SharedManifest.decode(fleet.shared.document(MANIFEST)).snapshots}


@pytest.mark.exhaustive
def test_nodes_on_a_cluster_publish_parquet_and_say_what_it_still_reads(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodes.publisher._REMOVAL_S", 0.1)
    engine = EngineConfig(name="other", address=Address("127.0.0.1", 1))
    in_place = DatasetConfig(name="lake", from_="s3://lake/x/", connector="s3", is_in_place=True)
    datasets = (accelerated(fleet.directory), in_place)
    fleet.loaded("a", "publisher", *datasets, engine=engine)
    fleet.loaded("b", "follower", *datasets, engine=engine)
    first = f"{fleet.state('b').snapshot}.duckdb"
    assert f"snapshots/{parquet_file(first)}" in fleet.shared.names()
    assert [(state.status, state.rows) for state in fleet.nodes["b"].datasets()] == [("Ready", 1), ("Ready", None)]

    assert fleet.refresh("b", 2).status == "succeeded"
    second = f"{fleet.state('b').snapshot}.duckdb"
    assert fleet.rows("b") == [(2, "x")]
    # Statements that began before may still read the first version.
    objects = {f"snapshots/{name}" for file in (first, second) for name in (file, parquet_file(file))}
    assert objects <= set(fleet.shared.names())

    def reads() -> set[str]:
        documents = [fleet.shared.document(name) for name in fleet.shared.names() if name.startswith("nodes/")]
        return {file for document in documents for file in Presence.decode(document).reads}

    wait_for(lambda: reads() == {second}, "the follower to tell what it reads")
    fleet.shared.delete(f"snapshots/{parquet_file(second)}")
    wait_for(lambda: objects <= set(fleet.shared.names()), "the object to be uploaded again")

"""Nodes whose configuration changes, one by one or by a reload."""

import json
import time

import pytest
from msgspec.structs import replace

from datasources.control import AdmittedSql
from nodes.documents import LEASE, Holder
from nodes.follower import Follower
from queryengine.manifest import Column, read_manifest
from runtimeconf.model import AccelerationConfig, DatasetConfig
from tests.datasources.sources.test_files import put
from tests.datasources.support import accelerated, appended, finished, served
from tests.nodes.fleet import Fleet
from tests.nodes.storage_server import KEYS
from tests.system.harness import wait_for

pytestmark = pytest.mark.plugin


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodes.publisher._REMOVAL_S", 0.1)


def with_another(fleet: Fleet) -> tuple[DatasetConfig, DatasetConfig]:
    """Return the dataset of every node and a new one, `e`."""
    put(fleet.directory, "b.csv", b"a,b\n7,x\n")
    return accelerated(fleet.directory), accelerated(fleet.directory, "b.csv", name="e")


def test_a_node_with_a_new_dataset_gets_to_publish_so_that_nodes_can_be_replaced_one_by_one(fleet: Fleet) -> None:
    datasets = with_another(fleet)
    fleet.loaded("a")
    fleet.start("b", "follower", *datasets)
    time.sleep(1)
    assert fleet.publisher() == "a"  # A follower could not load it.
    fleet.stop("b")

    fleet.loaded("b", "auto", *datasets)

    assert served(fleet.directory / "b", "e") == [(7, "x")]
    assert fleet.publisher() == "b"
    assert fleet.rows("a") == [(1, "x")]
    # A node with the former configuration lacks nothing, so it does not become the publisher again.
    run = fleet.refresh("a", 2)
    assert fleet.publisher() == "b"
    assert run.id in [one.id for one in fleet.nodes["b"].history("d")]


def test_a_node_does_not_ask_to_publish_until_its_reload_is_over(fleet: Fleet) -> None:
    datasets = with_another(fleet)
    fleet.loaded("a")
    node = fleet.loaded("b")

    node.replace(fleet.config("b", "auto", *datasets, generation=2), [], 30)
    time.sleep(1)

    assert fleet.publisher() == "a"
    assert node.waiting_for() == ("e",)
    node.replace(fleet.config("b"), [], 30)  # The reload has failed.
    fleet.loaded("c", "auto", *datasets)
    wait_for(lambda: fleet.publisher() == "c", "the handover")


@pytest.mark.parametrize("takes_effect", [True, False])
def test_a_node_whose_process_dies_in_a_reload_ends_it_and_keeps_what_is_in_effect(
    fleet: Fleet, *, takes_effect: bool
) -> None:
    dataset = appended(fleet.directory)
    other = replace(dataset, acceleration=replace(dataset.acceleration, refresh_sql="SELECT a, 'y' AS b FROM d"))
    node = fleet.loaded("a", "auto", dataset)
    fleet.write(2)
    assert finished(node, node.request_refresh("d")).status == "succeeded"
    fleet.write(3)
    node.replace(fleet.config("a", "auto", other, with_another(fleet)[1], generation=2), [], 30)
    fleet.kill("a")

    node = fleet.start("a", "auto", dataset)
    node.replace(fleet.config("a", "auto", other, with_another(fleet)[1], generation=2), [], 30)
    wait_for(node.is_loaded, "the load")

    assert (fleet.rows("a"), fleet.published()) == ([(1, "x"), (2, "x")], ["d"])
    if takes_effect:
        node.commit()
        assert fleet.rows("a") == [(3, "y")]
        wait_for(lambda: set(fleet.published()) == {"d", "e"}, "the end")
    else:
        node.replace(fleet.config("a", "auto", dataset), [], 30)
        assert finished(node, node.request_refresh("d")).status == "succeeded"
        assert fleet.rows("a") == [(1, "x"), (2, "x"), (3, "x")]


def test_a_node_that_alone_has_the_rows_of_a_definition_publishes_them(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = appended(fleet.directory)
    node = fleet.loaded("a", "auto", dataset)
    fleet.write(2)
    assert finished(node, node.request_refresh("d")).status == "succeeded"
    fleet.write(3)
    fleet.loaded("b", "auto", changed(fleet))
    assert fleet.publisher() == "b"

    fleet.stop("b")
    fleet.start("c", "auto", dataset)  # Node a still lets others publish.
    wait_for(lambda: "another node has data that is not published" in caplog.text, "the other node's rest")
    assert fleet.publisher() is None
    monkeypatch.setattr(node, "_yields_until", 0.0)

    wait_for(lambda: fleet.publisher() == "a", "the lease")
    wait_for(fleet.nodes["c"].is_loaded, "the data")
    assert finished(fleet.nodes["c"], fleet.nodes["c"].request_refresh("d")).status == "succeeded"
    assert fleet.rows("a") == fleet.rows("c") == [(1, "x"), (2, "x"), (3, "x")]


def test_a_node_that_ended_after_it_let_another_definition_be_published_is_waited_for(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = appended(fleet.directory)
    node = fleet.loaded("a", "auto", dataset)
    fleet.write(2)
    assert finished(node, node.request_refresh("d")).status == "succeeded"
    fleet.start("b", "auto", changed(fleet))
    wait_for(lambda: isinstance(node._role, Follower), "node a to let others publish")
    fleet.kill("a")
    wait_for(fleet.nodes["b"].is_loaded, "the data of b")

    fleet.stop("b")
    fleet.start("c", "auto", dataset)  # It would load only the second row.

    wait_for(lambda: "another node has data that is not published" in caplog.text, "the wait for node a")
    assert fleet.publisher() is None


def changed(fleet: Fleet) -> DatasetConfig:
    """Return the dataset of every node with another definition, which adds 1."""
    return accelerated(fleet.directory, refresh_sql="SELECT a + 1 AS a, b FROM d")


def test_a_node_serves_no_data_of_another_definition(fleet: Fleet) -> None:
    fleet.loaded("a")
    fleet.loaded("b")
    fleet.stop("b")
    fleet.kill("a")

    fleet.loaded("b", "auto", changed(fleet))  # At first, it follows the dead publisher.

    assert fleet.rows("b") == [(2, "x")]


def test_nodes_get_another_definition_one_by_one_and_stay_ready(fleet: Fleet) -> None:
    fleet.loaded("a")
    fleet.loaded("b")
    fleet.stop("b")

    fleet.loaded("b", "auto", changed(fleet))

    assert (fleet.rows("a"), fleet.rows("b")) == ([(1, "x")], [(2, "x")])
    assert (fleet.nodes["a"].is_loaded(), fleet.publisher()) == (True, "b")
    fleet.refresh("b", 6, read=7)
    assert fleet.rows("a") == [(1, "x")]
    assert {(run.rows, run.bytes) for run in fleet.nodes["a"].history("d")[:1]} == {(None, None)}
    fleet.stop("a")
    fleet.loaded("a", "auto", changed(fleet))
    assert fleet.rows("a") == [(7, "x")]


def test_nodes_return_to_the_former_definition(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodes.node._REST_S", 1.0)  # Node c may have to wait until node a publishes again.
    fleet.loaded("a")
    fleet.loaded("b", "auto", changed(fleet))
    assert fleet.publisher() == "b"

    fleet.stop("b")
    fleet.loaded("c")

    assert fleet.rows("a") == fleet.rows("c") == [(1, "x")]


@pytest.mark.parametrize("takes_effect", [True, False])
def test_other_nodes_get_data_that_is_declared_otherwise_once_it_takes_effect(
    fleet: Fleet, *, takes_effect: bool
) -> None:
    _, added = with_another(fleet)
    node = fleet.loaded("a")
    fleet.loaded("b", "follower")

    node.replace(fleet.config("a", "auto", changed(fleet), added, generation=2), [], 30)
    wait_for(node.is_loaded, "the load")
    time.sleep(0.5)
    assert fleet.published() == ["d"]
    assert (fleet.rows("a"), fleet.rows("b")) == ([(1, "x")], [(1, "x")])
    if takes_effect:
        node.commit()
        fleet.shows("b", 2)
    else:
        node.replace(fleet.config("a"), [], 30)
        fleet.refresh("b", 7)
    assert fleet.rows("a") == fleet.rows("b")


def test_a_reload_during_a_download_gets_no_data_of_the_former_definition(fleet: Fleet) -> None:
    def downloads() -> bool:
        names = [name for name in fleet.shared.names() if name.startswith("nodes/")]
        return any(json.loads(fleet.shared.document(name))["reads"] for name in names)

    fleet.loaded("a")
    node = fleet.loaded("b")
    fleet.shared.fault(delay_s=2.0, only="/snapshots/")
    fleet.write(2)
    fleet.nodes["a"].request_refresh("d")
    wait_for(downloads, "the download")

    node.replace(fleet.config("b", "auto", changed(fleet), generation=2), [], 30)
    fleet.shared.fault()
    wait_for(lambda: not downloads(), "its end")

    assert node.waiting_for() == ("d",)
    node.replace(fleet.config("b"), [], 30)
    fleet.shows("b", 2)


def test_data_stays_current_while_nodes_publish_another_definition(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodes.node._REST_S", 1.0)
    dataset = accelerated(fleet.directory, refresh_check_interval_s=0.2)
    fleet.loaded("a", "auto", dataset, max_staleness_s=4.0)
    checked_at = fleet.state("a").checked_at
    wait_for(lambda: fleet.state("a").checked_at != checked_at, "a check")
    checked_at = fleet.state("a").checked_at

    missing = accelerated(fleet.directory, "missing.csv", refresh_check_interval_s=0.2)
    fleet.start("b", "auto", missing)
    wait_for(lambda: fleet.publisher() == "b", "the handover")
    wait_for(lambda: fleet.state("b").error, "the fault")
    assert fleet.state("a").error is None
    assert str(fleet.state("a").checked_at) >= str(checked_at)
    # Once its data is too old, it publishes again.
    wait_for(lambda: fleet.publisher() == "a", "the lease")
    wait_for(fleet.nodes["a"].is_loaded, "a load")


def test_a_node_that_loses_the_lease_during_a_reload_serves_what_is_in_effect(fleet: Fleet) -> None:
    datasets = with_another(fleet)
    node = fleet.loaded("a", "auto", *datasets)

    node.replace(fleet.config("a", "auto", datasets[0], generation=2), [], 30)
    fleet.shared.put(LEASE, Holder(epoch=9, node="other", beat=1).encode())
    wait_for(lambda: fleet.publisher() is None, "the loss")
    time.sleep(1)

    assert served(fleet.directory / "a", "e") == [(7, "x")]
    node.commit()
    wait_for(
        lambda: [one.dataset for one in read_manifest(fleet.directory / "a" / "state").snapshots] == ["d"], "the end"
    )


def test_a_node_that_takes_the_lease_again_too_early_lets_it_go_again(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodes.node._REST_S", 0.2)
    for name in ("a", "b", "c"):
        fleet.loaded(name)

    fleet.loaded("d", "auto", *with_another(fleet))

    assert fleet.publisher() == "d"


def test_nodes_whose_configurations_differ_for_good_do_not_take_turns(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodes.node._REST_S", 0.5)
    fleet.loaded("a")
    fleet.loaded("b", "auto", with_another(fleet)[1])
    assert fleet.publisher() == "b"
    wait_for(lambda: fleet.published() == ["e"], "the end of d")
    # A new node without a copy waits for it.
    fleet.loaded("c", "auto", accelerated(fleet.directory))
    assert fleet.publisher() in {"a", "c"}

    time.sleep(2)

    assert fleet.publisher() in {"a", "c"}
    assert served(fleet.directory / "b", "e") == [(7, "x")]


@pytest.mark.parametrize("is_older", [True, False])
def test_a_publisher_loads_as_declared_what_is_older_or_was_not_asked_of_its_declaration(
    fleet: Fleet, *, is_older: bool
) -> None:
    fleet.loaded("a")
    follower = fleet.loaded("b", "follower")
    fleet.kill("a")
    put(fleet.directory, "a.csv", b"a,b\n1,x\n2,y\n3,z\n")
    sql = AdmittedSql("SELECT a, 'caller' AS b FROM d")
    if is_older:
        run = follower.request_refresh("d", sql, jitter_max_s=600.0)
    declared = None if is_older else "SELECT * FROM d WHERE a < 3"
    # The scheduled load joins the request, and does not wait for its delay.
    acceleration = AccelerationConfig(refresh_sql=declared, refresh_check_interval_s=1.0)
    fleet.loaded("c", "auto", replace(accelerated(fleet.directory), acceleration=acceleration))
    if not is_older:
        run = follower.request_refresh("d", sql)

    assert finished(follower, run).status == "succeeded"
    assert fleet.rows("b") == [(1, "x"), (2, "y"), (3, "z")][: 3 if is_older else 2]


def test_a_reload_changes_the_credentials(fleet: Fleet) -> None:
    node = fleet.loaded("a")

    node.replace(fleet.config("a", params={"s3_key": "newer-key"}, generation=2), [], 30)
    node.commit()
    fleet.shared.fault("denied", only=KEYS["s3_key"])

    fleet.refresh("a", 2)


@pytest.mark.parametrize("second", ["a", "b"])
def test_a_node_with_other_settings_does_not_forget_the_first_types(fleet: Fleet, second: str) -> None:
    """It is the same node or one without any data of its own."""
    put(fleet.directory, "a.csv", b"a,b\n1,x\n")
    dataset = replace(accelerated(fleet.directory), on_schema_change="accept")
    fleet.loaded("a", "auto", dataset)
    fleet.stop("a")
    put(fleet.directory, "a.csv", b"a,b\n1,5\n")
    with_key = replace(dataset, acceleration=replace(dataset.acceleration, primary_key=("a",)))
    fleet.loaded(second, "auto", with_key)
    wait_for(lambda: fleet.rows(second) == [(1, 5)], f"{second} to load")

    (snapshot,) = read_manifest(fleet.directory / second / "state").snapshots
    assert snapshot.retyped == (Column(name="b", type="VARCHAR"),)

import pytest
from msgspec.structs import replace

from datasources.control import AdmittedSql
from datasources.errors import (
    AccelerationDisabledError,
    DatasetsUnavailableError,
    TimeColumnMissingError,
    UnknownDatasetError,
)
from nodes.documents import RefreshRequest
from nodes.object_storage import ObjectStorage
from nodes.requests import Requests, declaration_of
from runtimeconf.model import AccelerationConfig, DatasetConfig
from tests.datasources.sources.test_files import put
from tests.datasources.support import accelerated, declare, finished
from tests.nodes.fleet import Fleet
from tests.system.harness import wait_for

pytestmark = pytest.mark.plugin


def test_a_request_stays_until_it_is_removed(storage: ObjectStorage) -> None:
    requests = Requests(storage)
    dataset = DatasetConfig(name="d", from_="file:d.csv")
    run = requests.add(dataset, "FROM d", mode="append", jitter_max_s=2.5, caller="reports")
    storage.put("requests/something-else", b"")

    assert run.status == "queued"
    assert requests.ids() == {run.id}
    assert requests.get(run.id) == RefreshRequest(
        dataset="d",
        requested_at=run.requested_at,
        source=declaration_of(dataset),
        sql="FROM d",
        mode="append",
        jitter_max_s=2.5,
        caller="reports",
    )
    requests.remove({run.id})
    assert requests.ids() == set()
    assert requests.get(run.id) is None


def test_what_something_else_wrote_is_dropped(storage: ObjectStorage) -> None:
    requests = Requests(storage)
    storage.put("requests/0123456789abcdef.json", b"{}")

    assert [requests.get(one) for one in requests.ids()] == [None]
    assert requests.ids() == set()


def test_a_refresh_through_any_node_is_listed_by_all_and_succeeds_where_its_data_is_served(fleet: Fleet) -> None:
    for name in "abc":
        fleet.loaded(name)
    fleet.write(2)

    run = fleet.nodes["b"].request_refresh("d")

    for node in fleet.nodes.values():
        assert run.id in [listed.id for listed in node.history("d")]
    for name, node in fleet.nodes.items():
        assert finished(node, run).rows == 1
        assert fleet.rows(name) == [(2, "x")]
    wait_for(lambda: not any(name.startswith("requests/") for name in fleet.shared.names()), "the request to go")
    assert [listed.id for listed in fleet.nodes["c"].history("d")].count(run.id) == 1


def test_the_sql_of_a_request_runs_on_the_publisher_which_checks_it_again(fleet: Fleet) -> None:
    fleet.loaded("a")
    # A follower lacks parameters that refer to secrets.
    follower = fleet.loaded("b", "follower", replace(accelerated(fleet.directory), params={"csv_has_header": True}))
    put(fleet.directory, "a.csv", b"a,b\n1,x\n2,y\n")

    run = finished(follower, follower.request_refresh("d", AdmittedSql("SELECT * FROM d WHERE a = 2")))
    assert (run.rows, fleet.rows("b")) == (1, [(2, "y")])

    for evil in ("SELECT * FROM read_csv('/etc/passwd')", "DROP TABLE d", "SELECT * FROM other"):
        run = finished(follower, follower.request_refresh("d", AdmittedSql(evil)))
        assert run.status == "failed"
    assert fleet.rows("a") == fleet.rows("b") == [(2, "y")]


@pytest.mark.exhaustive
def test_requests_that_join_a_queued_run_are_listed_under_their_own_ids(fleet: Fleet) -> None:
    fleet.loaded("a")
    follower = fleet.loaded("b", "follower")
    fleet.write(2)
    fleet.shared.fault(delay_s=0.5, only="/snapshots/")  # so that the first run takes its time

    ended = [finished(follower, run) for run in [follower.request_refresh("d") for _ in range(4)]]

    assert len({run.id for run in ended}) == 4
    assert {run.status for run in ended} == {"succeeded"}
    assert fleet.rows("b") == [(2, "x")]


def test_what_a_refresher_refuses_a_follower_refuses_at_once(fleet: Fleet) -> None:
    once = declare(fleet.directory, "a.csv", name="once", acceleration=AccelerationConfig(enabled=False))
    fleet.loaded("a", "auto", accelerated(fleet.directory), once)
    follower = fleet.loaded("b", "follower", accelerated(fleet.directory), once)

    for error, call in (
        (UnknownDatasetError, lambda: follower.request_refresh("absent")),
        (UnknownDatasetError, lambda: follower.history("absent")),
        (AccelerationDisabledError, lambda: follower.request_refresh("once")),
        (TimeColumnMissingError, lambda: follower.request_refresh("d", mode="append")),
    ):
        with pytest.raises(error):
            call()


def test_requests_of_one_caller_that_wait_for_the_publisher_are_bounded(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodes.follower._MAX_REQUESTS", 3)
    fleet.loaded("a")
    follower = fleet.loaded("b", "follower")
    fleet.kill("a")

    for _ in range(3):
        follower.request_refresh("d", caller="one")
    with pytest.raises(DatasetsUnavailableError, match="3 requested refreshes of d have not ended"):
        follower.request_refresh("d", caller="one")
    run = follower.request_refresh("d", caller="two")

    fleet.start("c")
    assert finished(follower, run).status == "succeeded"
    wait_for(lambda: not any(name.startswith("requests/") for name in fleet.shared.names()), "the requests to go")
    follower.request_refresh("d", caller="one")


@pytest.mark.exhaustive
def test_a_refresh_that_a_dead_publisher_did_not_carry_out_is_carried_out_by_the_next(fleet: Fleet) -> None:
    fleet.loaded("a")
    fleet.loaded("b", "follower")
    fleet.kill("a")
    fleet.write(2)
    follower = fleet.nodes["b"]

    run = follower.request_refresh("d")
    assert next(listed for listed in follower.history("d") if listed.id == run.id).status == "queued"
    fleet.start("c")

    assert finished(follower, run).status == "succeeded"
    assert fleet.rows("b") == [(2, "x")]

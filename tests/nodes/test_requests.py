from datasources.snapshots.snapshot import fingerprint
from nodes.documents import RefreshRequest
from nodes.object_storage import ObjectStorage
from nodes.requests import Requests
from runtimeconf.model import DatasetConfig


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
        source=fingerprint(dataset),
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

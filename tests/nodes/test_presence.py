from nodes.object_storage import ObjectStorage
from nodes.presence import GONE_S, RENEWAL_S, Nodes
from tests.nodes.storage_server import SharedStorage
from tests.nodes.test_lease import Clock


def test_what_a_live_node_reads_is_known_until_it_is_gone(shared: SharedStorage, storage: ObjectStorage) -> None:
    clock = Clock()
    reader, publisher = Nodes(storage, "reader", clock), Nodes(storage, "publisher", clock)
    publisher.announce()
    reader.announce({"b", "a"})

    assert publisher.reads() == {"a", "b"}
    assert publisher.reads() == {"a", "b"}
    reader.announce({"c"})
    assert publisher.reads() == {"c"}
    while clock.time < 2 * GONE_S:
        clock.time += RENEWAL_S
        publisher.announce()
        last = publisher.reads()

    assert last == set()
    assert shared.names() == ["nodes/publisher.json"]
    reader.announce({"c"})
    assert publisher.reads() == {"c"}
    storage.put("nodes/other.json", b"something else")
    assert publisher.reads() == {"c"}
    reader.leave()
    assert publisher.reads() == set()


def test_a_node_is_written_only_when_it_is_due(shared: SharedStorage, storage: ObjectStorage) -> None:
    clock = Clock()
    node = Nodes(storage, "a", clock)
    node.announce()
    first = shared.document("nodes/a.json")

    node.announce()
    assert shared.document("nodes/a.json") == first
    clock.time += RENEWAL_S
    node.announce()
    assert shared.document("nodes/a.json") != first


def test_what_a_node_waits_for_is_known(shared: SharedStorage, storage: ObjectStorage) -> None:
    waiting, publisher = Nodes(storage, "waiting"), Nodes(storage, "publisher")
    publisher.announce()
    waiting.announce({"a"}, {"e": "1", "d": "2"})

    assert publisher.reads() == {"a"}
    assert publisher.lacks() == {("d", "2"), ("e", "1")}
    waiting.announce({"a"})
    assert publisher.reads() == {"a"}
    assert publisher.lacks() == set()


def test_a_node_is_outdone_by_one_that_has_newer_data(storage: ObjectStorage) -> None:
    first, second = Nodes(storage, "1"), Nodes(storage, "2")
    old, new = {("d", "x"): "2000-01-01"}, {("d", "x"): "2000-01-02"}
    first.announce()
    second.announce((), {}, old)
    for nodes in (first, second):
        nodes.reads()
    assert first.outdone({("d", "x"): "", ("e", "x"): ""}) == ["d"]
    assert first.outdone(new) == first.outdone(old) == first.outdone({("d", "y"): ""}) == []
    assert second.outdone(old) == []

    first.announce((), {}, {("e", "x"): "2000-01-01"})
    second.announce((), {"e": "x"}, old)
    for nodes in (first, second):
        nodes.reads()
    assert first.outdone({("d", "x"): "", ("e", "x"): "2000-01-01"}) == []  # One of them has to go first.
    assert second.outdone({("d", "x"): "2000-01-01", ("e", "x"): ""}) == ["e"]

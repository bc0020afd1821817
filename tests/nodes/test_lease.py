import pytest

from datasources.errors import SharedStorageError
from nodes.documents import LEASE, Holder
from nodes.lease import EXPIRY_S, LastSeen, Lease
from nodes.object_storage import ObjectStorage
from tests.nodes.storage_server import SharedStorage


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def test_the_first_node_takes_the_lease_and_the_second_waits_until_it_is_not_renewed(storage: ObjectStorage) -> None:
    clock = Clock()
    first, second = Lease(storage, "first"), Lease(storage, "second", clock)

    first.acquire()
    for _ in range(10):
        second.acquire()
        clock.time += EXPIRY_S / 2
        first.renew()

    assert first.epoch == 1
    assert [second.epoch] == [None]
    assert second.holder == "first"
    second.acquire()
    clock.time += EXPIRY_S - 0.1
    second.acquire()
    assert [second.epoch] == [None]
    clock.time += 0.1
    second.acquire()
    assert second.epoch == 2
    assert second.holder == "second"
    first.renew()
    assert [first.epoch] == [None]
    assert first.holder == "second"
    first.renew()  # of what it does not have
    second.renew()
    assert second.epoch == 2


def test_a_lease_that_is_given_up_is_free_at_once(storage: ObjectStorage) -> None:
    first, second = Lease(storage, "first"), Lease(storage, "second")
    first.acquire()
    first.renew(7)

    first.release()
    second.acquire()

    assert (first.epoch, second.epoch) == (None, 8)
    first.release()
    second.renew()
    assert second.epoch == 8


def test_of_two_nodes_that_see_a_free_lease_one_gets_it(storage: ObjectStorage) -> None:
    leases = [Lease(storage, str(number)) for number in range(4)]
    former = Lease(storage, "former")
    former.acquire()
    former.release()
    found = storage.read(LEASE)
    assert found is not None
    assert found != "unchanged"

    for lease in leases:
        lease._take(2, found.tag)

    assert [lease.epoch for lease in leases] == [2, None, None, None]


def test_a_holder_whose_renewal_was_answered_too_late_keeps_the_lease(
    shared: SharedStorage, storage: ObjectStorage
) -> None:
    lease = Lease(storage, "first")
    lease.acquire()
    shared.fault("lost")
    with pytest.raises(SharedStorageError):
        lease.renew()
    shared.fault()

    lease.renew()

    assert lease.epoch == 1
    assert Holder.decode(shared.document(LEASE)).node == "first"


def test_a_holder_that_cannot_renew_knows_before_another_node_can_have_the_lease(
    shared: SharedStorage, storage: ObjectStorage
) -> None:
    clock, others = Clock(), Clock()
    first, second = Lease(storage, "first", own_now=clock), Lease(storage, "second", others)
    assert first.valid_s == 0.0
    first.acquire()
    assert first.valid_s == EXPIRY_S
    second.acquire()  # It sees the lease no earlier than it was written.
    for kind in ("down", "lost"):
        clock.time = others.time = others.time + EXPIRY_S / 3
        shared.fault(kind)
        with pytest.raises(SharedStorageError):
            first.renew()
        shared.fault()
    assert first.valid_s == pytest.approx(EXPIRY_S / 3)

    first.renew()  # It finds the renewal whose answer was lost, which is older than this call.
    assert first.valid_s == pytest.approx(EXPIRY_S / 3)
    first.renew()
    assert first.valid_s == EXPIRY_S

    second.acquire()
    for step_s in (EXPIRY_S / 2, EXPIRY_S / 2):
        assert (first.valid_s > 0, second.valid_s) == (True, 0.0)
        clock.time = others.time = others.time + step_s
    second.acquire()
    assert (first.epoch, first.valid_s, second.valid_s > 0) == (1, 0.0, True)


def test_a_lease_that_was_deleted_is_lost(shared: SharedStorage, storage: ObjectStorage) -> None:
    lease = Lease(storage, "first")
    lease.acquire()
    shared.delete(LEASE)

    lease.renew()

    assert lease.epoch is None


def test_a_lease_that_something_else_wrote_is_lost_and_free_once_it_does_not_change(
    shared: SharedStorage, storage: ObjectStorage
) -> None:
    clock = Clock()
    first, second = Lease(storage, "first"), Lease(storage, "second", clock)
    first.acquire()
    shared.put(LEASE, b"{")

    for call in (first.renew, second.acquire):
        with pytest.raises(SharedStorageError, match="something else is writing there"):
            call()
    assert (first.epoch, second.epoch) == (None, None)
    clock.time += EXPIRY_S - 0.1
    shared.put(LEASE, b"[")
    for wait_s in (EXPIRY_S - 0.1, 0.0):
        with pytest.raises(SharedStorageError):
            second.acquire()
        clock.time += wait_s
    clock.time += 0.1
    second.acquire()

    assert second.epoch == 1
    assert Holder.decode(shared.document(LEASE)).node == "second"


def test_objects_that_are_gone_are_forgotten() -> None:
    clock = Clock()
    seen = LastSeen(clock)
    seen.unchanged_s("a", "1")
    seen.forget_others(["b"])
    clock.time = 5.0

    assert seen.unchanged_s("a", "1") == 0

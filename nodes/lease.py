"""
The lease, which determines the node that publishes.

Clocks of different machines are never compared. A lease is free once an observer has seen the same version for
`EXPIRY_S` seconds on its own monotonic clock, because a live holder would have renewed it. Each new holder has a higher
epoch than the previous one. A holder that wakes up late may still believe that it has the lease, but the epoch in the
manifest prevents it from publishing (`nodes.manifest_writer`).
"""

import time
from collections.abc import Callable, Collection

from datasources.errors import SharedStorageError
from nodes.documents import LEASE, Holder
from nodes.object_storage import ObjectStorage
from system.wallclock import since_boot

#: Seconds between two renewals.
RENEWAL_S = 3.0
#: Seconds without a renewal after which another node may take the lease. Some renewals may fail within this time.
EXPIRY_S = 15.0


class LastSeen:
    """Tracks how long the versions of objects have been unchanged on the clock *now*."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._seen: dict[str, tuple[str, float]] = {}

    def unchanged_s(self, name: str, tag: str) -> float:
        """Return how long the object *name* has been seen with its current version *tag*."""
        known = self._seen.get(name)
        if known is None or known[0] != tag:
            known = self._seen[name] = tag, self._now()
        return self._now() - known[1]

    def forget_others(self, names: Collection[str]) -> None:
        """Forget every object not in *names*."""
        self._seen = {name: seen for name, seen in self._seen.items() if name in names}


class Lease:
    """
    The lease as the node *node* sees it. For one thread at a time, except for `epoch` and `valid_s`.

    `epoch` is this node's epoch while it has the lease, otherwise None. `holder` is the node last seen with the lease,
    or empty if there is none.
    """

    def __init__(
        self,
        storage: ObjectStorage,
        node: str,
        now: Callable[[], float] = time.monotonic,
        own_now: Callable[[], float] = since_boot,
    ) -> None:
        self.epoch: int | None = None
        self._own_now = own_now
        self._renewed_at = 0.0  # before the request was sent, by the clock *own_now*
        self.holder = ""
        self._storage = storage
        self._node = node
        self._tag = ""
        self._beat = 0
        self._seen = LastSeen(now)

    @property
    def valid_s(self) -> float:
        """Seconds for which no other node can take the lease; 0 if another node may have it."""
        return 0.0 if self.epoch is None else max(0.0, self._renewed_at + EXPIRY_S - self._own_now())

    def acquire(self) -> None:
        """
        Take the lease if it is free. Call this every few seconds, because the calls observe whether it is free.

        Raises:
            SharedStorageError: The storage does not respond. The lease may have been taken nevertheless, and then
                expires. Also raised if another program has written the lease, which is free again once it has not
                changed for `EXPIRY_S` seconds.
        """
        found = self._storage.read(LEASE)
        if found is None or found == "unchanged":
            self._take(1, None)
            return
        try:
            current = Holder.decode(found.content)
        except SharedStorageError:
            if self._seen.unchanged_s(LEASE, found.tag) < EXPIRY_S:
                raise
            # Nobody renews the lease. If the epoch is too low, as after the lease was deleted, the manifest shows it.
            self._take(1, found.tag)
            return
        self.holder = current.node
        if not current.node or self._seen.unchanged_s(LEASE, found.tag) >= EXPIRY_S:
            self._take(current.epoch + 1, found.tag)

    def renew(self, epoch: int | None = None) -> None:
        """
        Renew the lease, with a higher *epoch* if given. If another node has taken the lease, `epoch` becomes None.

        Raises:
            SharedStorageError: The storage does not respond, or another program has written the lease, which is then
                lost.
        """
        if self.epoch is not None and not self._write(epoch or self.epoch, self._node, self._tag):
            self._look_again(self.epoch)

    def release(self) -> None:
        """Release the lease, so that another node does not have to wait until it expires. Raises SharedStorageError."""
        epoch, self.epoch = self.epoch, None
        if epoch is not None:
            self._storage.write(LEASE, Holder(epoch=epoch, node="", beat=self._beat + 1).encode(), self._tag)

    def _take(self, epoch: int, replaces: str | None) -> None:
        if self._write(epoch, self._node, replaces):
            self.holder = self._node

    def _write(self, epoch: int, node: str, replaces: str | None) -> bool:
        self._beat += 1
        began = self._own_now()
        tag = self._storage.write(LEASE, Holder(epoch=epoch, node=node, beat=self._beat).encode(), replaces)
        if tag is None:
            return False
        self.epoch, self._tag, self._renewed_at = epoch, tag, began
        return True

    def _look_again(self, epoch: int) -> None:
        """Find out what replaced this node's version: another node, or a write whose response was lost."""
        found = self._storage.read(LEASE)
        if found is not None and found != "unchanged":
            try:
                current = Holder.decode(found.content)
            except SharedStorageError:
                self.epoch = None
                raise
            self.holder = current.node
            if current.node == self._node and current.epoch >= epoch:
                self.epoch, self._tag = current.epoch, found.tag
                return
        self.epoch = None

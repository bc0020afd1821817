"""
Tracks which nodes are alive, which snapshots they are still loading, and which datasets they lack.

As with the lease, no clocks are compared. A node is gone once its document has not changed for `GONE_S` seconds on the
observing node's clock. A node that comes back writes its document again.
"""

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from datasources.errors import SharedStorageError
from nodes.documents import NODES, Presence
from nodes.lease import LastSeen
from nodes.object_storage import ObjectStorage, within

#: A dataset with the fingerprint of a definition of it.
Defined = tuple[str, str]

#: What a node lacks that has everything.
NOTHING: Final[Mapping[str, str]] = {}
NOTHING_HELD: Final[Mapping[Defined, str]] = {}
#: Instead of the time at which held data was loaded: as published.
PUBLISHED: Final = "0"
#: Seconds between two renewals.
RENEWAL_S = 10.0
#: Seconds without a renewal after which a node counts as gone.
GONE_S = 60.0


class Nodes:
    """The nodes as the node *node* sees them. For one thread at a time."""

    def __init__(self, storage: ObjectStorage, node: str, now: Callable[[], float] = time.monotonic) -> None:
        self._storage = storage
        self._name = f"{node}.json"
        self._now = now
        self._seen = LastSeen(now)
        self._alive: dict[str, tuple[str, Presence]] = {}  # by object name, with the tag of the document
        self._written = Presence(beat=0, reads=())
        self._due = 0.0

    def announce(
        self,
        reads: Collection[str] = (),
        lacks: Mapping[str, str] = NOTHING,
        holds: Mapping[Defined, str] = NOTHING_HELD,
    ) -> None:
        """
        Announce that this node is alive, and what it has and lacks; see `Presence`.

        The document is written only if it is due or has changed.

        Raises:
            SharedStorageError: The storage does not respond.
        """
        held = tuple(sorted((*one, created_at) for one, created_at in holds.items()))
        told = Presence(beat=self._written.beat, reads=tuple(sorted(reads)), lacks=dict(lacks), holds=held)
        if told != self._written or self._now() >= self._due:
            self._written = replace(told, beat=told.beat + 1)
            self._storage.put(f"{NODES}/{self._name}", self._written.encode())
            self._due = self._now() + RENEWAL_S

    def leave(self) -> None:
        """Announce that this node is ending. Raises SharedStorageError."""
        self._storage.delete([f"{NODES}/{self._name}"])

    def reads(self) -> set[str]:
        """
        Return the snapshot files that nodes are about to load, and forget nodes that are gone.

        Raises:
            SharedStorageError: The storage does not respond, or another program writes to it.
        """
        tags = self._storage.tags(NODES)
        gone = {name for name, tag in tags.items() if self._seen.unchanged_s(name, tag) >= GONE_S}
        self._storage.delete(within(NODES, gone))
        self._seen.forget_others(tags.keys() - gone)
        alive: dict[str, tuple[str, Presence]] = {}
        for name in tags.keys() - gone:
            known = self._alive.get(name)
            if known is None or known[0] != tags[name]:
                found = self._storage.read(f"{NODES}/{name}")
                if found is None or found == "unchanged":
                    continue
                # Another program wrote the document, so no node waits for the files in it.
                with suppress(SharedStorageError):
                    known = found.tag, Presence.decode(found.content)
            if known is None:
                continue
            alive[name] = known
        self._alive = alive
        return {file for _, presence in alive.values() for file in presence.reads}

    def lacks(self) -> set[tuple[str, str]]:
        """Return the datasets that nodes lack, with their fingerprints, as of the last `reads`."""
        return {lack for _, presence in self._alive.values() for lack in presence.lacks.items()}

    def outdone(self, unpublished: Mapping[Defined, str]) -> list[str]:
        """
        Return the datasets of *unpublished* that another node has in a newer version, as of the last `reads`.

        *unpublished* tells when this node loaded each, empty if it has not. If both nodes have something newer, only
        one of them is outdone.
        """
        names: set[str] = set()
        for name, (_, presence) in self._alive.items():
            theirs = {(dataset, source): created_at for dataset, source, created_at in presence.holds}
            newer = {one[0] for one, at in unpublished.items() if theirs.get(one, "") > at}
            wanted = theirs.keys() | presence.lacks.items()
            is_ahead = any(at > theirs.get(one, "") for one, at in unpublished.items() if one in wanted)
            if name != self._name and not (is_ahead and self._name < name):
                names |= newer
        return sorted(names)

"""Files that are kept open for a load, and their versions."""

import hashlib
import os
import time
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

#: The directory in which the system lists the open descriptors of this process.
DESCRIPTORS = "/proc/self/fd"

#: A file written within this time (seconds) may be written again with the same modification time, because the kernel
#: takes timestamps from its tick.
SETTLED_S = 0.05


class Identity(NamedTuple):
    """A file and its version. Equal identities mean equal bytes, once the file has settled."""

    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, info: os.stat_result) -> "Identity":
        """Return the identity of the file with this `stat` result."""
        return cls(info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)

    @property
    def is_settled(self) -> bool:
        """Whether every later change will show in the modification time."""
        return not 0 <= time.time_ns() - self.modified_ns < SETTLED_S * 1e9


def version_of(identities: Sequence[Identity]) -> str | None:
    """Return a string that changes whenever a file or the number of files changes; None until all have settled."""
    if not all(identity.is_settled for identity in identities):
        return None
    return hashlib.sha256(repr([tuple(identity) for identity in identities]).encode()).hexdigest()


class PinnedFile(Struct, frozen=True):
    """A regular file kept open by *descriptor*. *shown* is its path in errors, as written in the configuration."""

    descriptor: int
    shown: str
    identity: Identity

    @property
    def path(self) -> str:
        """A path with which this process can open the file even if it is renamed."""
        return f"{DESCRIPTORS}/{self.descriptor}"

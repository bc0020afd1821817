"""
Stores cached results in bounded memory. The least recently used ones are dropped first.

`queryengine.cache.cached_engine` decides whether a cached result is still valid.
"""

import sys
from collections import OrderedDict
from typing import Final

from msgspec import Struct

from runtimeconf.model import Scope

#: The encoding, the normal form of the SQL text, the parameters as JSON, and the scope of the caller's key.
Key = tuple[str, str, str | None, Scope | None]

#: The memory of a result in addition to its bytes and its key: the objects, and the dictionary entry.
_ENTRY_BYTES: Final = 680
#: The memory of a chunk in addition to its bytes: the tuple entry, and the rounding of the allocator.
_CHUNK_BYTES: Final = 24
#: A single result may use at most 1 / this of the cache.
_LARGEST_PART: Final = 8


class Remembered(Struct, frozen=True):
    """A complete result, with the number of rows and bytes and the statement digest for the query log."""

    chunks: tuple[bytes, ...]
    rows: int
    bytes: int
    statement: str = ""


class Kept(Struct, eq=False):
    """A cached result of `size` bytes. Readers may still use it when it `is_out` of the cache."""

    answer: Remembered
    size: int
    readers: int = 0
    is_out: bool = False


class ResultsCache:
    """
    Results by key, in at most *max_bytes* including the memory reserved for unfinished results. Not thread-safe.

    Memory is reserved before a result is complete, so results that are being collected count too. A result that is
    dropped while it is lent counts until its loan ends.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._answers: OrderedDict[Key, Kept] = OrderedDict()
        self._kept_bytes = 0
        self._room_bytes = 0  # of unfinished results, and of dropped results that are lent
        self.largest_bytes = max_bytes // _LARGEST_PART

    @property
    def used_bytes(self) -> int:
        """The memory of cached results, plus the memory reserved for unfinished results."""
        return self._kept_bytes + self._room_bytes

    def get(self, key: Key) -> Kept | None:
        """Return the result of *key* and make it the most recently used one; None if there is none."""
        found = self._answers.get(key)
        if found is not None:
            self._answers.move_to_end(key)
        return found

    def lend(self, kept: Kept) -> None:
        """Count the memory of *kept* until it is given back."""
        kept.readers += 1

    def give_back(self, kept: Kept) -> None:
        """End one loan of *kept*."""
        kept.readers -= 1
        if kept.is_out and not kept.readers:
            self._room_bytes -= kept.size

    def take_room(self, room_bytes: int) -> bool:
        """Reserve memory for an unfinished result, and drop the oldest results if needed. Return False if it fails."""
        while self._answers and self.used_bytes + room_bytes > self._max_bytes >= self._room_bytes + room_bytes:
            _, oldest = self._answers.popitem(last=False)
            self._put_out(oldest)
        if self.used_bytes + room_bytes > self._max_bytes:
            return False
        self._room_bytes += room_bytes
        return True

    def give_room_back(self, room_bytes: int) -> None:
        """Release reserved memory."""
        self._room_bytes -= room_bytes

    def keep(self, key: Key, answer: Remembered, room_bytes: int) -> None:
        """Cache *answer* in its reserved memory. It replaces an earlier result of *key*."""
        before = self._answers.pop(key, None)
        if before is not None:
            self._put_out(before)
        self._answers[key] = Kept(answer, room_bytes)
        self._room_bytes -= room_bytes
        self._kept_bytes += room_bytes

    def clear(self) -> None:
        """Drop every result. Reserved memory stays reserved."""
        for kept in self._answers.values():
            self._put_out(kept)
        self._answers.clear()

    def _put_out(self, kept: Kept) -> None:
        kept.is_out = True
        self._kept_bytes -= kept.size
        if kept.readers:
            self._room_bytes += kept.size


def key_bytes(key: Key) -> int:
    """Return the memory that a result with *key* uses, without its chunks."""
    return _ENTRY_BYTES + sum(map(sys.getsizeof, key))


def chunk_bytes(chunk: bytes) -> int:
    """Return the memory that *chunk* uses."""
    return sys.getsizeof(chunk) + _CHUNK_BYTES

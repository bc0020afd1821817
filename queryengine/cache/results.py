"""
Remembered answers, in bounded memory: those that were not asked for longest go first.

What is here knows nothing of when an answer is right; `queryengine.cache.cached_engine` does.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

#: Encoding, normal form of the text, parameters as JSON.
Key = tuple[str, str, str | None]

#: What an answer takes beside its bytes and its key: the objects, and its place in the dictionary.
_ENTRY_BYTES: Final = 600
#: What a chunk takes beside its bytes: its place in the tuple, and what the allocator rounds up.
_CHUNK_BYTES: Final = 24
#: No answer may take more than this part of all.
_LARGEST_PART: Final = 8


@dataclass(frozen=True, slots=True)
class Remembered:
    """A complete answer: its bytes, and its number of rows and bytes as the query log tells them."""

    chunks: tuple[bytes, ...]
    rows: int
    bytes: int


@dataclass(eq=False, slots=True)
class Kept:
    """An answer in its place of `size` bytes: `readers` have it lent, and may keep it when it `is_out` of the cache."""

    answer: Remembered
    size: int
    readers: int = 0
    is_out: bool = False


class ResultsCache:
    """
    Answers by key, in *max_bytes* together with the room that was taken for answers to come. For one thread at a time.

    Room is taken before an answer is complete, so that what is being collected counts, too. So does an answer that is
    forgotten while it is lent, as long as it is.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._answers: OrderedDict[Key, Kept] = OrderedDict()
        self._kept_bytes = 0
        self._room_bytes = 0  # of answers to come, and of those that are out and lent
        self.largest_bytes = max_bytes // _LARGEST_PART

    @property
    def used_bytes(self) -> int:
        """What the answers take, and the room for those to come."""
        return self._kept_bytes + self._room_bytes

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: Key) -> Kept | None:
        """Return the answer of *key*, which then is the last to go."""
        found = self._answers.get(key)
        if found is not None:
            self._answers.move_to_end(key)
        return found

    def lend(self, kept: Kept) -> None:
        """Count what *kept* takes until it is given back."""
        kept.readers += 1

    def give_back(self, kept: Kept) -> None:
        """End one loan of *kept*."""
        kept.readers -= 1
        if kept.is_out and not kept.readers:
            self._room_bytes -= kept.size

    def take_room(self, room_bytes: int) -> bool:
        """Take room for an answer to come, from the oldest answers if need be; False when there is not enough."""
        while self._answers and self.used_bytes + room_bytes > self._max_bytes >= self._room_bytes + room_bytes:
            _, oldest = self._answers.popitem(last=False)
            self._put_out(oldest)
        if self.used_bytes + room_bytes > self._max_bytes:
            return False
        self._room_bytes += room_bytes
        return True

    def give_room_back(self, room_bytes: int) -> None:
        """Give back room that was taken."""
        self._room_bytes -= room_bytes

    def keep(self, key: Key, answer: Remembered, room_bytes: int) -> None:
        """Keep *answer* in the room that was taken for it, instead of the one there may be."""
        before = self._answers.pop(key, None)
        if before is not None:
            self._put_out(before)
        self._answers[key] = Kept(answer, room_bytes)
        self._room_bytes -= room_bytes
        self._kept_bytes += room_bytes

    def clear(self) -> None:
        """Forget every answer. Room that was taken stays taken."""
        for kept in self._answers.values():
            self._put_out(kept)
        self._answers.clear()

    def _put_out(self, kept: Kept) -> None:
        kept.is_out = True
        self._kept_bytes -= kept.size
        if kept.readers:
            self._room_bytes += kept.size


def key_bytes(key: Key) -> int:
    """Return the room that an answer of *key* takes, without its chunks."""
    return _ENTRY_BYTES + sum(map(sys.getsizeof, key))


def chunk_bytes(chunk: bytes) -> int:
    """Return the room that *chunk* takes."""
    return sys.getsizeof(chunk) + _CHUNK_BYTES

"""
Remembered answers, in bounded memory: those that were not asked for longest go first.

What is here knows nothing of when an answer is right; `queryengine.cached_engine` does.
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


class ResultsCache:
    """
    Answers by key, in *max_bytes* together with the room that was taken for answers to come. For one thread at a time.

    Room is taken before an answer is complete, so that what is being collected counts, too.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._answers: OrderedDict[Key, tuple[Remembered, int]] = OrderedDict()
        self._kept_bytes = 0
        self._room_bytes = 0
        self.largest_bytes = max_bytes // _LARGEST_PART

    @property
    def used_bytes(self) -> int:
        """What the answers take, and the room for those to come."""
        return self._kept_bytes + self._room_bytes

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: Key) -> Remembered | None:
        """Return the answer of *key*, which then is the last to go."""
        found = self._answers.get(key)
        if found is None:
            return None
        self._answers.move_to_end(key)
        return found[0]

    def take_room(self, room_bytes: int) -> bool:
        """Take room for an answer to come, from the oldest answers if need be; False when there is not enough."""
        if self._room_bytes + room_bytes > self._max_bytes:
            return False
        self._room_bytes += room_bytes
        while self.used_bytes > self._max_bytes:
            _, (_, size) = self._answers.popitem(last=False)
            self._kept_bytes -= size
        return True

    def give_room_back(self, room_bytes: int) -> None:
        """Give back room that was taken."""
        self._room_bytes -= room_bytes

    def keep(self, key: Key, answer: Remembered, room_bytes: int) -> None:
        """Keep *answer* in the room that was taken for it, instead of the one there may be."""
        before = self._answers.pop(key, None)
        if before is not None:
            self._kept_bytes -= before[1]
        self._answers[key] = (answer, room_bytes)
        self._room_bytes -= room_bytes
        self._kept_bytes += room_bytes

    def clear(self) -> None:
        """Forget every answer. Room that was taken stays taken."""
        self._answers.clear()
        self._kept_bytes = 0


def key_bytes(key: Key) -> int:
    """Return the room that an answer of *key* takes, without its chunks."""
    return _ENTRY_BYTES + sum(map(sys.getsizeof, key))


def chunk_bytes(chunk: bytes) -> int:
    """Return the room that *chunk* takes."""
    return sys.getsizeof(chunk) + _CHUNK_BYTES

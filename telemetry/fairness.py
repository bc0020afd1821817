"""Counts the entries of each key in a bounded store, so that the key with the most loses one when it is full."""


class Shares:
    """The number of entries of each key. Each operation takes constant time for each entry."""

    def __init__(self) -> None:
        self._count_of: dict[str, int] = {}
        self._with_count: dict[int, dict[str, None]] = {}  # keys by their number of entries, in the order of arrival
        self._most = 0

    def add(self, key: str, number: int = 1) -> None:
        """Count *number* more entries of *key*."""
        count = self._count_of.get(key, 0) + number
        self._move(key, count)
        self._most = max(self._most, count)

    def remove(self, at_most: int = 1) -> tuple[str, int]:
        """
        Count fewer entries of a key with the most, and return the key and how many fewer.

        It is one, or up to *at_most* as long as no other key has more. There must be *at_most* entries.
        """
        most = self._most
        largest = self._with_count[most]
        key = next(iter(largest))
        number = 1
        if len(largest) == 1:
            while number < at_most and most - number not in self._with_count:
                number += 1
            self._most = most - number
        self._move(key, most - number)
        return key, number

    def _move(self, key: str, count: int) -> None:
        before = self._count_of.pop(key, 0)
        if before:
            peers = self._with_count[before]
            del peers[key]
            if not peers:
                del self._with_count[before]
        if count:
            self._count_of[key] = count
            self._with_count.setdefault(count, {})[key] = None

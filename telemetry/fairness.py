"""Who has how many entries of a bounded store, so that the one with most of them loses one when it is full."""


class Shares:
    """The number of entries of each key. All operations take constant time."""

    def __init__(self) -> None:
        self._count_of: dict[str, int] = {}
        self._with_count: dict[int, dict[str, None]] = {}  # keys by their number of entries, in the order of arrival
        self._most = 0

    def add(self, key: str) -> None:
        """Count one more entry of *key*."""
        count = self._count_of.get(key, 0) + 1
        self._move(key, count)
        self._most = max(self._most, count)

    def remove(self, key: str) -> None:
        """Count one entry of *key* less."""
        count = self._count_of[key]
        self._move(key, count - 1)
        if count == self._most and not self._with_count.get(count):
            self._most -= 1

    def largest(self) -> str:
        """Return a key with most entries; there must be one."""
        return next(iter(self._with_count[self._most]))

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

"""A dictionary with a limited number of entries."""

import threading
from typing import TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")


class BoundedDict(dict[_K, _V]):
    """A dictionary with at most *size* entries. The oldest are dropped first. Items can be set from any thread."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._lock = threading.Lock()

    def __setitem__(self, key: _K, value: _V) -> None:
        with self._lock:
            if len(self) >= self._size and key not in self:
                del self[next(iter(self))]
            super().__setitem__(key, value)

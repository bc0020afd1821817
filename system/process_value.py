"""A per-process object for classes that a framework instantiates. All other classes receive it as an argument."""

from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class ProcessValue(Generic[_T]):
    """Stores one object. Until it is set, `get` raises the error that *missing* returns."""

    def __init__(self, missing: Callable[[], Exception]) -> None:
        self.value: _T | None = None
        self._missing = missing
        self._start: Callable[[], object] | None = None

    def get(self) -> _T:
        """Return the object. If there is none, first call the function from `start_on_demand`, which may set it."""
        if self.value is None and self._start is not None:
            self._start()
        if self.value is None:
            raise self._missing()
        return self.value

    def set(self, value: _T | None) -> None:
        """Set the object, or remove it with None. Nothing is started on demand from now on."""
        self.value, self._start = value, None

    def start_on_demand(self, start: Callable[[], object]) -> None:
        """Make `get` call *start* if there is no object."""
        self._start = start

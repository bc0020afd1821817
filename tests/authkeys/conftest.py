from __future__ import annotations

from collections.abc import Iterator

import pytest

from authkeys import state


@pytest.fixture(autouse=True)
def _no_access() -> Iterator[None]:
    """Begin and end without an access object, as a process does that has built none."""
    state.set_access(None)
    yield
    state.set_access(None)

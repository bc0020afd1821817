from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from authkeys import state

# How long an example takes says more about the other processes of the machine than about the code.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


@pytest.fixture(autouse=True)
def _no_access() -> Iterator[None]:
    """Begin and end without an access object, as a process does that has built none."""
    state.set_access(None)
    yield
    state.set_access(None)

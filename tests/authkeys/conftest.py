from collections.abc import Iterator

import pytest

from authkeys import state


@pytest.fixture(autouse=True)
def _no_access() -> Iterator[None]:
    """Begin and end each test without an access object."""
    state.set_access(None)
    yield
    state.set_access(None)

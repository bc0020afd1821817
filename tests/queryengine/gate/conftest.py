from collections.abc import Iterator
from contextlib import closing

import pytest

from queryengine.gate.gate import Gate


@pytest.fixture(scope="session")
def gate() -> Iterator[Gate]:
    with closing(Gate()) as made:
        yield made

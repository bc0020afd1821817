import pytest

from queryengine.remote.gate.gate import SparkGate


@pytest.fixture(scope="session")
def gate() -> SparkGate:
    return SparkGate()

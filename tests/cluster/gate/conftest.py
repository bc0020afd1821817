import pytest

from cluster.gate.gate import SparkGate


@pytest.fixture(scope="session")
def gate() -> SparkGate:
    return SparkGate()

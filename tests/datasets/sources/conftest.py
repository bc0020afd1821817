"""The servers that tests of sources share."""

from tests.datasets.sources.postgres_server import postgres

__all__ = ["postgres"]

"""The servers that tests of sources share."""

from tests.datasources.sources.postgres_server import postgres

__all__ = ["postgres"]

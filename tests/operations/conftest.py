"""The environment of the commands, as for those of the client."""

from tests.runtimeclient.conftest import _clean_process_environment, remote

__all__ = ["_clean_process_environment", "remote"]

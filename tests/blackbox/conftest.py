"""One running server per mode for the tests that change nothing."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from tests.system.harness import MODES, Mode, Server

MCP = {"runtime": {"mcp": {"enabled": True}}}


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Mode], Server]]:
    """A function that returns the one server of a mode, and starts it when it is asked for first."""
    with ExitStack() as stack:

        @cache
        def running(mode: Mode) -> Server:
            return stack.enter_context(Server(tmp_path_factory.mktemp(mode), mode=mode, changes=MCP))

        yield running


@pytest.fixture(params=MODES)
def server(request: pytest.FixtureRequest, shared: Callable[[Mode], Server]) -> Server:
    return shared(request.param)


@pytest.fixture
def serve(shared: Callable[[Mode], Server]) -> Server:
    return shared("serve")

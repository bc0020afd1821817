"""The servers that several modules share."""

from collections.abc import Iterator

import pytest

from tests.httpserver.web_tier import WebTier


@pytest.fixture(scope="package")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebTier]:
    with WebTier(tmp_path_factory.mktemp("plain")) as server:
        yield server


@pytest.fixture(scope="package")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebTier]:
    with WebTier(tmp_path_factory.mktemp("runtime"), "runtime") as server:
        yield server

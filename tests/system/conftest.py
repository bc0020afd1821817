"""One running server per mode for the tests that change nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.clients.runtime import FlightServer
from tests.system.harness import MODES, Server


@pytest.fixture(scope="session", params=MODES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp(request.param), mode=request.param) as running:
        yield running


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("served"), mode="serve") as running:
        yield running


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost that signs itself, and its key."""
    directory = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    issued.private_key_pem.write_to_path(key)
    # Chain and root in one file: a server's certificate file, and what a client has to trust.
    for pem in (*issued.cert_chain_pems, authority.cert_pem):
        pem.write_to_path(certificate, append=True)
    key.chmod(0o600)
    return certificate, key


@pytest.fixture(scope="session")
def tls_server(tmp_path_factory: pytest.TempPathFactory, tls_files: tuple[Path, Path]) -> Iterator[FlightServer]:
    """A runtime that speaks TLS."""
    certificate, key = tls_files
    with FlightServer(tmp_path_factory.mktemp("tls_server"), trust=certificate, key_file=key) as running:
        yield running

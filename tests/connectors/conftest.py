"""The servers that tests of sources share."""

import os
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.connectors.mssql.mssql_server import mssql, mssql_table
from tests.connectors.mysql.mariadb_server import mariadb
from tests.connectors.postgres.postgres_server import postgres
from tests.datasources.conftest import start
from tests.runtimeconf.conftest import fault, faults, load_text, yaml_file
from tests.web_server import File, WebServer, serving

__all__ = ["fault", "faults", "load_text", "mariadb", "mssql", "mssql_table", "postgres", "start", "yaml_file"]


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    """The authority of all certificates of these tests."""
    return trustme.CA()


@pytest.fixture(scope="session")
def tls(authority: trustme.CA) -> ssl.SSLContext:
    """The context of a server that has a certificate for `localhost`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    return context


@pytest.fixture
def root(authority: trustme.CA, tmp_path: Path) -> str:
    """The file of the root certificate, beside the YAML."""
    authority.cert_pem.write_to_path(tmp_path / "root.pem")
    return str(tmp_path / "root.pem")


@pytest.fixture(scope="module")
def running() -> Iterator[WebServer]:
    with serving() as server:
        yield server


@pytest.fixture
def web(running: WebServer) -> WebServer:
    """A web server with one file, `/a.csv`, that has seen no request."""
    running.files, running.requests, running.targets = {"/a.csv": File(b"a,b\n1,x\n")}, [], []
    running.clients = []
    return running


@pytest.fixture
def no_credentials_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "absent"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

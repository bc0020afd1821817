"""One running runtime per kind for the tests that change nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trustme

from tests.clients import tpch
from tests.clients.runtime import FlightServer, write_parquet
from tests.queryengine.statements import TABLES, VIEWS


@pytest.fixture(scope="session")
def flight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlightServer]:
    """The dataset `orders` of 1,000 rows and the view `big_orders`, with two keys, without TLS."""
    with FlightServer(tmp_path_factory.mktemp("flight")) as running:
        yield running


@pytest.fixture(scope="module")
def open_flight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlightServer]:
    """The same with authentication off."""
    changes = {"runtime": {"auth": {"api-key": {"enabled": False}}}}
    with FlightServer(tmp_path_factory.mktemp("open"), changes=changes) as running:
        yield running


@pytest.fixture(scope="session")
def flight_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlightServer]:
    """As `flight`, with TLS, under a certificate authority made for the purpose."""
    directory = tmp_path_factory.mktemp("flight_tls")
    issued = (authority := trustme.CA()).issue_cert("localhost", "127.0.0.1")
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    issued.private_key_pem.write_to_path(key)
    # Chain and root in one file: a server's certificate file, and what a client has to trust.
    for pem in (*issued.cert_chain_pems, authority.cert_pem):
        pem.write_to_path(certificate, append=True)
    key.chmod(0o600)
    with FlightServer(directory, trust=certificate, key_file=key) as running:
        yield running


@pytest.fixture(scope="module")
def tpch_flight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlightServer]:
    """The eight tables of TPC-H at scale factor 0.1, made by tpchgen-cli."""
    directory = tmp_path_factory.mktemp("tpch")
    tpch.generate(directory)
    datasets = [{"from": f"file:{name}.parquet", "name": name} for name in tpch.TABLES]
    with FlightServer(directory, changes={"datasets": datasets, "views": []}) as running:
        yield running


@pytest.fixture(scope="module")
def gate_flight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlightServer]:
    """The datasets and views that the statement lists of the gate are about."""
    directory = tmp_path_factory.mktemp("gate")
    write_parquet(directory, TABLES)
    datasets = [{"from": f"file:{name}.parquet", "name": name} for name in TABLES]
    views = [{"name": name, "sql": sql} for name, sql in VIEWS.items()]
    with FlightServer(directory, changes={"datasets": datasets, "views": views}) as running:
        yield running

"""One running runtime of each kind for the tests that do not change it."""

from collections.abc import Iterator
from pathlib import Path

import adbc_driver_flightsql.dbapi as adbc
import pytest

from tests.clients import tpch
from tests.clients.runtime import FlightServer, adbc_connection


@pytest.fixture(scope="session")
def flight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlightServer]:
    """The dataset `orders` of 1,000 rows and the view `big_orders`, with two keys, without TLS."""
    with FlightServer(tmp_path_factory.mktemp("flight")) as running:
        yield running


@pytest.fixture
def connection(flight: FlightServer) -> Iterator[adbc.Connection]:
    with adbc_connection(flight) as opened:
        yield opened


@pytest.fixture(scope="session")
def flight_tls(tmp_path_factory: pytest.TempPathFactory, tls_files: tuple[Path, Path]) -> Iterator[FlightServer]:
    """The same as `flight`, with TLS."""
    certificate, key = tls_files
    with FlightServer(tmp_path_factory.mktemp("flight_tls"), trust=certificate, key_file=key) as running:
        yield running


@pytest.fixture(scope="module")
def tpch_flight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlightServer]:
    """The eight tables of TPC-H. At scale factor 0.01, a table is one group of rows, whose averages have one order."""
    directory = tmp_path_factory.mktemp("tpch")
    tpch.generate(directory, 0.01)
    datasets = [{"from": f"file:{name}.parquet", "name": name} for name in tpch.TABLES]
    with FlightServer(directory, changes={"datasets": datasets, "views": []}) as running:
        yield running

"""`spark:` sources against Sail, which speaks Spark Connect, over tables that are Parquet files."""

import socket
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trustme

from cluster.source import SparkSource
from datasources.errors import SourceError
from datasources.sources.registry import source_of
from datasources.sources.source import Bound
from runtimeconf.model import DatasetConfig
from tests.cluster.clusters import Sail
from tests.cluster.test_connection import Front
from tests.datasources.sources import loads
from tests.datasources.sources.loads import (
    check_values,
    load,
    load_in_process,
    scan,
    server_of_another_protocol,
    time_out_repeatedly,
)
from tests.datasources.support import new_load, refusal

pytestmark = pytest.mark.exhaustive  # they share one server, whose start takes seconds

TOKEN = "token-Zq8vT3mN6bX9cL2pR5sW7yD0fG4h"

#: For each column the engine's type, its values, and the engine's text of them.
TYPES: list[tuple[pa.DataType, str, list[Any], list[str]]] = [
    (pa.bool_(), "BOOLEAN", [True], ["true"]),
    (pa.int8(), "TINYINT", [-128], ["-128"]),
    (pa.int16(), "SMALLINT", [-32768], ["-32768"]),
    (pa.int32(), "INTEGER", [2**31 - 1], ["2147483647"]),
    (pa.int64(), "BIGINT", [-(2**63)], ["-9223372036854775808"]),
    (pa.float32(), "FLOAT", [1.5, float("nan")], ["1.5", "nan"]),
    (pa.float64(), "DOUBLE", [0.1, float("-inf")], ["0.1", "-inf"]),
    (pa.decimal128(12, 3), "DECIMAL(12,3)", [Decimal("-1.500")], ["-1.500"]),
    (pa.decimal128(38, 0), "DECIMAL(38,0)", [Decimal(10**38 - 1)], ["9" * 38]),
    (pa.string(), "VARCHAR", ["é'\"\\`", ""], ["é'\"\\`", ""]),
    (pa.binary(), "BLOB", [b"\x00\xff"], ["\\x00\\xFF"]),
    (pa.date32(), "DATE", [date(1, 1, 1), date(9999, 12, 31)], ["0001-01-01", "9999-12-31"]),
    (
        pa.timestamp("us"),
        "TIMESTAMP",
        [datetime.fromisoformat("1969-12-31 23:59:59.000001")],
        ["1969-12-31 23:59:59.000001"],
    ),
    (
        pa.timestamp("us", "UTC"),
        "TIMESTAMP WITH TIME ZONE",
        [datetime(2026, 7, 1, 12, tzinfo=UTC)],
        ["2026-07-01 12:00:00+00"],
    ),
    (pa.list_(pa.int64()), "BIGINT[]", [[1, None], []], ["[1, NULL]", "[]"]),
    (pa.struct([("x", pa.string())]), "STRUCT(x VARCHAR)", [{"x": None}], ["{'x': NULL}"]),
    (pa.map_(pa.string(), pa.int64()), "MAP(VARCHAR, BIGINT)", [[("k", 1)]], ["{k=1}"]),
]


@pytest.fixture(scope="module")
def sail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sail]:
    with Sail(tmp_path_factory.mktemp("sail")) as started:
        yield started


def written(directory: Path, **columns: Any) -> str:
    """Write a file, and return the name that the cluster knows it by."""
    path = directory / "table.parquet"
    pq.write_table(pa.table(columns), path)
    return f'parquet."{path}"'


def spark(directory: Path, name: str, port: int, **params: str) -> DatasetConfig:
    return loads.table(directory, f"spark:{name}", **{"spark_remote": f"sc://127.0.0.1:{port}"} | params)


def test_values_of_each_type_arrive_as_they_are(tmp_path: Path, sail: Sail) -> None:
    columns = {
        f"c{at}": pa.array([*values, *[None] * (3 - len(values))], kind)
        for at, (kind, _, values, _) in enumerate(TYPES)
    }
    cases = [(str(kind), engine_type, texts) for kind, engine_type, _, texts in TYPES]

    check_values(tmp_path, spark(tmp_path, written(tmp_path, **columns), sail.port), cases)


def test_unneeded_columns_and_rows_are_not_sent(tmp_path: Path, sail: Sail) -> None:
    name = written(tmp_path, **{"a": [1, 2, 3], "b` c": ["x", "y", "z"], "D": [timedelta(1)] * 3})
    dataset = spark(tmp_path, name, sail.port)

    assert scan(tmp_path, dataset, Bound("a", ">", 1), columns="a") == (["a"], [(2,), (3,)])
    # Texts are not compared: collations differ.
    assert scan(tmp_path, dataset, Bound("b` c", "=", "x"), columns="b`\xa0c a") == (["a"], [(1,), (2,), (3,)])
    with pytest.raises(SourceError, match=r'Column "D" .* cast it to STRING'):
        load(tmp_path, dataset)


def test_many_rows_stream_through_a_small_process(tmp_path: Path, sail: Sail) -> None:
    path = tmp_path / "many.parquet"
    duckdb.execute(f"COPY (SELECT i, md5(i::VARCHAR) AS t FROM range(1000000) r(i)) TO '{path}'")
    dataset = spark(tmp_path, f'parquet."{path}"', sail.port)

    (found,) = load_in_process(tmp_path, dataset, "SELECT count(*), sum(i), count(DISTINCT t) FROM d")
    assert found == (1_000_000, 499_999_500_000, 1_000_000)


def test_an_empty_table_and_a_missing_one(tmp_path: Path, sail: Sail) -> None:
    assert load(tmp_path, spark(tmp_path, written(tmp_path, a=pa.array([], pa.int64())), sail.port)) == []
    sentence = refusal(tmp_path, spark(tmp_path, "lake.sales.missing", sail.port))
    assert sentence.startswith("The Spark server cannot read lake.sales.missing: ")


def test_a_server_that_dies_in_mid_load_is_reported_and_read_again_once_it_is_back(tmp_path: Path) -> None:
    name = written(tmp_path, i=range(3_000_000), t=["x" * 50] * 3_000_000)
    with Sail(tmp_path) as server:
        dataset = spark(tmp_path, name, server.port)
        with source_of(dataset).open(new_load(tmp_path)) as opened, duckdb.connect() as connection:
            rows = connection.execute(f"SELECT i FROM {opened.bind(connection)}")
            server.kill()
            with pytest.raises(duckdb.Error) as caught:
                rows.fetchall()
            sentence = str(opened.explain(connection, caught.value))
        assert sentence == "The Spark server: The cluster ended the statement before its result was complete."
        assert "cannot be reached" in refusal(tmp_path, dataset)

        server.start()
        assert load(tmp_path, dataset, "SELECT count(*) FROM d") == [(3_000_000,)]


def test_a_server_of_another_protocol_is_refused(tmp_path: Path) -> None:
    with server_of_another_protocol() as port:
        assert "The Spark server: " in refusal(tmp_path, spark(tmp_path, "t", port))


def test_a_silent_server_is_left_at_the_deadline(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        time_out_repeatedly(tmp_path, spark(tmp_path, "t", silent.getsockname()[1]), rounds=4)


def test_the_certificate_is_verified(tmp_path: Path, sail: Sail) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    name = written(tmp_path, a=[1])
    with closing(Front(sail.address, authority.issue_cert("localhost"))) as front:
        remote = f"sc://localhost:{front.port}/;token={TOKEN}"

        def through(file: str, **params: str) -> DatasetConfig:
            roots = {"spark_tls_root_certificate_file": str(tmp_path / file)}
            return spark(tmp_path, name, 0, **{"spark_remote": remote, **roots, **params})

        assert load(tmp_path, through("ca.pem")) == [(1,)]
        for refused in (
            through("other.pem"),
            spark(tmp_path, name, 0, spark_remote=remote),
            through("ca.pem", spark_remote=f"sc://127.0.0.1:{front.port}/;use_ssl=true"),
        ):
            sentence = refusal(tmp_path, refused)
            assert "The Spark server: The cluster cannot be reached." in sentence
            assert TOKEN not in sentence
        assert "spark_tls_root_certificate_file" in refusal(tmp_path, through("table.parquet"))


def test_every_load_has_a_session_of_its_own_that_ends(tmp_path: Path, sail: Sail) -> None:
    source = source_of(spark(tmp_path, written(tmp_path, a=[1]), sail.port))
    assert isinstance(source, SparkSource)

    assert source.has_changed("", new_load(tmp_path))
    for _ in range(3):
        with source.open(new_load(tmp_path)) as opened, duckdb.connect() as connection:
            assert connection.execute(f"FROM {opened.bind(connection)}").fetchall() == [(1,)]

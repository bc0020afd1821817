"""`flightsql:` sources against a second Querykeep, with a key and a certificate of its own."""

import socket
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime
from itertools import starmap
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight
import pytest
import trustme

from authkeys.access import Access
from authkeys.keys import KeySet
from connectors.flightsql.source import _with_hugeints
from datasources.errors import SnapshotError
from datasources.snapshots.snapshot import Order
from datasources.sources.source import Bound
from datasources.sql import literal
from queryengine.pool.inprocess import InProcessEngine
from runtimeconf.model import DatasetConfig, RuntimeConfig, TlsConfig
from runtimeconf.secret import Secret
from tests.datasources.sources import loads
from tests.datasources.sources.loads import (
    check_values,
    load,
    load_in_process,
    scan,
    server_of_another_protocol,
    time_out_repeatedly,
    types,
)
from tests.datasources.support import builder, deadline, refusal
from tests.flightapi.endpoint import Endpoint, serving
from tests.queryengine.conftest import config_of
from tests.queryengine.publishing import Publisher
from tests.system.harness import wait_for

KEY = "second-Vb7nM4cX1zL8kJ5hG2fD9sA6pO3iU0yT"
KEY_SET = KeySet([Secret(KEY)], b"salt of the other")
OTHERS = "other-Tg6bY2nH8mJ4kL0pQ1wE3rR5tZ7uI9oP"

#: For each type of the second Querykeep the type that arrives here, and values with the engine's text of them.
TYPES = [
    ("BOOLEAN", "BOOLEAN", ["true", "false"]),
    ("TINYINT", "TINYINT", ["-128"]),
    ("BIGINT", "BIGINT", ["-9223372036854775808", "9223372036854775807"]),
    ("UBIGINT", "UBIGINT", ["18446744073709551615"]),
    (
        "HUGEINT",
        "HUGEINT",
        ["170141183460469231731687303715884105727", "-170141183460469231731687303715884105728"],
    ),
    ("DECIMAL(38,0)", "HUGEINT", ["-99999999999999999999999999999999999999"]),
    (
        "STRUCT(h HUGEINT[], m MAP(VARCHAR, HUGEINT), f HUGEINT[])",
        "STRUCT(h HUGEINT[], m MAP(VARCHAR, HUGEINT), f HUGEINT[])",
        [
            "{'h': [170141183460469231731687303715884105727, NULL], 'm': {k=-1}, 'f': [1]}",
            "{'h': [], 'm': {k=-100000000000000000000000000000000000000}, 'f': [NULL]}",
        ],
    ),
    ("BIGNUM", "VARCHAR", ["-1234567890123456789012345678901234567890123"]),
    ("TIME[]", "TIME[]", ["['24:00:00', NULL]"]),
    ("UHUGEINT", "VARCHAR", ["340282366920938463463374607431768211455"]),
    ("FLOAT", "FLOAT", ["1.5", "nan"]),
    ("DOUBLE", "DOUBLE", ["0.1", "-inf"]),
    ("DECIMAL(12,3)", "DECIMAL(12,3)", ["-1.500"]),
    ("DECIMAL(38,10)", "DECIMAL(38,10)", ["1234567890123456789012345678.0123456789"]),
    ("VARCHAR", "VARCHAR", ["é'\"\\", ""]),
    ("BLOB", "BLOB", ["\\x00\\xFF"]),
    ("UUID", "VARCHAR", ["00000000-0000-0000-0000-00000000000a"]),
    ("ENUM('sad', 'ok')", "VARCHAR", ["sad", "ok"]),
    ("JSON", "VARCHAR", ['{"a": 1}']),
    ("BIT", "VARCHAR", ["0101"]),
    ("DATE", "DATE", ["2024-02-29", "infinity", "4713-01-01 (BC)"]),
    ("TIME", "TIME", ["12:34:56.789", "24:00:00"]),
    ("TIMETZ", "VARCHAR", ["12:34:56+02"]),
    ("TIMESTAMP", "TIMESTAMP", ["2024-01-01 00:00:00.000001", "-infinity"]),
    ("TIMESTAMP_S", "TIMESTAMP_S", ["2024-01-01 00:00:01"]),
    ("TIMESTAMP_NS", "TIMESTAMP_NS", ["2024-01-01 00:00:00.000000001"]),
    ("TIME_NS", "TIME_NS", ["12:34:56.123456789"]),
    ("TIMESTAMPTZ_NS", "TIMESTAMPTZ_NS", ["2024-01-01 00:00:00.123456789+00"]),
    ("TIMESTAMPTZ", "TIMESTAMP WITH TIME ZONE", ["2023-12-31 22:00:00+00", "infinity"]),
    ("INTERVAL", "VARCHAR", ["-1 month 2 days -03:04:05.6"]),
    ("INTEGER[]", "INTEGER[]", ["[1, NULL]", "[]"]),
    ("DECIMAL(5,2)[][]", "DECIMAL(5,2)[][]", ["[[1.50], NULL]"]),
    ("STRUCT(x INTEGER, y VARCHAR[])", "STRUCT(x INTEGER, y VARCHAR[])", ["{'x': 1, 'y': [a]}"]),
    ("MAP(VARCHAR, DATE)", "MAP(VARCHAR, DATE)", ["{k=2024-01-01}"]),
    ("UNION(n INTEGER, t VARCHAR)", "UNION(n INTEGER, t VARCHAR)", ["1"]),
]
MOST = max(len(values) for _, _, values in TYPES)


def values_of(index: int, case: tuple[str, str, list[str]]) -> str:
    declared, _, values = case
    texts = [*map(literal, values), *["NULL"] * (MOST - len(values))]
    return f"unnest([{', '.join(texts)}])::{declared} AS c{index}"


TABLES = {
    "t": "SELECT 1 AS a",
    "odd": """SELECT 1 AS "Ä b", '%s$1' AS "select", [2] AS "x""y" """,
    "nothing": "SELECT 1 AS a, DATE '2024-01-01' AS d, 1.5::DECIMAL(4,1) AS n WHERE false",
    "types_of_all": "SELECT " + ", ".join(starmap(values_of, enumerate(TYPES))),
    "days": 'SELECT range::INTEGER AS "A", range * 1.5 AS n, range::DOUBLE AS f, DATE \'2024-01-01\' + "A" AS d, '
    "TIMESTAMP '2024-01-01' + range * INTERVAL 1 DAY AS ts, TIMESTAMPTZ '2024-01-01 00:00+00' + range * INTERVAL 1 DAY "
    "AS tz, range::VARCHAR AS x FROM range(1, 10)",
}
VIEWS = {
    "many": "SELECT range AS g, repeat('x', 200) AS x FROM range(1000000)",
    "broken": "SELECT CASE WHEN range > 90000 THEN error('secret of the server') ELSE 0 END AS v FROM range(100000)",
    "endless": "SELECT range AS g FROM range(100000000000) WHERE range % 1000000 = 0",
}


class Plain(pyarrow.flight.FlightServerBase):  # type: ignore[misc]  # its package has no types
    """
    Answers each query with the endpoints that it is given, and each ticket with two numbers.

    It answers a question for its properties, which a client may ask on its own, in the same way.
    """

    def __init__(self, **more: Any) -> None:
        super().__init__("grpc://127.0.0.1:0", **more)
        self.endpoints: list[tuple[bytes, list[str]]] = [(b"t", [])]
        self.rows = pa.table({"n": [1, 2]})
        self.asked: list[bytes] = []
        self.fetched: list[bytes] = []

    def get_flight_info(self, _context: Any, what: Any) -> Any:
        self.asked.append(what.command)
        endpoints = [pyarrow.flight.FlightEndpoint(*endpoint) for endpoint in self.endpoints]
        return pyarrow.flight.FlightInfo(self.rows.schema, what, endpoints, -1, -1)

    def do_get(self, _context: Any, ticket: Any) -> Any:
        self.fetched.append(ticket.ticket)
        is_other = ticket.ticket == b"other columns"
        return pyarrow.flight.RecordBatchStream(pa.table({"other": [1, 2]}) if is_other else self.rows)


@pytest.fixture(scope="module")
def plain_server() -> Iterator[Plain]:
    with Plain() as server:
        yield server


@pytest.fixture
def plain(plain_server: Plain) -> Plain:
    plain_server.endpoints = [(b"t", [])]
    plain_server.rows = pa.table({"n": [1, 2]})
    plain_server.asked.clear()
    plain_server.fetched.clear()
    return plain_server


@pytest.fixture
def elsewhere() -> Iterator[socket.socket]:
    """A server that must not be contacted."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


def declare_plain(server: Plain) -> DatasetConfig:
    return declare({"flightsql_endpoint": f"grpc://127.0.0.1:{server.port}", "flightsql_token": KEY})


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessEngine]:
    publisher = Publisher(tmp_path_factory.mktemp("other") / "state")
    publisher.publish(**TABLES)
    config = config_of(publisher.state_dir, (*TABLES, "unloaded"), VIEWS, timeout_s=60.0)
    with closing(InProcessEngine(config)) as running:
        yield running


@pytest.fixture(scope="module")
def other(
    tmp_path_factory: pytest.TempPathFactory, engine: InProcessEngine, authority: trustme.CA
) -> Iterator[Endpoint]:
    file = tmp_path_factory.mktemp("certificate") / "both.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(file))
    tls = TlsConfig(enabled=True, certificate_file=file, key_file=file)
    config = RuntimeConfig(file=file, state_dir=file.parent, tls=tls)
    with serving(config, engine, Access(key_set=KEY_SET)) as running:
        yield running


@pytest.fixture
def params(other: Endpoint, root: str) -> dict[str, str]:
    return {
        "flightsql_endpoint": f"grpc+tls://localhost:{other.port}",
        "flightsql_token": KEY,
        "flightsql_tls_root_certificate_file": root,
    }


def declare(params: dict[str, str], table: str = "t", **more: str) -> DatasetConfig:
    return loads.table(Path(), f"flightsql:{table}", **{**params, **more})


# --- tables -----------------------------------------------------------------------------------------------------------


def test_tables_of_all_names_are_read_with_a_token_or_a_password(tmp_path: Path, params: dict[str, str]) -> None:
    assert load(tmp_path, declare(params)) == [(1,)]
    assert load(tmp_path, declare(params, "main.t")) == [(1,)]
    assert load(tmp_path, declare(params, '"runtime".main."t"')) == [(1,)]
    assert load(tmp_path, declare(params, "odd")) == [(1, "%s$1", [2])]
    assert list(types(tmp_path, declare(params, "odd"))) == ["Ä b", "select", 'x"y']
    assert load(tmp_path, declare(params, "nothing")) == []
    assert types(tmp_path, declare(params, "nothing")) == {"a": "INTEGER", "d": "DATE", "n": "DECIMAL(4,1)"}
    del params["flightsql_token"]
    assert load(tmp_path, declare(params, flightsql_username="any", flightsql_password=KEY)) == [(1,)]


def test_values_of_each_type_arrive_as_they_are(tmp_path: Path, params: dict[str, str]) -> None:
    check_values(tmp_path, declare(params, "types_of_all"), TYPES)


@pytest.mark.parametrize("kind", [pa.int64(), pa.decimal128(38, 0)])
def test_a_type_that_the_metadata_of_a_column_holds_is_kept(kind: pa.DataType) -> None:
    field = pa.field("g", kind, nullable=False, metadata={"ARROW:extension:name": "geoarrow.wkb"})
    batch = pa.RecordBatch.from_arrays([pa.array([1], kind)], schema=pa.schema([field]))

    (found,) = _with_hugeints(batch).schema

    assert (found.metadata, found.nullable) == (field.metadata, False)


def test_unneeded_columns_and_rows_are_not_sent(tmp_path: Path, params: dict[str, str]) -> None:
    dataset = declare(params, "days")

    def numbers(*bounds: Bound) -> list[int]:
        return [number for (number,) in scan(tmp_path, dataset, *bounds, columns="a")[1]]

    assert scan(tmp_path, dataset, Bound("a", "<", 2), columns="a x") == (["A", "x"], [(1, "1")])
    assert scan(tmp_path, dataset, Bound("a", "<", 2), columns="") == (["A"], [(1,)])
    assert numbers(Bound("a", ">=", 8), Bound("d", "<", date(2024, 1, 10))) == [8]
    assert numbers(Bound("ts", ">", datetime(2024, 1, 9))) == [9]  # noqa: DTZ001 (a time without a zone is meant)
    # The engine applies the bounds that another server may compare differently.
    everything = list(range(1, 10))
    assert numbers(Bound("x", "=", "1"), Bound("n", "=", 1), Bound("f", "=", 1), Bound("none", "=", 1)) == everything
    assert numbers(Bound("a", "=", True), Bound("d", "=", datetime(2024, 1, 3)), Bound("a", "=", 1.0)) == everything  # noqa: DTZ001
    assert numbers(*(Bound(name, "=", datetime(2024, 1, 3, tzinfo=UTC)) for name in ("ts", "tz"))) == everything


@pytest.mark.exhaustive
def test_a_million_rows_stream_through_a_small_process(tmp_path: Path, params: dict[str, str]) -> None:
    found = load_in_process(tmp_path, declare(params, "many"), "SELECT count(*), sum(g), min(length(x)) FROM d", 128)

    assert found == [(1000000, 499999500000, 200)]


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_wrong_key_a_wrong_name_and_a_wrong_server_are_told_apart(tmp_path: Path, params: dict[str, str]) -> None:
    server = "The Flight SQL server: "
    by_password = {name: value for name, value in params.items() if name != "flightsql_token"}
    nobody = {name: value for name, value in params.items() if name == "flightsql_endpoint"}
    nobody["flightsql_endpoint"] = "grpc://127.0.0.1:1"

    def absent(table: str) -> str:
        return f"{server}it has no table or view {table}, or does not allow reading it."

    refused = f"{server}it rejected the token, or the user and password."
    assert refusal(tmp_path, declare(params, flightsql_token=OTHERS)) == refused
    assert refusal(tmp_path, declare(by_password, flightsql_username="somebody", flightsql_password=OTHERS)) == refused
    assert refusal(tmp_path, declare(by_password)) == refused
    assert refusal(tmp_path, declare(params, "absent")) == absent("absent")
    assert refusal(tmp_path, declare(params, "other.main.t")) == absent("other.main.t")
    assert refusal(tmp_path, declare(params, "broken")).startswith(server)
    assert refusal(tmp_path, declare(nobody)) == f"{server}nothing is listening there."


def test_tls_is_always_verified(tmp_path: Path, params: dict[str, str], other: Endpoint) -> None:
    failed = "The Flight SQL server: the certificate "
    of_the_system = {name: value for name, value in params.items() if not name.startswith("flightsql_tls")}
    plain = {**of_the_system, "flightsql_endpoint": f"grpc://localhost:{other.port}"}
    (tmp_path / "no.pem").write_text("no certificate")

    assert refusal(tmp_path, declare(of_the_system)) == (
        f"{failed}is not signed by an authority in the system's roots or flightsql_tls_root_certificate_file."
    )
    by_address = declare(params, flightsql_endpoint=f"grpc+tls://127.0.0.1:{other.port}")
    assert refusal(tmp_path, by_address) == f"{failed}does not match the host name."
    for name in ("absent.pem", "no.pem"):
        assert refusal(tmp_path, declare(params, flightsql_tls_root_certificate_file=str(tmp_path / name))) == (
            "The file in flightsql_tls_root_certificate_file has no readable certificate."
        )
    assert refusal(tmp_path, declare(plain)).startswith("The Flight SQL server: ")


# --- a server that names others ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("grpc://127.0.0.1:{other}", " on 127.0.0.1"),
        ("grpc+tcp://localhost:{own}", " on localhost"),
        ("grpc+tls://127.0.0.1:{own}", " on 127.0.0.1"),
        ("https://127.0.0.1:{other}", " on 127.0.0.1"),
        (f"grpc://u:{OTHERS}@127.0.0.1:{{other}}/?token={OTHERS}", " on 127.0.0.1"),
        (f"grpc://{KEY}.example.org:1", ""),
        ("grpc://127.0.0.1", " on 127.0.0.1"),
        ("grpc+unix:///tmp/none", ""),
        ("arrow-flight-reuse-connection://127.0.0.1:{other}", " on 127.0.0.1"),
    ],
)
def test_nothing_is_fetched_when_one_endpoint_names_another_server(
    tmp_path: Path, plain: Plain, elsewhere: socket.socket, location: str, shown: str
) -> None:
    named = location.format(own=plain.port, other=elsewhere.getsockname()[1])
    plain.endpoints = [(b"t", []), (b"t", ["arrow-flight-reuse-connection://?", named])]

    said = refusal(tmp_path, declare_plain(plain))

    assert said == (
        f"The Flight SQL server: it redirects to another server{shown} for the rows. Rows are read only from the host "
        "and port of flightsql_endpoint, with the same TLS setting."
    )
    assert OTHERS not in said
    assert plain.fetched == []
    with pytest.raises(BlockingIOError):
        elsewhere.accept()


def test_a_password_goes_to_no_other_server(tmp_path: Path, elsewhere: socket.socket) -> None:
    class ByPassword(pyarrow.flight.ServerMiddlewareFactory):  # type: ignore[misc]  # its package has no types
        def start_call(self, _info: Any, _headers: Any) -> Any:
            return Welcome()

    class Welcome(pyarrow.flight.ServerMiddleware):  # type: ignore[misc]  # its package has no types
        def sending_headers(self) -> dict[str, str]:
            return {"authorization": f"Bearer {OTHERS}"}

    class NoHandshake(pyarrow.flight.ServerAuthHandler):  # type: ignore[misc]  # its package has no types
        def authenticate(self, _outgoing: Any, _incoming: Any) -> None:
            pass

        def is_valid(self, _token: Any) -> str:
            return ""

    with Plain(middleware={"by": ByPassword()}, auth_handler=NoHandshake()) as server:
        server.endpoints = [(b"t", [f"grpc://127.0.0.1:{elsewhere.getsockname()[1]}"])]
        endpoint = f"grpc://127.0.0.1:{server.port}"
        said = refusal(
            tmp_path,
            declare({"flightsql_endpoint": endpoint, "flightsql_username": "reader", "flightsql_password": KEY}),
        )

    assert "it redirects to another server" in said
    assert all(b"CommandStatementQuery" in command for command in server.asked)
    with pytest.raises(BlockingIOError):
        elsewhere.accept()


def test_endpoints_of_the_same_server_are_read_one_after_the_other(tmp_path: Path, plain: Plain) -> None:
    own = f"127.0.0.1:{plain.port}"
    plain.endpoints = [
        (b"a", []),
        (b"b", ["arrow-flight-reuse-connection://?"]),
        (b"c", [f"grpc://{own}", f"grpc+tcp://{own}/", f"http://{own}"]),
    ]

    assert load(tmp_path, declare_plain(plain), "SELECT count(*), sum(n)::INTEGER FROM d") == [(6, 9)]
    assert plain.fetched[-3:] == [b"a", b"b", b"c"]
    # A client that connects asks for nothing but the table.
    assert plain.asked
    assert all(b"CommandStatementQuery" in command for command in plain.asked)

    plain.endpoints = []
    assert load(tmp_path, declare_plain(plain)) == []


def test_endpoints_with_other_columns_are_an_error(tmp_path: Path, plain: Plain) -> None:
    plain.endpoints = [(b"t", []), (b"other columns", [])]

    assert refusal(tmp_path, declare_plain(plain)) == ("The Flight SQL server: its endpoints return different columns.")


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([1000, None, -2000], pa.duration("ns"), "00:00:00.000001"),
        ([(1, 2, 3000), None], pa.month_day_nano_interval(), "1 month 2 days 00:00:00.000003"),
        ([1], pa.time64("ns"), "00:00:00.000000001"),
        ([1], pa.timestamp("ns"), "1970-01-01 00:00:00.000000001"),
    ],
)
def test_values_that_only_other_servers_send_arrive_as_they_are(
    tmp_path: Path, plain: Plain, values: list[object], kind: pa.DataType, expected: str
) -> None:
    plain.rows = pa.table({"n": pa.array(values, kind)})

    assert load(tmp_path, declare_plain(plain), "SELECT n::VARCHAR FROM d")[0] == (expected,)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1000, None, 1001], pa.duration("ns")),
        pa.array([(1, 2, 3000), None, (0, 0, -1)], pa.month_day_nano_interval()),
        pa.array([[], None, [-1]], pa.list_(pa.duration("ns"))),
        pa.array([[], None, [-1]], pa.list_view(pa.duration("ns"))),
        pa.array([[], None, [-1]], pa.large_list_view(pa.duration("ns"))),
        pa.array([{"a": 1}], pa.struct([("a", pa.duration("ns"))])),
        pa.array([[("k", 1)]], pa.map_(pa.string(), pa.duration("ns"))),
        pa.array([1000, None, 1001], pa.duration("ns")).dictionary_encode(),
        pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1], pa.duration("ns"))]),
    ],
    ids=lambda values: str(values.type),
)
def test_an_interval_below_a_microsecond_is_an_error(tmp_path: Path, plain: Plain, values: pa.Array) -> None:
    plain.rows = pa.table({"n": values})

    assert "'n' has a value that the engine cannot represent exactly: an interval with" in refusal(
        tmp_path, declare_plain(plain)
    )


@pytest.mark.parametrize("number", [-1, 86_400_000_001])
def test_a_time_outside_a_day_is_an_error(tmp_path: Path, plain: Plain, number: int) -> None:
    plain.rows = pa.table({"n": pa.array([None, 0, number], pa.int64()).view(pa.time64("us"))})

    assert "'n' has a value that the engine cannot represent exactly: a time below 0 or" in refusal(
        tmp_path, declare_plain(plain)
    )


@pytest.mark.parametrize("days", [2**31, -(2**31), 10**10])
def test_a_date_beyond_those_of_the_engine_is_an_error(tmp_path: Path, plain: Plain, days: int) -> None:
    plain.rows = pa.table({"n": pa.array([None, 0, days * 86_400_000], pa.int64()).view(pa.date64())})

    assert "'n' has a value that the engine cannot represent exactly: a date after" in refusal(
        tmp_path, declare_plain(plain)
    )


# --- a server that is away, slow or dead ------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheme", ["grpc", "grpc+tls"])
def test_a_silent_server_is_left_at_the_deadline(tmp_path: Path, scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}"
        time_out_repeatedly(tmp_path, declare({"flightsql_endpoint": endpoint, "flightsql_token": KEY}), rounds=25)


def test_a_server_of_another_protocol_is_refused(tmp_path: Path) -> None:
    with server_of_another_protocol() as port:
        dataset = declare({"flightsql_endpoint": f"http://127.0.0.1:{port}"})
        assert "it does not speak gRPC" in refusal(tmp_path, dataset)


def test_a_query_without_end_stops_here_and_at_the_server(
    tmp_path: Path, params: dict[str, str], engine: InProcessEngine
) -> None:
    with pytest.raises(SnapshotError, match=r"was stopped after 0\.5 s"):
        builder(tmp_path).build(Order(declare(params, "endless")), deadline(0.5))

    (fingerprint,) = KEY_SET.fingerprints()
    wait_for(lambda: not engine.active(fingerprint), "the end of the query at the server")

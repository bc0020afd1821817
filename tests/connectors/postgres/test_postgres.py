"""`postgres:` sources against a PostgreSQL server."""

import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from msgspec.structs import replace

from datasources.errors import SnapshotError, SourceError
from datasources.snapshots.snapshot import Order
from datasources.sources.source import Bound
from runtimeconf.model import DatasetConfig
from tests.connectors.postgres.pgbouncer import fill, pgbouncer
from tests.connectors.postgres.postgres_server import PASSWORD, USER, PostgresServer
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
from tests.datasources.support import builder, deadline, refusal, rows
from tests.system.harness import wait_for

Table = Callable[..., DatasetConfig]


@pytest.fixture(autouse=True)
def emptied(postgres: PostgresServer) -> None:
    postgres.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")


@pytest.fixture
def table(postgres: PostgresServer) -> Table:
    """Declare a table of the server after having run statements there; keywords are params."""

    def declare(location: str, *statements: str, **params: str) -> DatasetConfig:
        postgres.run(*statements)
        return loads.table(postgres.directory, f"postgres:{location}", **{**postgres.params, **params})

    return declare


#: How many loads sleep at the server at this moment.
SLEEPERS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"


# --- types ------------------------------------------------------------------------------------------------------------


#: For each type of PostgreSQL the engine's, and values as PostgreSQL reads them with the engine's text of them.
TYPES = [
    ("bool", "BOOLEAN", {"true": "true", "false": "false"}),
    ("int2", "SMALLINT", {"-32768": "-32768"}),
    ("int4", "INTEGER", {"2147483647": "2147483647"}),
    ("int8", "BIGINT", {"-9223372036854775808": "-9223372036854775808"}),
    ("oid", "BIGINT", {"4294967295": "4294967295"}),
    ("float4", "FLOAT", {"'1.5'": "1.5", "'NaN'": "nan", "'-Infinity'": "-inf"}),
    ("float8", "DOUBLE", {"0.1": "0.1", "'Infinity'": "inf"}),
    ("numeric(12,3)", "DECIMAL(12,3)", {"-1.5": "-1.500", "999999999.999": "999999999.999"}),
    ("numeric(38,0)", "DECIMAL(38,0)", {"9" * 38: "9" * 38}),
    ("numeric(3,-2)", "DECIMAL(5,0)", {"12345": "12300"}),
    ("numeric(2,5)", "DECIMAL(5,5)", {"0.00012": ".00012"}),
    ("numeric(40,2)", "VARCHAR", {"1.25": "1.25", "'NaN'": "NaN"}),
    (
        "numeric",
        "VARCHAR",
        {
            "12345678901234567890123456789012345678.9": "12345678901234567890123456789012345678.9",
            "'-Infinity'": "-Infinity",
            "'NaN'": "NaN",
            "1e50": f"1{'0' * 50}",
        },
    ),
    ("text", "VARCHAR", {"'é''\"\\'": "é'\"\\", "''": ""}),
    ("varchar(3)", "VARCHAR", {"'abc'": "abc"}),
    ("char(3)", "VARCHAR", {"'a'": "a  "}),
    ("bytea", "BLOB", {"'\\x00ff'": "\\x00\\xFF"}),
    (
        "date",
        "DATE",
        {
            "'2024-02-29'": "2024-02-29",
            "'infinity'": "infinity",
            "'-infinity'": "-infinity",
            "'4713-01-01 BC'": "4713-01-01 (BC)",
            "'5874897-12-31'": "5874897-12-31",
        },
    ),
    ("time", "TIME", {"'12:34:56.789'": "12:34:56.789", "'24:00'": "24:00:00"}),
    ("timetz", "VARCHAR", {"'12:34:56+02'": "12:34:56+02"}),
    (
        "timestamp",
        "TIMESTAMP",
        {
            "'2024-01-01 00:00:00.000001'": "2024-01-01 00:00:00.000001",
            "'infinity'": "infinity",
            "'-infinity'": "-infinity",
            "'4713-01-01 BC'": "4713-01-01 (BC) 00:00:00",
            "'294245-12-31 23:59:59.999999'": "294245-12-31 23:59:59.999999",
        },
    ),
    (
        "timestamptz",
        "TIMESTAMP WITH TIME ZONE",
        {
            "'2024-01-01 00:00+02'": "2023-12-31 22:00:00+00",
            "'infinity'": "infinity",
            "'-infinity'": "-infinity",
        },
    ),
    (
        "interval",
        "INTERVAL",
        {
            "'1 year 2 mons 3 days 04:05:06.789'": "1 year 2 months 3 days 04:05:06.789",
            "'-1 mon +2 days -03:04:05.6'": "-1 month 2 days -03:04:05.6",
            "'2562047788:00:54.775807'": "2562047788:00:54.775807",
        },
    ),
    ("uuid", "UUID", {"'00000000-0000-0000-0000-00000000000a'": "00000000-0000-0000-0000-00000000000a"}),
    ("json", "JSON", {"'{\"a\": 1}'": '{"a": 1}'}),
    ("jsonb", "JSON", {"'[1, null]'": "[1, null]"}),
    ("inet", "VARCHAR", {"'10.0.0.1'": "10.0.0.1/32"}),
    ("bit(3)", "VARCHAR", {"'101'": "101"}),
    ("int4range", "VARCHAR", {"'[1,5)'": "[1,5)"}),
    ("mood", "VARCHAR", {"'sad'": "sad"}),
    ("price", "DECIMAL(10,2)", {"9.99": "9.99"}),
    ("point_of", "VARCHAR", {"'(1,x)'": "(1,x)"}),
    ("int4[]", "INTEGER[]", {"'{1,null}'": "[1, NULL]", "'{}'": "[]", "'[0:1]={5,6}'": "[5, 6]"}),
    ("box[]", "VARCHAR[]", {"'{(1,1),(0,0);NULL}'": "['(1,1),(0,0)', NULL]"}),
    ("inet[]", "VARCHAR[]", {"'{10.0.0.1,NULL}'": "[10.0.0.1/32, NULL]"}),
    ("text[]", "VARCHAR[]", {"'{a,NULL,\"\"}'": "[a, NULL, '']"}),
    ("char(3)[]", "VARCHAR[]", {"'{a,NULL}'": "['a  ', NULL]"}),
    ("code[]", "VARCHAR[]", {"'{a,NULL}'": "['a  ', NULL]"}),
    ("numeric(5,2)[]", "DECIMAL(5,2)[]", {"'{1.5,null}'": "[1.50, NULL]"}),
    ("numeric[]", "VARCHAR[]", {"'{1.5,NaN}'": "[1.5, NaN]"}),
    ("date[]", "DATE[]", {"'{2024-01-01,infinity,0044-03-15 BC}'": "[2024-01-01, infinity, '0044-03-15 (BC)']"}),
    (
        "timestamp[]",
        "TIMESTAMP[]",
        {
            "'{0044-03-15 10:00 BC,12345-01-01 00:00,NULL,-infinity}'": (
                "['0044-03-15 (BC) 10:00:00', '12345-01-01 00:00:00', NULL, -infinity]"
            )
        },
    ),
    (
        "timestamptz[]",
        "TIMESTAMP WITH TIME ZONE[]",
        {
            "'{2024-01-01 00:00+02}'": "['2023-12-31 22:00:00+00']",
            "'{0044-03-15 10:00:00.5+00 BC,2024-01-01 00:00+00}'": (
                "['0044-03-15 (BC) 10:00:00.5+00', '2024-01-01 00:00:00+00']"
            ),
        },
    ),
    ("interval[]", "INTERVAL[]", {"'{-1 mon +1 day}'": "[-1 month 1 day]"}),
    ("uuid[]", "UUID[]", {"'{}'": "[]"}),
    ("mood[]", "VARCHAR[]", {"'{sad,NULL}'": "[sad, NULL]"}),
]


def test_values_of_each_type_arrive_as_they_are(tmp_path: Path, table: Table) -> None:
    columns = ", ".join(f"c{index} {declared}" for index, (declared, _, _) in enumerate(TYPES))
    most = max(len(values) for _, _, values in TYPES)
    nulls = ["NULL"] * (most + 1)
    given = [[*values, *nulls][: most + 1] for _, _, values in TYPES]
    dataset = table(
        "t",
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE TYPE point_of AS (x int, y text)",
        "CREATE DOMAIN base AS numeric(10,2)",
        "CREATE DOMAIN price AS base",
        "CREATE DOMAIN three AS char(3)",
        "CREATE DOMAIN code AS three",
        f"CREATE TABLE t ({columns})",
        *(f"INSERT INTO t VALUES ({', '.join(row)})" for row in zip(*given, strict=True)),
    )

    check_values(tmp_path, dataset, [(kind, found, values.values()) for kind, found, values in TYPES])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("'NaN'::numeric(10,2)", "the column 'v' in row 1: a value does not fit DECIMAL(10,2)"),
        ("'infinity'::interval", "the column 'v' in row 1: a value does not fit INTERVAL"),
        ("'{infinity}'::interval[]", "the column 'v' in row 1: a value does not fit INTERVAL[]"),
        ("'294246-01-01'::timestamp", "Row 1 of the column 'v' has a time after the year 294245"),
        ("'{{1,2},{3,4}}'::int[]", "an array of several dimensions in the column 'v'"),
        ("'{{1,2},{3,4}}'::numeric[]", "an array of several dimensions in the column 'v'"),
        ("1 / (g - 1)", "PostgreSQL disconnected while t was being read"),
    ],
)
def test_a_value_that_the_engine_does_not_know_is_an_error_that_names_its_column(
    tmp_path: Path, table: Table, value: str, said: str
) -> None:
    dataset = table("t", f"CREATE VIEW t AS SELECT 1 AS a, {value} AS v FROM generate_series(0, 1) g")

    assert said in refusal(tmp_path, dataset)


def test_settings_of_the_user_change_no_value(tmp_path: Path, table: Table, postgres: PostgresServer) -> None:
    precise, settings = "(0.1,0.30000000000000004)", {"extra_float_digits": 0, "array_nulls": "off"}
    dataset = table(
        "t",
        "CREATE TYPE mood AS ENUM ('sad')",
        f"CREATE TABLE t AS SELECT '{precise}'::point AS p, '{{sad,NULL}}'::mood[] AS m, '{{1,NULL}}'::int[] AS i",
        *(f"ALTER ROLE {USER} SET {name} = {value}" for name, value in settings.items()),
    )

    try:
        assert load(tmp_path, dataset) == [(precise, ["sad", None], [1, None])]
    finally:
        postgres.run(f"ALTER ROLE {USER} RESET ALL")


# --- tables -----------------------------------------------------------------------------------------------------------


def test_tables_of_all_kinds_and_names_are_read(tmp_path: Path, table: Table) -> None:
    table(
        "whole",
        "CREATE TABLE whole (a int, b text) PARTITION BY RANGE (a)",
        "CREATE TABLE low PARTITION OF whole FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE high PARTITION OF whole FOR VALUES FROM (10) TO (20)",
        "INSERT INTO whole VALUES (1, 'x'), (11, 'y')",
        "CREATE VIEW seen AS SELECT b FROM whole",
        "CREATE MATERIALIZED VIEW kept AS SELECT count(*) AS n FROM whole",
        "CREATE TABLE nothing (a int, gone int, b numeric(4,1), c date[])",
        "ALTER TABLE nothing DROP gone",
        'CREATE TABLE "T ""é"".x" ("Ä b" int, "select" text, "x""y" int[])',
        """INSERT INTO "T ""é"".x" VALUES (1, '%s$1', '{2}')""",
        'CREATE TABLE "t" (wrong int)',
    )

    assert sorted(load(tmp_path, table("whole"))) == [(1, "x"), (11, "y")]
    assert sorted(load(tmp_path, table("public.seen"))) == [("x",), ("y",)]
    assert load(tmp_path, table("kept")) == [(2,)]
    assert load(tmp_path, table("nothing")) == []
    assert types(tmp_path, table("nothing")) == {"a": "INTEGER", "b": "DECIMAL(4,1)", "c": "DATE[]"}
    for location in ('public."T ""é"".x"', '"T ""é"".x"'):
        assert load(tmp_path, table(location)) == [(1, "%s$1", [2])]
        assert list(types(tmp_path, table(location))) == ["Ä b", "select", 'x"y']


@pytest.mark.exhaustive
def test_a_load_is_one_snapshot_of_the_database(tmp_path: Path, table: Table, postgres: PostgresServer) -> None:
    # The last part of the view is read after rows have come to both tables.
    dataset = table(
        "t",
        "CREATE TABLE one AS SELECT 1 AS a",
        "CREATE TABLE other AS SELECT 1 AS a",
        "CREATE VIEW t AS SELECT 'one' AS which, a, NULL::text AS slept FROM one "
        "UNION ALL SELECT 'none', 0, pg_sleep(0.5)::text UNION ALL SELECT 'other', a, NULL FROM other",
    )
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(builder(tmp_path).build, Order(dataset), deadline())
        wait_for(lambda: postgres.value(SLEEPERS), "the load that sleeps")
        postgres.run("INSERT INTO one VALUES (2)", "INSERT INTO other VALUES (2)")
        snapshot = loading.result()

    assert rows(tmp_path, snapshot, "SELECT which, a FROM d") == [("one", 1), ("none", 0), ("other", 1)]


def test_unneeded_columns_and_rows_are_not_sent(tmp_path: Path, table: Table) -> None:
    dataset = table(
        "t",
        """CREATE TABLE t ("A" int, n numeric(6,2), f float8, r real, d date, ts timestamp, tz timestamptz, x text)""",
        "INSERT INTO t SELECT g, g + 0.5, g, g, date '2024-01-01' + g, timestamp '2024-01-01' + g * interval '1 day', "
        "timestamptz '2024-01-01 00:00+00' + g * interval '1 day', g FROM generate_series(1, 9) g",
    )

    def numbers(*bounds: Bound) -> list[int]:
        return [number for (number,) in scan(tmp_path, dataset, *bounds, columns="a")[1]]

    assert scan(tmp_path, dataset, Bound("a", "<", 2), columns="a n") == (["A", "n"], [(1, Decimal("1.50"))])
    assert scan(tmp_path, dataset, Bound("a", "<", 2), columns="") == (["A"], [(1,)])
    assert numbers(Bound("a", ">=", 8), Bound("f", "<", 9.0)) == [8]
    assert numbers(Bound("n", "<=", Decimal("2.5"))) == [1, 2]
    assert numbers(Bound("f", ">", Decimal("7.5"))) == [8, 9]
    assert numbers(Bound("d", "=", date(2024, 1, 3))) == [2]
    assert numbers(Bound("ts", ">", datetime(2024, 1, 9))) == [9]  # noqa: DTZ001 (a time without a zone is meant)
    assert numbers(Bound("tz", ">", datetime(2024, 1, 9, tzinfo=UTC))) == [9]
    # The engine applies the bounds that it may compare differently, or on columns that do not exist.
    everything = list(range(1, 10))
    assert numbers(Bound("x", "=", "1"), Bound("r", "=", 1), Bound("none", "=", 1)) == everything
    assert numbers(Bound("d", "=", datetime(2024, 1, 3)), Bound("a", "=", 1.0), Bound("a", "=", True)) == everything  # noqa: DTZ001
    assert numbers(Bound("ts", "=", datetime(2024, 1, 3, tzinfo=UTC)), Bound("f", "=", "1")) == everything


@pytest.mark.exhaustive
def test_many_rows_stream_through_a_small_process(tmp_path: Path, table: Table) -> None:
    dataset = table("t", "CREATE VIEW t AS SELECT g, repeat('x', 200) AS x FROM generate_series(1, 1000000) g")

    found = load_in_process(tmp_path, dataset, "SELECT count(*), sum(g), min(length(x)) FROM d")

    assert found == [(1_000_000, 500_000_500_000, 200)]


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_a_wrong_password_a_wrong_name_and_missing_rights_are_told_apart(
    tmp_path: Path, table: Table, postgres: PostgresServer
) -> None:
    dataset = table(
        "t",
        "CREATE TABLE t (a int, b int)",
        "CREATE SEQUENCE counted",
        "DROP ROLE IF EXISTS reader",
        "CREATE ROLE reader LOGIN PASSWORD 'pw'",
        "GRANT USAGE ON SCHEMA public TO reader",
    )
    reached = "The PostgreSQL server cannot be reached: "

    assert refusal(tmp_path, table("t", pg_pass="wrong-password")) == f"{reached}it rejected the user or password."
    assert refusal(tmp_path, table("t", pg_pass="")) == f"{reached}it asks for a password: set pg_pass."
    assert refusal(tmp_path, table("t", pg_user="absent")) == f"{reached}it rejected the user or password."
    assert refusal(tmp_path, table("t", pg_db="absent")) == f"{reached}it has no database with that name."
    assert refusal(tmp_path, table("t", pg_port="1")) == f"{reached}nothing is listening there."
    assert refusal(tmp_path, table("T")).startswith(
        "The database has no table or view T, or the user has no access to it."
    )
    assert refusal(tmp_path, table("absent.t")).startswith("The database has no table or view absent.t")
    assert refusal(tmp_path, table("counted")) == "counted is neither a table nor a view."
    assert refusal(tmp_path, table("t", pg_user="reader", pg_pass="pw")) == (
        "PostgreSQL: the user has no read permission on t or part of it."
    )
    assert refusal(tmp_path, table("e", "CREATE TABLE e ()")) == "e has no columns."
    assert load(tmp_path, dataset) == []


def test_nothing_is_written_at_the_server(tmp_path: Path, table: Table, postgres: PostgresServer) -> None:
    dataset = table(
        "t",
        "CREATE TABLE seen (a int)",
        "CREATE FUNCTION spy() RETURNS int LANGUAGE sql AS 'INSERT INTO seen VALUES (1) RETURNING a'",
        "CREATE VIEW t AS SELECT spy() AS a",
    )

    assert (
        refusal(tmp_path, dataset) == "PostgreSQL disconnected while t was being read: run the query there to see why."
    )
    assert postgres.value("SELECT count(*) FROM seen") == 0


def test_the_environment_has_no_effect(tmp_path: Path, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = table("t", "CREATE TABLE t AS SELECT 1 AS a")
    without_password = replace(dataset, params={**dataset.params, "pg_pass": ""})
    monkeypatch.setenv("PGHOSTADDR", "127.0.0.1")
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    monkeypatch.setenv("PGOPTIONS", "-c search_path=pg_catalog")

    assert "asks for a password" in refusal(tmp_path, without_password)
    assert load(tmp_path, dataset) == [(1,)]


# --- a pooler ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_loads_through_pgbouncer_find_their_own_transaction(
    tmp_path: Path, table: Table, postgres: PostgresServer, mode: str
) -> None:
    with pgbouncer(postgres, mode) as params:
        dataset = table("t", "CREATE TABLE t AS SELECT g AS a, 'x' AS b FROM generate_series(1, 3) g", **params)

        for _ in range(3):
            fill(params)
            assert load(tmp_path, dataset) == [(1, "x"), (2, "x"), (3, "x")]


def test_a_pool_without_transactions_is_refused(tmp_path: Path, table: Table, postgres: PostgresServer) -> None:
    with pgbouncer(postgres, "statement") as params:
        dataset = table("t", "CREATE TABLE t AS SELECT 1 AS a", **params)

        assert refusal(tmp_path, dataset) == (
            "The PostgreSQL server cannot be reached: its PgBouncer allows no transactions: connect to a pool in "
            "transaction or session mode."
        )


# --- TLS --------------------------------------------------------------------------------------------------------------


#: The first message of a PostgreSQL client: whether the server speaks TLS (chapter 54.2.11 of PostgreSQL's manual).
_SSL_REQUEST = struct.pack("!II", 8, 80877103)


@pytest.fixture
def tls_port(postgres: PostgresServer, tls: ssl.SSLContext) -> Iterator[str]:
    """The port of a front that speaks TLS as a PostgreSQL server does, and passes on what comes to the server."""

    def pump(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        with suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)

    def pass_on(client: socket.socket) -> None:
        with suppress(OSError), client, socket.socket(socket.AF_UNIX) as server:
            assert client.recv(len(_SSL_REQUEST)) == _SSL_REQUEST
            client.sendall(b"S")
            server.connect(f"{postgres.directory}/.s.PGSQL.5432")
            with tls.wrap_socket(client, server_side=True) as secured, ThreadPoolExecutor(1) as back:
                back.submit(pump, server, secured)
                pump(secured, server)

    def serve() -> None:
        with suppress(OSError):
            while True:
                pool.submit(pass_on, listener.accept()[0])

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(16) as pool:
        pool.submit(serve)
        yield str(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)


def test_tls_is_verified_unless_the_yaml_says_otherwise(tmp_path: Path, table: Table, tls_port: str, root: str) -> None:
    table("t", "CREATE TABLE t AS SELECT 1 AS a")

    def by_tls(**params: str) -> DatasetConfig:
        return table("t", **{"pg_host": "localhost", "pg_port": tls_port, **params})

    failed = "The PostgreSQL server cannot be reached: TLS with it failed: "
    assert load(tmp_path, by_tls(pg_sslrootcert=root)) == [(1,)]
    assert load(tmp_path, by_tls(pg_sslmode="require")) == [(1,)]
    other = table("t", pg_host="127.0.0.1", pg_port=tls_port, pg_sslrootcert=root)
    (tmp_path / "other").mkdir()
    assert refusal(tmp_path / "other", other) == f"{failed}the certificate does not match the host name."
    assert refusal(tmp_path / "other", by_tls()) == (
        f"{failed}the certificate is not signed by an authority in pg_sslrootcert or the system's roots."
    )
    assert refusal(tmp_path / "other", by_tls(pg_sslrootcert=f"{tmp_path}/absent")) == (
        "The file in pg_sslrootcert cannot be read."
    )


# --- a server that is away, slow or dead ------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_a_silent_server_is_left_at_the_deadline(tmp_path: Path, table: Table) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        time_out_repeatedly(tmp_path, table("t", pg_host="127.0.0.1", pg_port=str(silent.getsockname()[1])), rounds=50)


def test_a_server_of_another_protocol_is_refused(tmp_path: Path, table: Table) -> None:
    with server_of_another_protocol() as port:
        dataset = table("t", pg_host="127.0.0.1", pg_port=str(port), pg_sslmode="disable")
        assert refusal(tmp_path, dataset).endswith("it is not a PostgreSQL server.")


@pytest.mark.exhaustive
def test_a_query_without_end_stops_here_and_at_the_server(
    tmp_path: Path, table: Table, postgres: PostgresServer
) -> None:
    dataset = table("t", "CREATE VIEW t AS SELECT g, pg_sleep(0.1)::text AS slept FROM generate_series(1, 10000) g")

    with pytest.raises(SnapshotError, match=r"was stopped after 0\.5 s"):
        builder(tmp_path).build(Order(dataset), deadline(0.5))

    wait_for(lambda: postgres.value(SLEEPERS) == 0, "the end of the query at the server")


def test_a_connection_ended_by_the_server_is_reported(tmp_path: Path, table: Table, postgres: PostgresServer) -> None:
    dataset = table("t", "CREATE VIEW t AS SELECT g, pg_sleep(0.1)::text AS slept FROM generate_series(1, 10000) g")

    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(builder(tmp_path).build, Order(dataset), deadline())
        wait_for(lambda: postgres.value(SLEEPERS), "the load that sleeps")
        postgres.value("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
        with pytest.raises(
            SourceError, match=r"The connection to PostgreSQL broke while t was being read|the server is shutting down"
        ):
            loading.result()

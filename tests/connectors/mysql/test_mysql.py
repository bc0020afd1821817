"""`mysql:` sources against a MariaDB server."""

import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from msgspec.structs import replace

from datasources.errors import SnapshotError, SourceError
from datasources.snapshots.snapshot import Order
from datasources.sources.source import Bound
from runtimeconf.model import AccelerationConfig, DatasetConfig
from tests.connectors.mysql.mariadb_server import MariadbServer
from tests.datasources.sources import loads
from tests.datasources.sources.loads import check_values, load, load_in_process, scan, time_out_repeatedly, types
from tests.datasources.support import builder, deadline, refusal, rows
from tests.system.harness import wait_for

pytestmark = pytest.mark.exhaustive  # they share one server, whose start takes seconds

Table = Callable[..., DatasetConfig]

REACHED = "The MySQL server cannot be reached: "

#: How many loads sleep at the server at this moment.
SLEEPERS = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = 'User sleep'"
SLOW = "CREATE VIEW t AS SELECT seq, SLEEP(0.1) AS slept, REPEAT('x', 10000) AS x FROM seq_1_to_10000"


@pytest.fixture(autouse=True)
def emptied(mariadb: MariadbServer) -> None:
    mariadb.run("DROP DATABASE test", "CREATE DATABASE test")


@pytest.fixture
def table(mariadb: MariadbServer, tmp_path: Path) -> Table:
    """Declare a table of the server after having run statements there; keywords are params."""

    def declare(location: str, *statements: str, **params: str) -> DatasetConfig:
        mariadb.run(*statements)
        return loads.table(tmp_path, f"mysql:{location}", **{**mariadb.params, **params})

    return declare


# --- types ------------------------------------------------------------------------------------------------------------


#: For each type of MariaDB the engine's, and values as MariaDB reads them with the engine's text of them.
TYPES = [
    ("boolean", "TINYINT", {"true": "1", "-128": "-128"}),
    ("tinyint unsigned", "UTINYINT", {"255": "255"}),
    ("smallint", "SMALLINT", {"-32768": "-32768"}),
    ("smallint unsigned", "USMALLINT", {"65535": "65535"}),
    ("mediumint", "INTEGER", {"-8388608": "-8388608"}),
    ("mediumint unsigned", "UINTEGER", {"16777215": "16777215"}),
    ("int", "INTEGER", {"-2147483648": "-2147483648"}),
    ("int(8) zerofill", "UINTEGER", {"42": "42", "4294967295": "4294967295"}),
    ("bigint", "BIGINT", {"-9223372036854775808": "-9223372036854775808"}),
    ("bigint unsigned", "UBIGINT", {"18446744073709551615": "18446744073709551615"}),
    ("float", "FLOAT", {"16777215": "16777215.0", "1.2345678": "1.2345678", "-3.4028235e38": "-3.4028235e+38"}),
    ("float(7,3)", "FLOAT", {"1.5": "1.5"}),
    ("double", "DOUBLE", {"0.1": "0.1", "1.7976931348623157e308": "1.7976931348623157e+308", "5e-324": "5e-324"}),
    ("double(10,2) unsigned", "DOUBLE", {"99999999.99": "99999999.99"}),
    ("decimal(12,3)", "DECIMAL(12,3)", {"-1.5": "-1.500", "999999999.999": "999999999.999"}),
    ("decimal(5,2) zerofill", "DECIMAL(5,2)", {"1.5": "1.50"}),
    ("decimal(38,0)", "DECIMAL(38,0)", {"9" * 38: "9" * 38}),
    ("decimal(38,38)", "DECIMAL(38,38)", {f"0.{'9' * 38}": f".{'9' * 38}"}),
    ("decimal(65,2)", "VARCHAR", {f"-{'9' * 63}.25": f"-{'9' * 63}.25"}),
    ("bit", "UBIGINT", {"b'1'": "1", "b'0'": "0"}),
    ("bit(64)", "UBIGINT", {"18446744073709551615": "18446744073709551615"}),
    ("year", "SMALLINT", {"2155": "2155", "'0000'": "0"}),
    ("date", "DATE", {"'2024-02-29'": "2024-02-29", "'9999-12-31'": "9999-12-31", "'0001-01-01'": "0001-01-01"}),
    ("time", "TIME", {"'00:00'": "00:00:00", "'23:59:59'": "23:59:59"}),
    ("time(6)", "TIME", {"'12:34:56.789'": "12:34:56.789", "'23:59:59.999999'": "23:59:59.999999"}),
    ("datetime", "TIMESTAMP", {"'9999-12-31 23:59:59'": "9999-12-31 23:59:59"}),
    ("datetime(6)", "TIMESTAMP", {"'2024-01-01 00:00:00.000001'": "2024-01-01 00:00:00.000001"}),
    ("timestamp(3) null", "TIMESTAMP WITH TIME ZONE", {"'2024-01-01 09:00:00.5'": "2024-01-01 00:00:00.5+00"}),
    ("char(3)", "VARCHAR", {"'a'": "a"}),
    ("char(3) character set utf8mb4", "VARCHAR", {"'é€😀'": "é€😀"}),
    ("varchar(9) character set latin1", "VARCHAR", {"'é€'": "é€", "''": "", "'a  '": "a  "}),
    ("varchar(9) character set utf16", "VARCHAR", {"'😀'": "😀"}),
    ("varchar(9) character set cp1251", "VARCHAR", {"'Ж? '": "Ж? ", "''": "", "'??'": "??"}),
    ("enum('日','?') character set sjis", "VARCHAR", {"'日'": "日", "'?'": "?"}),
    ("varchar(9) collate utf8mb4_bin", "VARCHAR", {"'é''\"\\\\'": "é'\"\\"}),
    ("text", "VARCHAR", {"'%s $1 {0}'": "%s $1 {0}"}),
    ("longtext", "VARCHAR", {"REPEAT('x', 9)": "xxxxxxxxx"}),
    ("json", "VARCHAR", {"'{\"a\": 1}'": '{"a": 1}'}),
    ("enum('sad','o''k')", "VARCHAR", {"'o''k'": "o'k", "'sad'": "sad"}),
    ("set('a','b unsigned')", "VARCHAR", {"'a,b unsigned'": "a,b unsigned", "''": ""}),
    ("binary(3)", "BLOB", {"0x00ff": r"\x00\xFF\x00"}),
    ("varbinary(9)", "BLOB", {"0x00ff": r"\x00\xFF", "''": ""}),
    ("blob", "BLOB", {"0xc3a9": r"\xC3\xA9"}),
    ("char(3) character set binary", "BLOB", {"0x61": r"a\x00\x00"}),
    ("uuid", "UUID", {"'00000000-0000-0000-0000-00000000000a'": "00000000-0000-0000-0000-00000000000a"}),
    ("inet6", "VARCHAR", {"'::ffff:1.2.3.4'": "::ffff:1.2.3.4"}),
]
#: Types whose texts the engine and the client write differently, or that the client cuts short.
OTHERWISE = (
    *("float", "double", "bit", "year", "int(8) zerofill", "decimal(5,2) zerofill", "decimal(38,38)"),
    *("binary", "blob", "varbinary", "char(3) character set binary"),
)


@pytest.fixture
def typed(table: Table) -> DatasetConfig:
    """A table of all types."""
    columns = ", ".join(f"c{index} {declared}" for index, (declared, _, _) in enumerate(TYPES))
    most = max(len(values) for _, _, values in TYPES)
    lines = [[*values, *["NULL"] * (most + 1)][: most + 1] for _, _, values in TYPES]
    return table(
        "test.t",
        f"CREATE TABLE t ({columns})",
        *(f"INSERT INTO t VALUES ({', '.join(line)})" for line in zip(*lines, strict=True)),
    )


def test_values_of_each_type_arrive_as_they_are(tmp_path: Path, typed: DatasetConfig) -> None:
    check_values(tmp_path, typed, [(kind, found, values.values()) for kind, found, values in TYPES])


def test_values_are_those_that_the_client_of_the_server_prints(
    tmp_path: Path, typed: DatasetConfig, mariadb: MariadbServer
) -> None:
    names = [f"c{index}" for index, (declared, _, _) in enumerate(TYPES) if not declared.startswith(OTHERWISE)]

    printed = mariadb.by_client(f"SELECT {', '.join(names)} FROM t")

    ours = load(tmp_path, typed, f"SELECT {', '.join(f'{name}::VARCHAR' for name in names)} FROM d")
    assert {without_last_zeros(line) for line in printed} == {
        without_last_zeros("NULL" if text is None else text.removesuffix("+00") for text in line) for line in ours
    }


def without_last_zeros(texts: Iterable[str]) -> tuple[str, ...]:
    """Return *texts* without the last zeros of a fraction, of which the client prints as many as are declared."""
    return tuple(text.rstrip("0").rstrip(".") if re.search(r"\d[.]\d*0+$", text) else text for text in texts)


REFUSED = [
    ("date", "'0000-00-00'", "Row 1 of the column 'v' has an invalid calendar date, such as 0000-00-00: "),
    ("date", "'2024-01-00'", "NULLIF(v, 0), or that has CAST(v AS CHAR)."),
    ("datetime", "'2024-00-01 10:00:00'", "Row 1 of the column 'v' has an invalid calendar"),
    ("timestamp", "0", "Row 1 of the column 'v' has an invalid calendar"),
    ("time", "'24:00:00'", "Row 1 of the column 'v' has a time below 00:00:00 or above 23:59:59: read a view "),
    ("time(3)", "'-00:00:00.5'", "TIME_TO_SEC(v)."),
    ("time", "'838:59:59'", "Row 1 of the column 'v' has a time"),
    ("varchar(9) character set cp1251", "x'6198'", "Row 1 of the column 'v' has a character that the server cannot"),
    ("text character set tis620", "x'61DB'", "cannot convert to Unicode: read a view that has CAST(v AS BINARY)."),
    ("char(3) character set sjis", "x'F9F9'", "cannot convert to Unicode"),
    (
        "point",
        "POINT(1, 2)",
        "The column 'v' has the type point, which the engine does not support: omit it in refresh",
    ),
]


@pytest.mark.parametrize(("declared", "value", "said"), REFUSED)
def test_a_value_that_the_engine_does_not_know_is_an_error_that_names_its_column(
    tmp_path: Path, table: Table, declared: str, value: str, said: str
) -> None:
    dataset = table("t", f"CREATE TABLE t (a int, v {declared} NULL)", f"INSERT INTO t VALUES (1, {value})")

    assert said in refusal(tmp_path, dataset)
    assert scan(tmp_path, dataset, columns="a") == (["a"], [(1,)])


def test_a_view_makes_them_readable(tmp_path: Path, table: Table) -> None:
    dataset = table(
        "t",
        "CREATE TABLE base (d date, t time, p point)",
        "INSERT INTO base VALUES ('0000-00-00', '-838:59:59', POINT(1, 2)), ('2024-01-01', '01:00:00', NULL)",
        "CREATE VIEW t AS SELECT NULLIF(d, 0) AS d, CAST(t AS CHAR) AS t, TIME_TO_SEC(t) AS s, ST_AsText(p) AS p "
        "FROM base",
    )

    assert load(tmp_path, dataset) == [
        (None, "-838:59:59", Decimal(-3020399), "POINT(1 2)"), (date(2024, 1, 1), "01:00:00", Decimal(3600), None)
    ]  # fmt: skip


# --- tables -----------------------------------------------------------------------------------------------------------


def test_tables_of_all_kinds_and_names_are_read(tmp_path: Path, table: Table) -> None:
    table(
        "whole",
        "CREATE TABLE whole (a int, b text) PARTITION BY RANGE (a) "
        "(PARTITION low VALUES LESS THAN (10), PARTITION high VALUES LESS THAN MAXVALUE)",
        "INSERT INTO whole VALUES (1, 'x'), (11, 'y')",
        "CREATE VIEW seen AS SELECT b FROM whole",
        "CREATE TABLE nothing (a int, hidden int INVISIBLE, b decimal(4,1))",
        "CREATE TABLE other (a int) ENGINE=MyISAM",
        "INSERT INTO other VALUES (3)",
        'CREATE TABLE `T "``.x` (`Ä b` int, `select` text, `x``y%s` int)',
        "INSERT INTO `T \"``.x` VALUES (1, '%s$1', 2)",
        "CREATE TABLE `T` (upper int)",
        "CREATE TABLE `t` (lower int)",
    )

    assert sorted(load(tmp_path, table("whole"))) == [(1, "x"), (11, "y")]
    assert sorted(load(tmp_path, table("test.seen"))) == [("x",), ("y",)]
    assert load(tmp_path, table("other")) == [(3,)]
    assert load(tmp_path, table("nothing")) == []
    assert types(tmp_path, table("nothing")) == {"a": "INTEGER", "b": "DECIMAL(4,1)"}
    assert types(tmp_path, table("T")) == {"upper": "INTEGER"}
    for location in ('test."T ""`.x"', '"T ""`.x"'):
        assert load(tmp_path, table(location)) == [(1, "%s$1", 2)]
        assert list(types(tmp_path, table(location))) == ["Ä b", "select", "x`y%s"]


def test_a_load_is_one_snapshot_of_the_server(tmp_path: Path, table: Table, mariadb: MariadbServer) -> None:
    # The last part of the view is read after rows have come to both tables.
    dataset = table(
        "t",
        "CREATE TABLE one AS SELECT 1 AS a",
        "CREATE TABLE other AS SELECT 1 AS a",
        "CREATE VIEW t AS SELECT 'one' AS which, a, NULL AS slept FROM one "
        "UNION ALL SELECT 'none', 0, SLEEP(0.5) UNION ALL SELECT 'other', a, NULL FROM other",
    )
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(builder(tmp_path).build, Order(dataset), deadline())
        wait_for(lambda: mariadb.value(SLEEPERS), "the load that sleeps")
        mariadb.run("INSERT INTO one VALUES (2)", "INSERT INTO other VALUES (2)")
        snapshot = loading.result()

    assert rows(tmp_path, snapshot, "SELECT which, a FROM d") == [("one", 1), ("none", 0), ("other", 1)]


def test_unneeded_columns_and_rows_are_not_sent(tmp_path: Path, table: Table) -> None:
    dataset = table(
        "t",
        "CREATE TABLE t (`A` int, u bigint unsigned, n decimal(6,2), f double, r float, d date, ts datetime(6), "
        "tz timestamp NULL, y year, x text)",
        "SET time_zone = '+00:00'",
        "INSERT INTO t SELECT seq, seq, seq + 0.5, seq, seq, DATE '2024-01-01' + INTERVAL seq DAY, "
        "TIMESTAMP '2024-01-01 00:00:00' + INTERVAL seq DAY, TIMESTAMP '2024-01-01 12:00:00' + INTERVAL seq DAY, "
        "2000 + seq, seq FROM seq_1_to_9",
    )

    def numbers(*bounds: Bound) -> list[int]:
        return [number for (number,) in scan(tmp_path, dataset, *bounds, columns="a")[1]]

    assert scan(tmp_path, dataset, Bound("a", "<", 2), columns="a n") == (["A", "n"], [(1, Decimal("1.50"))])
    assert scan(tmp_path, dataset, Bound("a", "<", 2), columns="") == (["A"], [(1,)])
    assert numbers(Bound("a", ">=", 8), Bound("f", "<", 9.0)) == [8]
    assert numbers(Bound("u", ">", -1), Bound("u", "<", Decimal("1.5"))) == [1]
    assert numbers(Bound("n", "<=", Decimal("2.5"))) == [1, 2]
    assert numbers(Bound("f", ">", Decimal("7.5"))) == [8, 9]
    assert numbers(Bound("f", "<", 1e300), Bound("f", "<", 1.5)) == [1]
    assert numbers(Bound("d", "=", date(2024, 1, 3))) == [2]
    assert numbers(Bound("ts", ">", datetime(2024, 1, 9, 0, 0, 0, 1))) == [9]  # noqa: DTZ001 (a time without a zone is meant)
    assert numbers(Bound("tz", ">", datetime(2024, 1, 10, tzinfo=UTC))) == [9]
    # The engine applies the bounds that it may compare differently, or on columns that do not exist.
    everything = list(range(1, 10))
    assert numbers(Bound("x", "=", "1"), Bound("r", "=", 1), Bound("none", "=", 1), Bound("y", "=", 1)) == everything
    assert numbers(Bound("d", "=", datetime(2024, 1, 3)), Bound("a", "=", 1.0), Bound("a", "=", True)) == everything  # noqa: DTZ001
    assert numbers(Bound("ts", "=", datetime(2024, 1, 3, tzinfo=UTC)), Bound("f", "=", float("inf"))) == everything


def test_an_append_reads_newer_rows_of_the_columns_in_refresh_sql(
    tmp_path: Path, table: Table, mariadb: MariadbServer
) -> None:
    dataset = replace(
        table(
            "t",
            "CREATE TABLE t (changed timestamp(6) NULL, a int, p point)",
            "INSERT INTO t VALUES ('2024-01-01 09:00:00.000001', 1, POINT(1, 2))",
        ),
        time_column="changed",
        acceleration=AccelerationConfig(refresh_mode="append"),
    )
    sql = "SELECT changed, a FROM d WHERE a > 0"
    first = builder(tmp_path).build(Order(dataset, sql), deadline())
    mariadb.run(
        "UPDATE t SET a = 7",
        "INSERT INTO t VALUES ('2024-01-01 09:00:00.000002', 2, NULL), ('2024-01-02 09:00:00', -1, NULL)",
    )

    second = builder(tmp_path).build(Order(dataset, sql, served=first), deadline())

    assert rows(tmp_path, second, "SELECT a, changed::VARCHAR FROM d ORDER BY a") == [
        (1, "2024-01-01 00:00:00.000001+00"),
        (2, "2024-01-01 00:00:00.000002+00"),
    ]


def test_many_rows_stream_through_a_small_process(tmp_path: Path, table: Table) -> None:
    dataset = table("t", "CREATE VIEW t AS SELECT seq AS g, REPEAT('x', 200) AS x FROM seq_1_to_1000000")

    found = load_in_process(tmp_path, dataset, "SELECT count(*), sum(g), min(length(x)) FROM d")

    assert found == [(1_000_000, 500_000_500_000, 200)]


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_wrong_password_a_wrong_name_and_missing_rights_are_told_apart(tmp_path: Path, table: Table) -> None:
    dataset = table(
        "t",
        "CREATE TABLE t (a int, b int)",
        "CREATE VIEW broken AS SELECT a FROM t",
        "ALTER TABLE t CHANGE a c int",
        "CREATE OR REPLACE USER reader IDENTIFIED BY 'pw'",
        "CREATE OR REPLACE USER mostly IDENTIFIED BY 'pw'",
        "GRANT USAGE ON *.* TO reader",
        "GRANT SELECT ON test.broken TO mostly",
    )

    assert refusal(tmp_path, table("t", mysql_pass="wrong-password")) == f"{REACHED}it rejected the user or password."
    assert refusal(tmp_path, table("t", mysql_pass="")) == f"{REACHED}it rejected the user or password."
    assert refusal(tmp_path, table("t", mysql_user="absent")) == f"{REACHED}it rejected the user or password."
    assert refusal(tmp_path, table("absent.t")) == f"{REACHED}it has no database with that name."
    assert refusal(tmp_path, table("t", mysql_tcp_port="1")) == f"{REACHED}nothing is listening there."
    assert refusal(tmp_path, table("absent")) == ("MySQL: it has no table or view absent, or the name differs in case.")
    assert refusal(tmp_path, table("broken")) == (
        "MySQL: the view broken references an object that does not exist or that its definer cannot read."
    )
    reader = {"mysql_user": "reader", "mysql_pass": "pw"}
    assert refusal(tmp_path, table("t", **reader)) == f"{REACHED}the user has no access to that database."
    mostly = {"mysql_user": "mostly", "mysql_pass": "pw"}
    assert refusal(tmp_path, table("t", **mostly)) == "MySQL: the user has no read permission on t or part of it."
    assert load(tmp_path, dataset) == []


def test_nothing_is_written_at_the_server(tmp_path: Path, table: Table, mariadb: MariadbServer) -> None:
    dataset = table(
        "t",
        "CREATE TABLE seen (a int)",
        "CREATE FUNCTION spy() RETURNS int BEGIN INSERT INTO seen VALUES (1); RETURN 1; END",
        "CREATE VIEW t AS SELECT spy() AS a",
    )

    assert refusal(tmp_path, dataset).startswith("MySQL cannot read t: error 1792.")
    assert mariadb.value("SELECT COUNT(*) FROM seen") == 0


# --- TLS --------------------------------------------------------------------------------------------------------------


def test_tls_is_required_and_verified_unless_the_yaml_says_otherwise(
    tmp_path: Path, table: Table, mariadb: MariadbServer, root: str
) -> None:
    in_use = "SELECT VARIABLE_VALUE <> '' AS is_used FROM information_schema.SESSION_STATUS WHERE VARIABLE_NAME"
    table("t", f"CREATE VIEW t AS {in_use} = 'Ssl_cipher'")

    def by_tls(**params: str) -> DatasetConfig:
        default = {name: value for name, value in mariadb.params.items() if name != "mysql_sslmode"}
        return loads.table(tmp_path, "mysql:t", **{**default, "mysql_host": "localhost", **params})

    failed = f"{REACHED}TLS with it failed: "
    assert load(tmp_path, by_tls(mysql_sslrootcert=root)) == [(1,)]
    assert load(tmp_path, by_tls(mysql_sslrootcert=root, mysql_sslmode="preferred")) == [(1,)]
    assert load(tmp_path, by_tls(mysql_sslmode="preferred")) == [(1,)]
    assert load(tmp_path, by_tls(mysql_sslmode="disabled")) == [(0,)]
    assert refusal(tmp_path, by_tls(mysql_host="127.0.0.1", mysql_sslrootcert=root)) == (
        f"{failed}the certificate does not match the host name."
    )
    assert refusal(tmp_path, by_tls()) == (
        f"{failed}the certificate is not signed by an authority in mysql_sslrootcert or the default roots."
    )
    assert refusal(tmp_path, by_tls(mysql_sslrootcert=f"{tmp_path}/absent")).startswith(
        "The file of root certificates cannot be used:"
    )


#: Where a greeting says whether the server has TLS: a byte after the version, which ends with a zero, and its bit
#: (Protocol::HandshakeV10 and CLIENT_SSL in MySQL's documentation of its source).
_CAPABILITIES, _SSL = 15, 0x08


@contextmanager
def front(mariadb: MariadbServer, plugin: bytes = b"") -> Iterator[tuple[str, list[bytes]]]:
    """
    Run a server for one client that denies that it has TLS; give its port, and what the client sends.

    It switches the authentication to *plugin*, if there is one.
    """
    sent: list[bytes] = []

    def serve() -> None:
        with (
            suppress(OSError),
            listener.accept()[0] as client,
            socket.create_connection(("127.0.0.1", int(mariadb.port))) as server,
        ):
            greeting = bytearray(server.recv(4096))
            greeting[greeting.index(0, 5) + _CAPABILITIES] &= ~_SSL
            client.sendall(greeting)
            while data := client.recv(4096):
                sent.append(data)
                switch = b"\xfe" + plugin + b"\0" + b"Password: "
                client.sendall(len(switch).to_bytes(3, "little") + bytes([data[3] + 1]) + switch)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        pool.submit(serve)
        yield str(listener.getsockname()[1]), sent


def test_a_server_that_denies_tls_gets_no_password(tmp_path: Path, table: Table, mariadb: MariadbServer) -> None:
    with front(mariadb) as (port, sent):
        dataset = table("t", mysql_tcp_port=port, mysql_sslmode="required")
        assert refusal(tmp_path, dataset) == f"{REACHED}it does not support TLS; mysql_sslmode: disabled turns it off."

    assert sent == []


@pytest.mark.parametrize("plugin", [b"mysql_clear_password", b"dialog", b"mysql_old_password"])
def test_a_server_without_tls_gets_no_password_as_text(
    tmp_path: Path, table: Table, mariadb: MariadbServer, plugin: bytes
) -> None:
    with front(mariadb, plugin) as (port, sent):
        dataset = table("t", mysql_tcp_port=port, mysql_sslmode="disabled")
        assert "it requests the password with a plugin that" in refusal(tmp_path, dataset)

    assert len(sent) == 1
    assert mariadb.params["mysql_pass"].encode() not in sent[0]


# --- a server that is away, slow or dead ------------------------------------------------------------------------------


def test_a_silent_server_is_left_at_the_deadline(tmp_path: Path, table: Table) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        time_out_repeatedly(tmp_path, table("t", mysql_tcp_port=str(silent.getsockname()[1])), rounds=20)


@pytest.mark.parametrize("greeting", [b"SSH-2.0-OpenSSH_9.9\r\n", b"220 mail\r\n", b"\1\0\0\0\n", b"\0" * 64])
def test_a_server_of_another_protocol_is_refused(tmp_path: Path, table: Table, greeting: bytes) -> None:
    def greet() -> None:
        with server.accept()[0] as client:
            client.sendall(greeting)
            client.shutdown(socket.SHUT_WR)
            with suppress(OSError):
                client.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(greet)
        said = refusal(tmp_path, table("t", mysql_tcp_port=str(server.getsockname()[1])))

    assert said in {
        f"{REACHED}it is not a MySQL server, or the connection broke.",
        "The connection to MySQL broke while t was being read.",
    }


def test_a_query_without_end_stops_here_and_at_the_server(tmp_path: Path, table: Table, mariadb: MariadbServer) -> None:
    dataset = table("t", SLOW)
    threads = threading.active_count()

    with pytest.raises(SnapshotError, match=r"was stopped after 0\.5 s"):
        builder(tmp_path).build(Order(dataset), deadline(0.5))

    wait_for(lambda: mariadb.value(SLEEPERS) == 0, "the end of the query at the server")
    assert threading.active_count() <= threads


def test_a_connection_ended_by_the_server_is_reported(tmp_path: Path, table: Table, mariadb: MariadbServer) -> None:
    dataset = table("t", SLOW)
    sleeping = SLEEPERS.replace("COUNT(*)", "ID")

    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(builder(tmp_path).build, Order(dataset), deadline())
        number = wait_for(lambda: mariadb.value(SLEEPERS) and mariadb.value(sleeping), "the load that sleeps")
        mariadb.run(f"KILL {number}")
        with pytest.raises(SourceError, match=r"to MySQL broke while t was being read|ended the connection"):
            loading.result()


def test_a_server_that_dies_in_mid_load_is_reported_and_read_again_once_it_is_back(
    tmp_path: Path, table: Table, mariadb: MariadbServer
) -> None:
    dataset = table("t", SLOW, "CREATE TABLE kept AS SELECT 1 AS a")
    kept = table("kept")

    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(builder(tmp_path).build, Order(dataset), deadline())
        wait_for(lambda: mariadb.value(SLEEPERS), "the load that sleeps")
        mariadb.stop()
        try:
            with pytest.raises(SourceError, match="The connection to MySQL broke while t was being read"):
                loading.result()
            assert refusal(tmp_path, kept) == f"{REACHED}nothing is listening there."
        finally:
            mariadb.start()

    assert load(tmp_path, kept) == [(1,)]

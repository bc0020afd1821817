"""
`mssql:` sources against a server of the protocol: the driver does all of its work, and no SQL is evaluated.

Nothing here has run against SQL Server itself, which no package index has: see decision 13.
"""

import os
import re
import socket
import ssl
import threading
from contextlib import closing
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
import trustme
from msgspec.structs import replace

from connectors.mssql.source import certificate_name
from datasources.errors import SnapshotError, SourceError
from datasources.refresh.loader import LoaderProcess
from datasources.snapshots.snapshot import Order
from datasources.sources.source import Bound
from runtimeconf.model import AccelerationConfig
from tests.connectors.mssql.mssql_server import (
    DATABASE,
    PASSWORD,
    USER,
    Declare,
    Hangup,
    MssqlServer,
    Refusal,
    Table,
    context,
    mssql_server,
)
from tests.connectors.mssql.mssql_values import EAST, END, NOON
from tests.datasources.sources import loads
from tests.datasources.sources.loads import load, load_in_process, scan, time_out_repeatedly, types
from tests.datasources.support import builder, deadline, files_below, refusal, rows
from tests.system.harness import wait_for

REACHED = "The SQL Server cannot be reached: "
OTHER_HOST = "TLS with it failed: the certificate does not match the host name; wildcard certificates are not accepted."


# --- tables -----------------------------------------------------------------------------------------------------------


def test_names_are_quoted_and_a_database_in_from_is_the_one_of_the_session(
    tmp_path: Path, mssql: MssqlServer, mssql_table: Declare
) -> None:
    mssql.tables = {
        "[t]": Table({"a": "int"}, [(1,)]),
        "[dbo].[none]": Table({"a": "int", "b": "decimal(4,1)"}),
        "[My schema].[a.]]'b]": Table({"Ä ]b": "int", "sel'ect": "nvarchar(9)", "{x}": "varchar(5)"}, [(1, "x", "y")]),
    }
    odd = mssql_table("""other."My schema"."a.]'b\"""", mssql_database=None)

    assert load(tmp_path, mssql_table("t")) == [(1,)]
    assert (load(tmp_path, mssql_table("dbo.none")), types(tmp_path, mssql_table("dbo.none"))) == (
        [],
        {"a": "INTEGER", "b": "DECIMAL(4,1)"},
    )
    assert load(tmp_path, odd) == [(1, "x", "y")]
    assert list(types(tmp_path, odd)) == ["Ä ]b", "sel'ect", "{x}"]
    assert mssql.logins[0] == (USER, PASSWORD, DATABASE)
    assert mssql.logins[-1] == (USER, PASSWORD, "other")


@pytest.mark.parametrize("has_snapshots", [True, False])
def test_a_load_is_a_snapshot_where_the_database_allows_one(
    tmp_path: Path, mssql: MssqlServer, mssql_table: Declare, has_snapshots: bool
) -> None:
    mssql.has_snapshots = has_snapshots
    mssql.tables["[dbo].[t]"] = Table({"a": "int"}, [(1,)])

    assert load(tmp_path, mssql_table("dbo.t")) == [(1,)]

    begun = ["SET TRANSACTION ISOLATION LEVEL SNAPSHOT", "BEGIN TRANSACTION"] if has_snapshots else []
    settings, use, state, *statements = mssql.statements
    assert "SET TEXTSIZE 2147483647; SET ROWCOUNT 0;" in settings
    assert int(settings.rpartition("SET LOCK_TIMEOUT ")[2]) > 1000
    assert (use, "snapshot_isolation_state" in state) == (f"use [{DATABASE}]", True)
    assert statements[:-3] == begun
    assert statements[-3] == "SELECT TOP (0) 1 AS one FROM [dbo].[t]"
    assert "dm_exec_describe_first_result_set(N'SELECT * FROM [dbo].[t]', NULL, 0)" in statements[-2]
    assert statements[-1] == "SELECT [a] AS [a] FROM [dbo].[t]"


def test_a_connection_string_says_the_same_as_parameters(tmp_path: Path, mssql: MssqlServer, root: str) -> None:
    mssql.tables["[t]"] = Table({"a": "int"}, [(1,)])
    quoted = PASSWORD.replace("'", "''")
    text = (
        f"Server=tcp:localhost,{mssql.port};Initial Catalog={DATABASE};Persist Security Info=False;User ID={USER};"
        f"Password='{quoted}';MultipleActiveResultSets=False;Encrypt=True;TrustServerCertificate=False;"
    )
    dataset = loads.table(tmp_path, "mssql:t", mssql_connection_string=text, mssql_sslrootcert=root)

    assert load(tmp_path, dataset) == [(1,)]
    assert mssql.logins == [(USER, PASSWORD, DATABASE)]
    assert not mssql.is_plain


TIMES = {"dt": "datetime", "d2": "datetime2(6)", "d7": "datetime2(7)", "o": "datetimeoffset(7)", "s": "smalldatetime"}
OTHERS = {"u": "uniqueidentifier", "x": "nvarchar(9)", "r": "real", "m": "money", "b": "bit", "t": "time(6)"}
NUMBERS = {"i": "int", "l": "bigint", "f": "float", "n": "decimal(10,2)", "fine": "decimal(38,30)", "d": "date"}


#: Bounds of a load, and what the server compares.
BOUNDS = [
    (Bound("I", ">=", 8), "[i] >= 8"),
    (Bound("l", "<", 2**63), f"[l] < {2**63}"),
    (Bound("l", "<", 10**38), ""),
    (Bound("n", "=", 5), "[n] = 5"),
    (Bound("n", "<", Decimal("5.5")), ""),
    (Bound("i", "<", Decimal("5.5")), ""),
    (Bound("fine", "<", 5), ""),
    (Bound("f", ">", 2.0), "[f] > 2.0e0"),
    (Bound("f", "<", 1e300), "[f] < 1e+300"),
    (Bound("f", "<", float("inf")), ""),
    (Bound("d", "=", date(2024, 1, 3)), "[d] = CAST('2024-01-03' AS date)"),
    (Bound("d2", "=", NOON), "[d2] = CAST('2024-02-29T12:00:00.000001' AS datetime2)"),
    (Bound("s", "<", NOON), "[s] < CAST('2024-02-29T12:00:00.000001' AS datetime2)"),
    # With room for the digits that the engine does not have.
    (Bound("d7", ">", NOON), "[d7] >= CAST('2024-02-29T12:00:00' AS datetime2)"),
    (Bound("d7", "<=", NOON), "[d7] <= CAST('2024-02-29T12:00:00.000002' AS datetime2)"),
    (Bound("d7", "=", NOON), ""),
    (Bound("d7", "<", END), ""),
    (Bound("dt", ">", NOON), "[dt] >= CAST('2024-02-29T11:59:59.996001' AS datetime2)"),
    (
        Bound("o", "<", NOON.replace(tzinfo=EAST)),
        "[o] <= CAST('2024-02-29T06:30:00.000002+00:00' AS datetimeoffset)",
    ),
    (Bound("o", ">", NOON), ""),
    *((Bound(name, "=", value), "") for name in (*OTHERS, "none") for value in (1, "1")),
]


def test_the_server_compares_what_it_compares_as_the_engine_does(
    tmp_path: Path, mssql: MssqlServer, mssql_table: Declare
) -> None:
    mssql.tables["[dbo].[t]"] = Table(NUMBERS | TIMES | OTHERS)

    for bound, sent in BOUNDS:
        assert scan(tmp_path, mssql_table("dbo.t"), bound, columns="i") == (["i"], [])
        where = f" WHERE {sent}" if sent else ""
        assert (bound, mssql.statements[-1]) == (bound, f"SELECT [i] AS [i] FROM [dbo].[t]{where}")


def test_an_append_reads_newer_rows_once(tmp_path: Path, mssql: MssqlServer, mssql_table: Declare) -> None:
    # Bounds have microseconds: the server finds the first row again, and the engine tells the two apart.
    served: list[tuple[object, int]] = [((NOON, 7), 1)]
    mssql.tables["[dbo].[t]"] = Table({"changed": "datetime2(7)", "a": "int", "p": "geography"}, served)
    dataset = replace(
        mssql_table("dbo.t"), time_column="changed", acceleration=AccelerationConfig(refresh_mode="append")
    )
    sql = "SELECT changed, a FROM d"
    first = builder(tmp_path).build(Order(dataset, sql), deadline())
    served.append(((NOON, 8), 2))

    second = builder(tmp_path).build(Order(dataset, sql, served=first), deadline())

    assert rows(tmp_path, second, "SELECT a FROM d ORDER BY a") == [(1,), (2,)]
    assert "[changed] >= CAST('2024-02-29T12:00:00' AS datetime2)" in mssql.statements[-1]


@pytest.mark.exhaustive
def test_many_rows_stream_through_a_small_process(tmp_path: Path, mssql: MssqlServer, mssql_table: Declare) -> None:
    many = ((number, "x" * 60) for number in range(1_000_000))
    mssql.tables["[dbo].[t]"] = Table({"g": "int", "x": "nvarchar(100)"}, many)

    found = load_in_process(tmp_path, mssql_table("dbo.t"), "SELECT count(*), sum(g), min(length(x)) FROM d")

    assert found == [(1_000_000, 499_999_500_000, 60)]


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_reasons_of_a_refused_connection_are_told_apart_each_time(
    tmp_path: Path, mssql: MssqlServer, mssql_table: Declare
) -> None:
    mssql.tables["[dbo].[t]"] = Table({"a": "int"}, [(1,)])

    for _ in range(2):
        assert refusal(tmp_path, mssql_table("dbo.t", mssql_password="wrong")) == (
            f"{REACHED}it rejected the user or password."
        )
        mssql.refusals = {"login": Refusal(4060, f'Cannot open database "{DATABASE}" requested by the login.')}
        assert refusal(tmp_path, mssql_table("dbo.t")) == (
            f"{REACHED}it has no database with that name, or the user has no access to it."
        )
        mssql.refusals = {"login": Refusal(40615)}
        assert refusal(tmp_path, mssql_table("dbo.t")) == f"{REACHED}its firewall accepts no connection from this host."
        mssql.refusals = {"login": Refusal(12345)}
        assert refusal(tmp_path, mssql_table("dbo.t")) == f"{REACHED}error 12345."
        assert refusal(tmp_path, mssql_table("dbo.t", mssql_port="1")) == f"{REACHED}nothing is listening there."
        mssql.refusals = {}
        assert load(tmp_path, mssql_table("dbo.t")) == [(1,)]


def test_an_error_after_the_first_rows_is_one(tmp_path: Path, mssql: MssqlServer, mssql_table: Declare) -> None:
    def divide() -> None:
        raise Refusal(8134, "Divide by zero error encountered.")

    for rows_before in (1, 15_000):
        mssql.tables["[dbo].[t]"] = Table({"a": "int"}, [(0,)] * 20_000, divide, rows_before)
        assert refusal(tmp_path, mssql_table("dbo.t")) == (
            "SQL Server cannot read dbo.t: error 8134. Run the query there to see why."
        )


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (229, "SQL Server: the user has no read permission on dbo.t or part of it."),
        (4413, "SQL Server: the view dbo.t references an object that does not exist."),
        (3961, "SQL Server: the definition of dbo.t changed while it was being read."),
        (1222, "SQL Server: dbo.t was still locked by others when the timeout passed."),
        (777, "SQL Server cannot read dbo.t: error 777. Run the query there to see why."),
    ],
)
def test_reasons_of_a_failed_query_are_told_apart(
    tmp_path: Path, mssql: MssqlServer, mssql_table: Declare, number: int, said: str
) -> None:
    mssql.tables["[dbo].[t]"] = Table({"a": "int"}, [(1,)])
    mssql.refusals = {"^SELECT .a. AS": Refusal(number, "canary")}

    assert refusal(tmp_path, mssql_table("dbo.t")) == said
    assert refusal(tmp_path, mssql_table("dbo.absent")) == (
        "SQL Server: it has no table or view dbo.absent, or the user has no access to it."
    )


# --- TLS --------------------------------------------------------------------------------------------------------------


def test_a_server_whose_certificate_is_not_right_gets_no_password(
    tmp_path: Path, mssql: MssqlServer, mssql_table: Declare, authority: trustme.CA
) -> None:
    mssql.tables["[dbo].[t]"] = Table({"a": "int"}, [(1,)])
    failed = f"{REACHED}TLS with it failed: "
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)

    for params in ({"mssql_sslrootcert": None}, {"mssql_sslrootcert": str(other)}):
        for encrypt in ("true", "false"):
            said = refusal(tmp_path, mssql_table("dbo.t", mssql_encrypt=encrypt, **params))
            assert said.startswith(f"{failed}the certificate is not signed by an authority in mssql_sslrootcert or")
    assert refusal(tmp_path, mssql_table("dbo.t", mssql_host="127.0.0.1")) == f"{REACHED}{OTHER_HOST}"
    mssql.tls = context(authority, "127.0.0.1")
    assert refusal(tmp_path, mssql_table("dbo.t")) == f"{REACHED}{OTHER_HOST}"
    assert refusal(tmp_path, mssql_table("dbo.t", mssql_sslrootcert="absent")).startswith(
        "The file of root certificates cannot be used:"
    )
    mssql.tls = None
    assert refusal(tmp_path, mssql_table("dbo.t")) == (
        f"{REACHED}it does not support TLS (mssql_encrypt: false turns it off), or it is not a SQL Server."
    )

    assert mssql.logins == []


def test_a_certificate_for_other_names_is_refused_wildcards_too(
    tmp_path: Path, mssql: MssqlServer, mssql_table: Declare, authority: trustme.CA
) -> None:
    mssql.tables["[dbo].[t]"] = Table({"a": "int"}, [(1,)])
    # A name to us, in which the system finds the address of the loopback.
    dataset = mssql_table("dbo.t", mssql_host="127.0.0.0x1")
    for name in ("*.0.0.0x1", "*.0.0x1", "*.127.0.0.0x1", "0.0.0x1", "1.0.0.0x1", "127.0.0.1"):
        mssql.tls = context(authority, name)
        assert refusal(tmp_path, dataset) == f"{REACHED}{OTHER_HOST}"

    assert mssql.logins == []
    mssql.tls = context(authority, "127.0.0.0X1")
    assert load(tmp_path, dataset) == [(1,)]


def test_the_names_of_azure_have_a_wildcard() -> None:
    assert certificate_name("shop.database.windows.net") == "*.database.windows.net"
    for host in ("database.windows.net", "shop.database.windows.net.example", "a.example.com", "10.0.0.1", "::1"):
        assert certificate_name(host) == host


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_a_server_with_old_tls_only_gets_no_password(
    tmp_path: Path, mssql: MssqlServer, mssql_table: Declare, authority: trustme.CA
) -> None:
    mssql.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    mssql.tls.set_ciphers("ALL:@SECLEVEL=0")
    mssql.tls.minimum_version = mssql.tls.maximum_version = ssl.TLSVersion.TLSv1_1
    authority.issue_cert("localhost").configure_cert(mssql.tls)

    assert refusal(tmp_path, mssql_table("t")).startswith(f"{REACHED}TLS with it failed: ")
    assert mssql.logins == []


def test_tls_is_in_use_unless_the_yaml_says_otherwise(
    tmp_path: Path, mssql: MssqlServer, mssql_table: Declare, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    mssql.tables["[dbo].[t]"] = Table({"a": "int"}, [(1,)])

    def is_plain(**params: str | None) -> bool:
        assert load(tmp_path, mssql_table("dbo.t", **params)) == [(1,)]
        return mssql.is_plain

    assert not is_plain()
    assert is_plain(mssql_encrypt="false")
    with monkeypatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", mssql_table("dbo.t").params["mssql_sslrootcert"])
        assert not is_plain(mssql_sslrootcert=None)
    mssql.tls = context(authority, "example.org")
    assert not is_plain(mssql_sslrootcert=None, mssql_trust_server_certificate="true")
    mssql.tls = None
    assert is_plain(mssql_encrypt="false")


def test_files_of_a_load_hold_no_secret_and_no_rows(tmp_path: Path, mssql: MssqlServer, mssql_table: Declare) -> None:
    seen = ""
    mssql.refusals = {"login": Refusal(18456)}
    refusal(tmp_path, mssql_table("dbo.t"))
    mssql.refusals = {}

    def look() -> None:
        nonlocal seen
        (file,) = tmp_path.rglob("freetds.conf")
        seen = file.read_text()
        seen += Path(seen.partition("dump file = ")[2].partition("\n")[0]).read_text()

    mssql.tables["[dbo].[t]"] = Table({"a": "nvarchar(9)"}, [("canary",)] * 9, look, 5)

    assert len(load(tmp_path, mssql_table("dbo.t"))) == 9
    assert "encryption = require" in seen
    assert not re.search(rf"canary|{USER}|{re.escape(PASSWORD)}|SELECT", seen)
    assert [path for path in files_below(tmp_path) if "freetds" in str(path)] == []


def test_settings_of_the_machine_have_no_effect(
    tmp_path: Path, mssql: MssqlServer, mssql_table: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    mssql.tables["[dbo].[t]"] = Table({"a": "int"}, [(1,)])
    dump = tmp_path / "dump"
    (tmp_path / "other.conf").write_text(f"[global]\nencryption = off\ndump file = {dump}\n")
    settings = {
        "FREETDSCONF": str(tmp_path / "other.conf"),
        "TDSDUMP": str(dump),
        "TDSHOST": "other.invalid",
        "TDSPORT": "1",
        "TDSVER": "7.0",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)

    assert load(tmp_path, mssql_table("dbo.t")) == [(1,)]
    assert not mssql.is_plain
    assert not dump.exists()
    assert {name: os.environ[name] for name in settings} == settings


# --- a server that is away, slow or dead ------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_a_silent_server_is_left_at_the_deadline(tmp_path: Path, mssql_table: Declare) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        time_out_repeatedly(tmp_path, mssql_table("t", mssql_port=str(silent.getsockname()[1])), rounds=10)


def test_a_server_of_another_protocol_is_refused(tmp_path: Path, mssql_table: Declare) -> None:
    with loads.server_of_another_protocol() as port:
        assert refusal(tmp_path, mssql_table("t", mssql_port=str(port))) == (
            f"{REACHED}it does not support TLS (mssql_encrypt: false turns it off), or it is not a SQL Server."
        )


@pytest.mark.exhaustive
def test_a_query_without_end_stops_at_the_deadline(tmp_path: Path, mssql: MssqlServer, mssql_table: Declare) -> None:
    end = threading.Event()
    mssql.tables["[dbo].[t]"] = Table({"a": "int"}, ((number,) for number in range(100_000)), end.wait, 50_000)
    before = threading.active_count()

    try:
        with pytest.raises(SnapshotError, match=r"was stopped after 0\.5 s"):
            builder(tmp_path).build(Order(mssql_table("dbo.t")), deadline(0.5))
    finally:
        end.set()

    wait_for(lambda: threading.active_count() <= before, "the end of the session at the server")


@pytest.mark.exhaustive
def test_a_connection_that_ends_in_mid_stream_is_an_error_and_the_next_load_succeeds(
    tmp_path: Path, mssql: MssqlServer, mssql_table: Declare
) -> None:
    def hang_up() -> None:
        raise Hangup

    mssql.tables["[dbo].[t]"] = Table({"a": "int"}, [(number,) for number in range(100_000)], hang_up, 50_000)

    with closing(LoaderProcess(builder(tmp_path))) as process:
        with pytest.raises(SourceError, match=r"connection to the SQL Server broke while dbo\.t was being read\.$"):
            process.build(Order(mssql_table("dbo.t")), deadline())
        mssql.tables["[dbo].[t]"].pause_at = -1
        found = rows(tmp_path, process.build(Order(mssql_table("dbo.t")), deadline()), "SELECT count(*) FROM d")

    assert found == [(100_000,)]


def test_a_server_that_is_away_is_read_again_once_it_is_back(tmp_path: Path, authority: trustme.CA, root: str) -> None:
    with mssql_server(context(authority, "localhost")) as first:
        dataset = loads.table(tmp_path, "mssql:t", mssql_sslrootcert=root, **first.params)
    assert refusal(tmp_path, dataset) == f"{REACHED}nothing is listening there."

    with mssql_server(context(authority, "localhost"), first.port) as second:
        second.tables["[t]"] = Table({"a": "int"}, [(1,)])
        assert load(tmp_path, dataset) == [(1,)]

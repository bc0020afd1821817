"""The settings of `postgres:`, `sqlite:`, `duckdb:` and `flightsql:`."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtimeconf.connectors import CONNECTORS, all_params
from runtimeconf.connectors.connector import Package
from runtimeconf.connectors.tables import table_parts
from tests.runtimeconf.configurations import SECRET, Fault, Faults, Load, dataset_text, load_dataset

POSTGRES = {"pg_host": "db", "pg_db": "shop", "pg_user": "reader", "pg_pass": "${ secrets:token }"}
FLIGHTSQL = {"flightsql_endpoint": "grpc://127.0.0.1:50051"}
PARAMS = {
    "postgres": POSTGRES,
    "sqlite": {"sqlite_table": "t"},
    "duckdb": {"duckdb_open": "a.duckdb"},
    "flightsql": FLIGHTSQL,
}


# --- from -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("t", ("t",)),
        ("a.b.c", ("a", "b", "c")),
        ('"a.b"."c ""d"""', ("a.b", 'c "d"')),
        ("My Table", ("My Table",)),
        ("ünï.$t", ("ünï", "$t")),
    ],
)
def test_a_name_has_parts(text: str, parts: tuple[str, ...]) -> None:
    assert table_parts(text) == parts


@pytest.mark.parametrize("connector", ["postgres", "duckdb", "flightsql"])
@pytest.mark.parametrize("table", ["", ".", "a.", ".a", "a..b", '"a', 'a"b', '""', '"a"b', "a.b.c.d"])
def test_invalid_table_names(fault: Fault, connector: str, table: str) -> None:
    assert fault(dataset_text(f"{connector}:{table}", PARAMS[connector]), {"TOKEN": SECRET}).startswith(
        f"1: datasets[0].from: must be {connector}: and the name of a table or view, such as "
    )


@pytest.mark.parametrize("connector", ["postgres", "duckdb", "flightsql"])
@pytest.mark.parametrize("url", ["//user:canary@host/db", "a://canary@host"])
def test_a_url_is_refused_and_not_shown(fault: Fault, connector: str, url: str) -> None:
    message = fault(dataset_text(f"{connector}:{url}", PARAMS[connector]), {"TOKEN": SECRET})

    assert "(not a URL: " in message
    assert "canary" not in message


@pytest.mark.parametrize("connector", ["postgres", "duckdb", "flightsql"])
@pytest.mark.parametrize("text", ["md:?motherduck_token=canary", "u:canary@host", 'host=h "a b" password=canary'])
def test_a_table_name_that_may_hold_a_password_is_refused(fault: Fault, connector: str, text: str) -> None:
    message = fault(dataset_text(f"{connector}:{text}", PARAMS[connector]), {"TOKEN": SECRET})

    assert message.endswith("; a part that holds = or @ stands in double quotes)")
    assert "canary" not in message


def test_a_quoted_part_may_hold_url_characters(load_text: Load) -> None:
    assert load_dataset(load_text, 'duckdb:main."a=b@c"', PARAMS["duckdb"]).location == 'main."a=b@c"'


@pytest.mark.parametrize("path", ["data/a.db", "//data/a.db"])
def test_sqlite_paths_are_relative_to_the_yaml(load_text: Load, tmp_path: Path, path: str) -> None:
    assert load_dataset(load_text, f"sqlite:{path}", PARAMS["sqlite"]).location == str(tmp_path / "data/a.db")
    assert load_dataset(load_text, "sqlite:/data/a.db", PARAMS["sqlite"]).location == "/data/a.db"


@pytest.mark.parametrize("path", [f"//u:{SECRET}@h/a.db", f"//{SECRET}@h/a.db", f"u:{SECRET}@h/a.db", "//h:80/a.db"])
def test_a_path_with_a_host_is_refused_and_not_shown(fault: Fault, path: str) -> None:
    message = fault(dataset_text(f"sqlite:{path}", PARAMS["sqlite"]))

    assert "(no user, password or port before the path: everybody" in message
    assert SECRET not in message


@pytest.mark.parametrize(
    "path", [f"a.db?password={SECRET}", f"file:a.db?mode=ro&key={SECRET}", f"//a.db?a/b?k={SECRET}"]
)
def test_a_path_with_a_query_is_refused_and_not_shown(fault: Fault, path: str) -> None:
    message = fault(dataset_text(f"sqlite:{path}", PARAMS["sqlite"]))

    assert "(no query after the path: everybody who may ask for the datasets sees this)" in message
    assert SECRET not in message


@pytest.mark.parametrize("path", ["/d/a:b@c/a.db", "d/a@b.db", "k=v/what?.db", "a:b.db"])
def test_a_file_path_may_hold_url_characters(load_text: Load, tmp_path: Path, path: str) -> None:
    assert load_dataset(load_text, f"sqlite:{path}", PARAMS["sqlite"]).location == str(tmp_path / path)


def test_sqlite_without_a_path(fault: Fault) -> None:
    assert fault(dataset_text("sqlite:", PARAMS["sqlite"])).endswith("(there is no path after the colon)")


def test_mysql_is_refused_with_reason_and_alternative(fault: Fault) -> None:
    assert fault(dataset_text("mysql:t", {})).endswith(
        "(the connector mysql is not supported; no ADBC driver for MySQL can be installed by pip; "
        "export the table to Parquet and write file:)"
    )


# --- params -----------------------------------------------------------------------------------------------------------


def test_paths_are_relative_to_the_yaml_and_secrets_are_resolved(load_text: Load, tmp_path: Path) -> None:
    postgres = load_dataset(
        load_text, "postgres:t", {**POSTGRES, "pg_sslrootcert": "ca.pem", "pg_host": "DB.Example.com"}
    )
    duckdb = load_dataset(load_text, "duckdb:t", {"duckdb_open": "/data/a.duckdb"})

    assert postgres.params["pg_sslrootcert"] == str(tmp_path / "ca.pem")
    assert (postgres.params["pg_pass"], postgres.params["pg_host"]) == (SECRET, "db.example.com")
    assert duckdb.params == {"duckdb_open": "/data/a.duckdb"}
    assert load_dataset(load_text, "postgres:t", {**POSTGRES, "pg_host": "/run/Pg"}).params["pg_host"] == "/run/Pg"


@pytest.mark.parametrize(
    ("source", "params", "said"),
    [
        ("postgres:t", {**POSTGRES, "pg_port": "0"}, "pg_port: must be a port from 1 to 65535; found '0'"),
        ("postgres:t", {**POSTGRES, "pg_port": "65536"}, "pg_port: must be a port from 1 to 65535; found '65536'"),
        ("postgres:t", {**POSTGRES, "pg_host": "a b"}, "pg_host: must be a host name, an IP address, or the absolute"),
        ("postgres:t", {**POSTGRES, "pg_host": "/a,b"}, "(a comma would name a second host)"),
        ("postgres:t", {**POSTGRES, "pg_sslmode": "allow"}, "pg_sslmode: must be disable, prefer, require, verify-ca"),
        ("postgres:t", {**POSTGRES, "duckdb_open": "a"}, "duckdb_open: is not a parameter of the connector postgres"),
        ("postgres:t", {**POSTGRES, "pg_password": "x"}, "pg_password: unknown field; did you mean pg_pass?"),
        ("postgres:t", {**POSTGRES, "user": "x"}, "user: unknown field; did you mean pg_user?"),
        ("sqlite:a.db", {"sqlite_table": "t", "zzz": "x"}, "the fields here are: sqlite_table, sqlite_types"),
        ("postgres:t", {"pg_host": "a", "pg_db": "a"}, "lacks the field pg_user: the name of a user"),
        ("sqlite:a.db", {}, "lacks the field sqlite_table: the name of a table or view"),
        (
            "sqlite:a.db",
            {"sqlite_table": "t", "sqlite_types": "x"},
            "sqlite_types: must be declared or text; found 'x'",
        ),
        ("duckdb:t", {}, "lacks the field duckdb_open: the path of a database file"),
        ("flightsql:t", {"flightsql_endpoint": "127.0.0.1:50051"}, "flightsql_endpoint: must be a URL such as"),
        ("flightsql:t", {"flightsql_endpoint": "grpc://host"}, "flightsql_endpoint: must be a URL such as"),
        ("flightsql:t", {"flightsql_endpoint": "grpc://host:x"}, "flightsql_endpoint: must be a URL such as"),
        ("flightsql:t", {"flightsql_endpoint": "https://host:1/path"}, "flightsql_endpoint: must be a URL such as"),
        (
            "flightsql:t",
            {"flightsql_endpoint": "grpc://host:1", "flightsql_username": "u"},
            "has only one of flightsql_username and flightsql_password",
        ),
        (
            "flightsql:t",
            {**FLIGHTSQL, "flightsql_tls_root_certificate_file": "ca.pem"},
            "has flightsql_tls_root_certificate_file, but flightsql_endpoint has no TLS",
        ),
    ],
)
def test_faults_of_params(fault: Fault, source: str, params: dict[str, str], said: str) -> None:
    assert said in fault(dataset_text(source, params), {"TOKEN": SECRET})


def test_two_kinds_of_credentials_are_a_fault(fault: Fault) -> None:
    params = {"flightsql_token": "${ env:TOKEN }", "flightsql_username": "u", "flightsql_password": "${ env:TOKEN }"}

    assert fault(dataset_text("flightsql:t", {**FLIGHTSQL, **params}), {"TOKEN": SECRET}).endswith(
        "has both flightsql_token and flightsql_username or flightsql_password: keep one"
    )


@pytest.mark.parametrize("value", ["canary\nb", "canary\0", "canary" * 3000])
def test_an_invalid_credential_is_not_shown(faults: Faults, value: str) -> None:
    for source, name in (("postgres:t", "pg_pass"), ("flightsql:t", "flightsql_password")):
        (found,) = faults(
            dataset_text(source, {**PARAMS[source.partition(":")[0]], name: "${ env:TOKEN }"}), {"TOKEN": value}
        )
        assert found.message.endswith("(it has several lines, or is longer than 16,384 characters)")
        assert "canary" not in found.message


@pytest.mark.parametrize(
    ("source", "params"),
    [
        ("flightsql:t", {"flightsql_endpoint": f"grpc://u:{SECRET}@host:1"}),
        ("flightsql:t", {"flightsql_endpoint": f"grpc://host:1?token={SECRET}"}),
        ("postgres:t", {**POSTGRES, "pg_host": f"postgresql://u:{SECRET}@host/db"}),
        ("postgres:t", {**POSTGRES, "pg_host": f"u:{SECRET}@host"}),
    ],
)
def test_a_url_that_may_hold_a_password_is_not_shown(fault: Fault, source: str, params: dict[str, str]) -> None:
    message = fault(dataset_text(source, params), {"TOKEN": SECRET})

    assert "found a text" in message
    assert SECRET not in message


@pytest.mark.parametrize("scheme", ["grpc", "grpc+tcp", "http"])
def test_credentials_need_tls_unless_allow_http_is_set(fault: Fault, load_text: Load, scheme: str) -> None:
    plain = {"flightsql_endpoint": f"{scheme}://127.example.org:1"}
    token = {"flightsql_token": "${ env:TOKEN }"}
    password = {"flightsql_username": "u", "flightsql_password": "${ env:TOKEN }"}
    for credentials, shown in ((token, "flightsql_token"), (password, "flightsql_username and flightsql_password")):
        assert fault(dataset_text("flightsql:t", {**plain, **credentials}), {"TOKEN": SECRET}) == (
            "1: datasets[0].params: has a flightsql_endpoint without TLS: everybody on the way reads "
            f"{shown}; allow_http: true allows it"
        )
        assert load_dataset(load_text, "flightsql:t", {**plain, **credentials, "allow_http": "true"})
        for endpoint in (f"{scheme}://localhost:1", f"{scheme}://[::1]:1", "grpc+tls://host:1", "https://host:1"):
            assert load_dataset(load_text, "flightsql:t", {**credentials, "flightsql_endpoint": endpoint})
    assert load_dataset(load_text, "flightsql:t", plain)


def test_a_token_is_ascii_as_headers_are(fault: Fault) -> None:
    params = {**FLIGHTSQL, "flightsql_token": "${ env:TOKEN }"}

    assert fault(dataset_text("flightsql:t", params), {"TOKEN": "canary-é"}).endswith("found a text (printable ASCII)")


def test_connectors_that_share_a_parameter_share_its_declaration() -> None:
    declared = {id(param) for connector in CONNECTORS.values() for param in connector.params}

    assert len(declared) == len(all_params())


def test_user_and_password_in_an_endpoint_are_refused_and_not_shown(fault: Fault) -> None:
    message = fault(
        dataset_text("flightsql:t", {"flightsql_endpoint": "grpc://u:${ env:TOKEN }@host:1"}), {"TOKEN": SECRET}
    )

    assert "put user and password into flightsql_username and flightsql_password" in message
    assert SECRET not in message


def test_a_missing_driver_is_a_fault_with_its_install_command(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Package, "is_installed", property(lambda package: package.module == "adbc_driver_manager"))

    for name in ("postgres", "sqlite", "flightsql"):
        (found,) = faults(dataset_text(f"{name}:t", PARAMS[name]), {"TOKEN": SECRET})
        driver = "postgresql" if name == "postgres" else name
        command = f"python -m pip install 'adbc-driver-{driver}~=1.13'"
        assert found.message == f"the connector {name} needs a library: {command}"
    assert CONNECTORS["duckdb"].packages == ()

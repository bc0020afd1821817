"""A bad configuration stops every server before a port is bound; a good one is read once (checks C01 to C38)."""

import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.system.harness import (
    K1,
    K2,
    MODES,
    PATIENCE_S,
    Mode,
    Server,
    free_port,
    run_program,
    taken_port,
    wait_for,
)
from tests.system.processes import family, is_alive
from tests.system.test_serve import Activated


def yaml_text(port: int, more: str) -> str:
    return f'runtime:\n  http: {{bind: "127.0.0.1:{port}"}}\n  flight: {{enabled: false}}\n{more}'


#: Every fault of the YAML runs against the same check in process (tests/runtimeconf); here one of each kind, and one
#: of them with every server, always.
MISSPELT = "  auth:\n    api-key:\n      enabeld: true\n      keys: [canary-abcdefghijklmnop]\n"
FAULTY = {
    "C18 tag": "  auth: {api-key: {enabled: !!python/object/apply:os.system ['true'], keys: [canary]}}\n",
    "C07 missing secret, upstream section": (
        "  auth: {api-key: {enabled: true, keys: ['${ secrets:not_there_at_all }']}}\n"
        "models:\n  - {from: openai, name: gpt}\n"
    ),
    "no SELECT, unknown table, circle, its other half, refresh_sql": (
        "views:\n  - {name: v, sql: 'DELETE FROM nothing'}\n  - {name: u, sql: 'SELECT * FROM absent'}\n"
        "  - {name: a, sql: 'SELECT * FROM b'}\n  - {name: b, sql: 'SELECT * FROM a'}\n"
        "datasets:\n  - from: file:orders.parquet\n    name: orders\n    acceleration:\n"
        "      refresh_sql: SELECT * FROM read_csv('x')\n"
    ),
}


@pytest.mark.parametrize(
    ("mode", "more", "faults"),
    [
        *((mode, MISSPELT, 1) for mode in MODES),
        *(
            pytest.param("serve", more, name.count(",") + 1, id=name, marks=pytest.mark.exhaustive)
            for name, more in FAULTY.items()
        ),
    ],
)
def test_a_faulty_yaml_stops_every_server(tmp_path: Path, mode: Mode, more: str, faults: int) -> None:
    port = free_port()
    server = Server(tmp_path, mode=mode, port=port, text=yaml_text(port, more))

    code, output = server.refuses_to_start()

    assert code != 0
    if mode != "gunicorn":
        assert code == 1
    assert output.count("runtime.yaml:") >= faults, output
    assert "Traceback" not in output
    assert "canary" not in output
    assert len(output.splitlines()) <= 20


def test_c23_a_missing_file_stops_a_server(tmp_path: Path) -> None:
    server = Server(tmp_path, mode="runserver", environ={"RUNTIME_CONFIG": str(tmp_path / "absent.yaml")})

    code, output = server.refuses_to_start()

    assert code != 0
    assert "absent.yaml" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    "mode", ["runserver", *(pytest.param(mode, marks=pytest.mark.exhaustive) for mode in ("serve", "gunicorn"))]
)
def test_c32_the_yaml_is_read_at_startup_only_and_sigterm_ends_with_zero(tmp_path: Path, mode: Mode) -> None:
    with Server(tmp_path, mode=mode) as server:
        document: dict[str, Any] = yaml.safe_load(server.file.read_text())
        document["runtime"]["auth"]["api-key"]["keys"] = [K2]
        server.file.write_text(yaml.safe_dump(document))
        if mode == "gunicorn":
            workers = set(family(server.process.pid)) - {server.process.pid}
            server.process.send_signal(signal.SIGHUP)
            wait_for(lambda: not any(map(is_alive, workers)), "the end of the old workers")
            server.wait_until_up()

        assert server.sql("SELECT 1", K1).status_code == 200
        assert server.stop() == 0

        server.launch()
        server.wait_until_up("/health")
        assert server.sql("SELECT 1", K1).status_code == 401
        assert server.sql("SELECT 1", K2).status_code == 200
        assert server.stop() == 0
        assert "Traceback" not in server.output()


@pytest.mark.exhaustive
def test_c30_an_open_server_on_all_addresses_warns(tmp_path: Path) -> None:
    port = free_port()
    said = "  auth: {api-key: {enabled: false}}\n"
    text = f'runtime:\n  http: {{bind: "0.0.0.0:{port}"}}\n  flight: {{enabled: false}}\n{said}'

    with Server(tmp_path, port=port, text=text) as server:
        assert "WARNING" in server.output()
        assert "authentication" in server.output().lower()
        assert server.sql("SELECT 1", None).status_code == 200
        assert server.sql("SELECT 1", None, Host="attacker.test").status_code == 400
        assert server.sql("SELECT 1", None, Origin="https://attacker.test").status_code == 403
        assert "Flight    off" in server.output()
        assert not any("runflight" in command for command in family(server.process.pid).values())


@pytest.mark.parametrize(
    ("mode", "address"),
    [
        ("gunicorn", "0.0.0.0:{}"),
        ("runserver", "0:{}"),
        *(
            pytest.param(mode, address, marks=pytest.mark.exhaustive)
            for mode, address in [("gunicorn", "[::]:{}"), ("gunicorn", ":{}"), ("runserver", "[::]:{}")]
        ),
    ],
)
def test_an_open_address_of_the_command_line_is_refused_unless_the_yaml_allows_it(
    tmp_path: Path, mode: Mode, address: str
) -> None:
    bind = address.format(port := free_port())
    server = Server(tmp_path, mode=mode, port=port, text="runtime: {flight: {enabled: false}}\n")
    server.arguments = ("-b", bind) if mode == "gunicorn" else (bind,)

    code, output = server.refuses_to_start()

    assert code == 1
    assert f"runtime.yaml: runtime.http: listens on {bind}, which other machines can reach" in output
    assert "or write api-key: {enabled: false} there" in output
    assert "Traceback" not in output

    server.text = "runtime: {flight: {enabled: false}, auth: {api-key: {enabled: false}}}\n"
    with server:
        assert "without authentication: anybody who reaches it can read all data" in server.output()
        assert server.rows("SELECT 1 AS a", None) == [{"a": 1}]


@pytest.mark.exhaustive
def test_an_open_socket_of_systemd_is_refused_at_the_start_and_at_a_reload(tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0), backlog=128) as listener:
        port = listener.getsockname()[1]
        server = Activated(tmp_path, port=port, text="runtime: {flight: {enabled: false}}\n")
        server.listener = listener
        server.write()
        server.launch()
        assert server.process.wait(PATIENCE_S) == 1
        refusal = f"runtime.http: listens on 0.0.0.0:{port}, which other machines can reach, and authentication is off"
        assert refusal in server.output()

        keys = f"  auth: {{api-key: {{enabled: true, keys: [{K1}]}}}}\n"
        server.text = f"runtime:\n  flight: {{enabled: false}}\n{keys}"
        with server:
            server.text = "runtime: {flight: {enabled: false}}\n"
            server.write()
            refused = run_program("manage.py", "reload", "--config", str(server.file))
            assert refused.returncode == 1
            assert refusal in refused.stdout + refused.stderr
            assert server.sql("SELECT 1", None).status_code == 401


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["serve", "runserver"])
def test_c35_a_port_that_is_taken_is_named(tmp_path: Path, mode: Mode) -> None:
    with taken_port() as port:
        server = Server(tmp_path, mode=mode, port=port)
        server.write()
        server.launch()

        assert server.process.wait(60) == 1
        assert f"127.0.0.1:{server.port}" in server.output()
        assert f"process {os.getpid()} has the port. Stop that server, or change runtime.http.bind." in server.output()
        assert "Traceback" not in server.output()


def test_a_state_directory_with_something_else_in_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "orders-0000000000000000.duckdb").touch()
    (tmp_path / ".runtime").mkdir(mode=0o700)
    (tmp_path / ".runtime" / "snapshots").symlink_to(tmp_path / "mine")

    code, output = Server(tmp_path).refuses_to_start()

    assert code == 1
    assert "Traceback" not in output
    assert "snapshots is a symbolic link: remove it." in output
    assert (tmp_path / "mine" / "orders-0000000000000000.duckdb").exists()


def test_gunicorn_refuses_what_cannot_work(tmp_path: Path) -> None:
    server = Server(tmp_path, mode="gunicorn", environ={"GUNICORN_CMD_ARGS": "--preload"})

    code, output = server.refuses_to_start()

    assert code != 0
    assert "--preload" in output


@pytest.mark.exhaustive
def test_several_gunicorn_workers_share_one_state(tmp_path: Path) -> None:
    with Server(tmp_path, mode="gunicorn", environ={"GUNICORN_CMD_ARGS": "--workers 2"}) as server:
        for _ in range(20):
            assert server.rows("SELECT count(*) AS n FROM orders") == [{"n": 1000}]
            assert server.listed("/v1/datasets")[0]["status"] == "Ready"


def test_runserver_refuses_tls(tmp_path: Path, tls_files: tuple[Path, Path]) -> None:
    tls = {"enabled": True, "certificate_file": str(tls_files[0]), "key_file": str(tls_files[1])}

    server = Server(tmp_path, mode="runserver", changes={"runtime": {"tls": tls}})
    code, output = server.refuses_to_start()

    assert code == 1
    assert "tls" in output


@pytest.mark.exhaustive
def test_ipv6_is_served_in_every_mode(tmp_path: Path) -> None:
    for mode in MODES:
        port = free_port()
        changes = {"runtime": {"http": {"bind": f"[::1]:{port}"}}}
        with Server(tmp_path, mode=mode, port=port, changes=changes, host="[::1]") as server:
            assert server.rows("SELECT 1 AS a") == [{"a": 1}]

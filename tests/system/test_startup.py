"""A bad configuration stops every server before a port is bound; a good one is read once (checks C01 to C38)."""

import os
import signal
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.system.harness import (
    K1,
    K2,
    MODES,
    NO_ROOTS,
    Mode,
    Server,
    example_config,
    free_port,
    run_program,
    taken_port,
    wait_for,
)
from tests.system.processes import busy_engine_workers, family, is_alive


def yaml_text(port: int, more: str) -> str:
    return f'runtime:\n  http: {{bind: "127.0.0.1:{port}"}}\n  flight: {{enabled: false}}\n{more}'


def exhaustive_but(sample: Mode) -> list[Any]:
    """Return all modes, of which `make test` runs only *sample*."""
    return [pytest.param(mode, marks=[] if mode == sample else [pytest.mark.exhaustive]) for mode in MODES]


#: Every fault of the YAML runs against the same check in process (tests/runtimeconf); here one of each kind, and one
#: of them with every server, always.
SAMPLE = "misspelt enabled"
FAULTY = {
    SAMPLE: "  auth:\n    api-key:\n      enabeld: true\n      keys: [canary-abcdefghijklmnop]\n",
    "C07 missing secret": "  auth: {api-key: {enabled: true, keys: ['${ secrets:not_there_at_all }']}}\n",
    "C18 tag": "  auth: {api-key: {enabled: !!python/object/apply:os.system ['true'], keys: [canary]}}\n",
    "an upstream section": "models:\n  - {from: openai, name: gpt}\n",
    "a view that is no SELECT": "views:\n  - {name: v, sql: 'DELETE FROM nothing'}\n",
    "a view of an unknown table": "views:\n  - {name: v, sql: 'SELECT * FROM absent'}\n",
    "views in a circle": "views:\n  - {name: a, sql: 'SELECT * FROM b'}\n  - {name: b, sql: 'SELECT * FROM a'}\n",
    "a refresh_sql that is not allowed": (
        "datasets:\n  - from: file:orders.parquet\n    name: orders\n    acceleration:\n"
        "      refresh_sql: SELECT * FROM read_csv('x')\n"
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "more",
    [
        pytest.param(more, id=name, marks=[] if name == SAMPLE else [pytest.mark.exhaustive])
        for name, more in FAULTY.items()
    ],
)
def test_a_faulty_yaml_stops_every_server(tmp_path: Path, mode: Mode, more: str) -> None:
    port = free_port()
    server = Server(tmp_path, mode=mode, port=port, text=yaml_text(port, more))

    code, output = server.refuses_to_start()

    assert code != 0
    if mode != "gunicorn":
        assert code == 1
    assert "runtime.yaml:" in output
    assert "Traceback" not in output
    assert "canary" not in output
    assert len(output.splitlines()) <= 20


@pytest.mark.parametrize("mode", exhaustive_but("runserver"))
def test_c23_a_missing_file_stops_every_server(tmp_path: Path, mode: Mode) -> None:
    server = Server(tmp_path, mode=mode, environ={"RUNTIME_CONFIG": str(tmp_path / "absent.yaml")})

    code, output = server.refuses_to_start()

    assert code != 0
    assert "absent.yaml" in output
    assert "Traceback" not in output


@pytest.mark.exhaustive
def test_c01_c37_c38_keys_from_every_store(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "file_key").write_text(K2 + "\n")
    (tmp_path / ".env").write_text(f"DOTENV_KEY={K2}x\n")
    keys = [K1, "${ secrets:env_key }", "${ files:file_key }", "pre-${ secrets:dotenv_key }-post"]
    stores = [
        {"from": "env", "name": "env"},
        {"from": "file", "name": "files", "params": {"directory": str(tmp_path / "secrets")}},
    ]
    changes = {"runtime": {"auth": {"api-key": {"enabled": True, "keys": keys}}}, "secrets": stores}

    with Server(tmp_path, changes=changes, environ={"ENV_KEY": K1 + "-from-env"}) as server:
        for key in (K1, K1 + "-from-env", K2, f"pre-{K2}x-post"):
            assert server.rows("SELECT 1 AS a", key) == [{"a": 1}]
        for text in (*keys[1:], K2 + "\n", K2 + "x", "env_key"):
            assert server.sql("SELECT 1", text.strip()).status_code == (200 if text.strip() == K2 else 401)
        assert "4 API keys" in server.output()
        for secret in (K1, K2):
            assert secret not in server.output()


@pytest.mark.parametrize("mode", exhaustive_but("runserver"))
def test_c32_the_yaml_is_read_at_startup_only_and_sigterm_ends_with_zero(tmp_path: Path, mode: Mode) -> None:
    with Server(tmp_path, mode=mode) as server:
        document: dict[str, Any] = yaml.safe_load(server.file.read_text())
        document["runtime"]["auth"]["api-key"]["keys"] = [K2]
        server.file.write_text(yaml.safe_dump(document))
        if mode == "gunicorn":
            workers = set(family(server.process.pid)) - {server.process.pid}
            server.process.send_signal(signal.SIGHUP)
            wait_for(lambda: not any(map(is_alive, workers)), "the end of the old workers")
            wait_for(lambda: _answers(server), "new workers")

        assert server.sql("SELECT 1", K1).status_code == 200
        assert server.stop() == 0

        server.launch()
        wait_for(lambda: _answers(server), "the restarted server")
        assert server.sql("SELECT 1", K1).status_code == 401
        assert server.sql("SELECT 1", K2).status_code == 200
        assert server.stop() == 0
        assert "Traceback" not in server.output()


def _answers(server: Server) -> bool:
    try:
        return server.get("/health").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.exhaustive
def test_c30_an_open_server_on_all_addresses_warns(tmp_path: Path) -> None:
    port = free_port()
    text = f'runtime:\n  http: {{bind: "0.0.0.0:{port}"}}\n  flight: {{enabled: false}}\n'

    with Server(tmp_path, port=port, text=text) as server:
        assert "WARNING" in server.output()
        assert "authentication" in server.output().lower()
        assert server.sql("SELECT 1", None).status_code == 200


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


@pytest.mark.exhaustive
def test_a_second_runtime_on_the_same_state_is_refused(serve: Server, tmp_path: Path) -> None:
    second = Server(tmp_path, changes={"runtime": {"state_dir": str(serve.directory / ".runtime")}})

    code, output = second.refuses_to_start()

    assert code == 1
    assert f"in use by process {serve.process.pid}" in output
    assert serve.rows("SELECT count(*) AS n FROM orders") == [{"n": 1000}]


@pytest.mark.parametrize("mode", ["serve", "gunicorn"])
def test_a_state_directory_with_something_else_in_it_is_named(tmp_path: Path, mode: Mode) -> None:
    name = {"serve": "control.sock", "gunicorn": "snapshots"}[mode]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "orders-0000000000000000.duckdb").touch()
    (tmp_path / ".runtime").mkdir(mode=0o700)
    (tmp_path / ".runtime" / name).symlink_to(tmp_path / "mine")

    code, output = Server(tmp_path, mode=mode).refuses_to_start()

    assert code == 1
    assert "Traceback" not in output
    assert f"{name} is a symbolic link: remove it." in output
    assert (tmp_path / "mine" / "orders-0000000000000000.duckdb").exists()


def test_state_files_are_private_and_hold_no_key(serve: Server) -> None:
    state = serve.directory / ".runtime"

    for path in (state, *state.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
        content = path.read_bytes() if path.is_file() else b""
        assert K1.encode() not in content
        assert K2.encode() not in content
    assert K1 not in serve.output()


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
            assert server.get("/v1/datasets", headers={"X-API-Key": K1}).json()[0]["status"] == "Ready"


def test_tls_serves_https_only(tls_server: Server) -> None:
    assert tls_server.rows("SELECT 1 AS a") == [{"a": 1}]
    assert tls_server.sql("SELECT 1", None).status_code == 401
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://localhost:{tls_server.port}/health", trust_env=False, verify=NO_ROOTS)
    wait_for(lambda: "a TLS connection failed" in tls_server.output(), "the line about the failed connection")
    assert "Traceback" not in tls_server.output()


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
        config = example_config(port, runtime={"http": {"bind": f"[::1]:{port}"}})
        with Server(tmp_path, mode=mode, port=port, config=config, host="[::1]") as server:
            assert server.rows("SELECT 1 AS a") == [{"a": 1}]


@pytest.mark.exhaustive
def test_a_statement_longer_than_the_shutdown_timeout_gets_a_typed_error(tmp_path: Path) -> None:
    changes = {"runtime": {"shutdown_timeout": "4s"}}
    with Server(tmp_path, changes=changes) as server, ThreadPoolExecutor() as pool:
        endless = pool.submit(server.sql, "SELECT count(*) FROM range(1000000000000)")
        wait_for(lambda: busy_engine_workers(server.process.pid), "the statement to run")
        began = time.monotonic()

        code = server.stop()

        assert endless.result().status_code == 503
        assert endless.result().json()["code"] == "engine_unavailable"
        assert code == 0
        assert time.monotonic() - began < 30


@pytest.mark.exhaustive
@pytest.mark.parametrize("named_by", ["environment", "option"])
def test_manage_check_judges_the_sql_of_the_yaml(tmp_path: Path, named_by: str) -> None:
    file = tmp_path / "runtime.yaml"
    file.write_text("views:\n  - {name: v, sql: 'DELETE FROM x'}\n")
    option = ["--config", str(file)] if named_by == "option" else []

    in_environ = tmp_path / "absent.yaml" if option else file
    done = run_program("manage.py", "check", *option, RUNTIME_CONFIG=str(in_environ))

    assert done.returncode == 1
    assert "views[0]" in done.stderr
    assert "Traceback" not in done.stderr

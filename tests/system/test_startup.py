"""A bad configuration stops every server before a port is bound; a good one is read once (checks C01 to C38)."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
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
    PYTHON,
    REPOSITORY,
    Mode,
    Server,
    example_config,
    free_port,
    wait_for,
)
from tests.system.processes import busy_engine_workers, family, is_alive


def yaml_text(port: int, auth: str, more: str = "") -> str:
    return f'runtime:\n  http: {{bind: "127.0.0.1:{port}"}}\n  flight: {{enabled: false}}\n{auth}{more}'


AUTH = "  auth:\n    api-key:\n      enabled: {enabled}\n{keys}"

FAULTY = {
    "C02 both spellings": (
        "  auth:\n    api-key: {enabled: true, keys: [abc]}\n    api_key: {enabled: true, keys: [abc]}\n"
    ),
    "C05 no keys": AUTH.format(enabled="true", keys="      keys: []\n"),
    "C06 null item": AUTH.format(enabled="true", keys="      keys:\n        - ~\n"),
    "C07 missing secret": AUTH.format(enabled="true", keys="      keys:\n        - ${ secrets:not_there_at_all }\n"),
    "C09 unclosed": AUTH.format(enabled="true", keys="      keys:\n        - ${ secrets:x\n"),
    "C11 scalar keys": AUTH.format(enabled="true", keys="      keys: canary-abcdefghijklmnop\n"),
    "C18 tag": AUTH.format(enabled="!!python/object/apply:os.system ['true']", keys="      keys: [abc]\n"),
    "C20 duplicate enabled": AUTH.format(enabled="true\n      enabled: false", keys="      keys: [abcdefgh]\n"),
    "C22 quoted boolean": AUTH.format(enabled='"true"', keys="      keys: [canary-abcdefghijklmnop]\n"),
    "auth null": "  auth:\n",
    "api-key empty": "  auth:\n    api-key: {}\n",
    "misspelt enabled": "  auth:\n    api-key:\n      enabeld: true\n      keys: [canary-abcdefghijklmnop]\n",
}


#: Every fault runs against the same check in process (tests/runtimeconf); two of them start every server for real.
SAMPLES = ("C07 missing secret", "misspelt enabled")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "auth",
    [
        pytest.param(auth, id=name, marks=[] if name in SAMPLES else [pytest.mark.exhaustive])
        for name, auth in FAULTY.items()
    ],
)
def test_faulty_authentication_stops_every_server(tmp_path: Path, mode: Mode, auth: str) -> None:
    port = free_port()
    server = Server(tmp_path, mode=mode, port=port, text=yaml_text(port, auth))

    code, output = server.refuses_to_start()

    assert code != 0
    if mode != "gunicorn":
        assert code == 1
    assert "runtime.yaml:" in output
    assert "Traceback" not in output
    assert "canary" not in output
    assert len(output.splitlines()) <= 20


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "more",
    [
        pytest.param("views:\n  - {name: v, sql: 'DELETE FROM nothing'}\n", id="view not a SELECT"),
        pytest.param("views:\n  - {name: v, sql: 'SELECT * FROM absent'}\n", id="view of an unknown table"),
        pytest.param(
            "views:\n  - {name: a, sql: 'SELECT * FROM b'}\n  - {name: b, sql: 'SELECT * FROM a'}\n", id="view cycle"
        ),
        pytest.param(
            "datasets:\n  - from: file:orders.parquet\n    name: orders\n    acceleration:\n"
            "      refresh_sql: SELECT * FROM read_csv('x')\n",
            id="refresh_sql not allowed",
        ),
        pytest.param("models:\n  - {from: openai, name: gpt}\n", id="upstream part"),
    ],
)
def test_other_faults_stop_every_server(tmp_path: Path, mode: Mode, more: str) -> None:
    port = free_port()
    server = Server(tmp_path, mode=mode, port=port, text=yaml_text(port, "", more))

    code, output = server.refuses_to_start()

    assert code != 0
    assert "runtime.yaml" in output
    assert "Traceback" not in output


@pytest.mark.parametrize("mode", MODES)
def test_c23_missing_file_stops_every_server(tmp_path: Path, mode: Mode) -> None:
    server = Server(tmp_path, mode=mode, environ={"RUNTIME_CONFIG": str(tmp_path / "absent.yaml")})

    code, output = server.refuses_to_start()

    assert code != 0
    assert "absent.yaml" in output
    assert "Traceback" not in output


@pytest.mark.exhaustive
def test_c01_c37_c38_keys_from_every_store(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "file_key").write_text(K2 + "\n")
    (tmp_path / ".env").write_text(f"DOTENV_KEY={K2}x\n")
    keys = [K1, "${ secrets:env_key }", "${ files:file_key }", "pre-${ secrets:dotenv_key }-post"]
    config = example_config(port, runtime={"auth": {"api-key": {"enabled": True, "keys": keys}}})
    config["secrets"] = [
        {"from": "env", "name": "env"},
        {"from": "file", "name": "files", "params": {"directory": str(tmp_path / "secrets")}},
    ]

    with Server(tmp_path, port=port, config=config, environ={"ENV_KEY": K1 + "-from-env"}) as server:
        for key in (K1, K1 + "-from-env", K2, f"pre-{K2}x-post"):
            assert server.rows("SELECT 1 AS a", key) == [{"a": 1}]
        for text in (*keys[1:], K2 + "\n", K2 + "x", "env_key"):
            assert server.sql("SELECT 1", text.strip()).status_code == (200 if text.strip() == K2 else 401)
        assert "4 API keys" in server.output()
        for secret in (K1, K2):
            assert secret not in server.output()


SOURCES = ("1234567890", "0123", "1_000", "1:30", "yes", "1.10", "0x1F", "2024-01-01", "~x")


@pytest.fixture(scope="module")
def keyed_by_sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A runtime whose keys are scalars that YAML would read as something else."""
    port = free_port()
    keys = "".join(f"        - {source}\n" for source in SOURCES)
    text = yaml_text(port, AUTH.format(enabled="true", keys=f"      keys:\n{keys}"))
    with Server(tmp_path_factory.mktemp("sources"), port=port, text=text) as server:
        yield server


@pytest.mark.parametrize("source", SOURCES)
def test_c13_c14_keys_are_source_text(keyed_by_sources: Server, source: str) -> None:
    assert keyed_by_sources.sql("SELECT 1", source).status_code == 200


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "value", ["83", "1000", "90", "True", "1.1", "31", "true", "1", "2024-01-01T00:00:00Z", "None"]
)
def test_c13_c14_what_yaml_would_read_is_no_key(keyed_by_sources: Server, value: str) -> None:
    assert keyed_by_sources.sql("SELECT 1", value).status_code == 401


@pytest.mark.parametrize(
    "mode", ["serve", *(pytest.param(mode, marks=pytest.mark.exhaustive) for mode in MODES if mode != "serve")]
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
def test_c35_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        server = Server(tmp_path, port=port)
        server.write()
        server.launch()

        assert server.process.wait(60) == 1
        assert f"127.0.0.1:{port}" in server.output()
        assert str(os.getpid()) in server.output()
        assert "Traceback" not in server.output()


@pytest.mark.exhaustive
def test_a_second_runtime_on_the_same_state_is_refused(serve: Server, tmp_path: Path) -> None:
    port = free_port()
    config = example_config(port)
    config["runtime"]["state_dir"] = str(serve.directory / ".runtime")
    second = Server(tmp_path, port=port, config=config)

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


def test_state_files_are_private(serve: Server) -> None:
    state = serve.directory / ".runtime"

    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    for path in state.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_no_key_in_any_file_or_process_list(serve: Server) -> None:
    for path in (serve.directory / ".runtime").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
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


def test_tls_serves_https_only(tls_server: tuple[Server, Path]) -> None:
    server, _ = tls_server

    assert server.rows("SELECT 1 AS a") == [{"a": 1}]
    assert server.sql("SELECT 1", None).status_code == 401
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://localhost:{server.port}/health", trust_env=False, verify=NO_ROOTS)
    wait_for(lambda: "a TLS connection failed" in server.output(), "the line about the failed connection")
    assert "Traceback" not in server.output()


def test_runserver_refuses_tls(tmp_path: Path, tls_files: tuple[Path, Path]) -> None:
    port = free_port()
    tls = {"enabled": True, "certificate_file": str(tls_files[0]), "key_file": str(tls_files[1])}

    server = Server(tmp_path, mode="runserver", port=port, config=example_config(port, runtime={"tls": tls}))
    code, output = server.refuses_to_start()

    assert code == 1
    assert "tls" in output


@pytest.mark.exhaustive
def test_runserver_names_who_has_its_port(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        server = Server(tmp_path, mode="runserver", port=holder.getsockname()[1])
        server.write()
        server.launch()
        code = server.process.wait(60)

    assert code == 1
    assert f"process {os.getpid()} has the port. Stop that server, or change runtime.http.bind." in server.output()


@pytest.fixture(scope="module")
def with_options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A runtime with all options of `serve`, and another YAML in its environment that would stop it."""
    directory = tmp_path_factory.mktemp("options")
    (directory / "other.yaml").write_text("runtime: {auth: }")
    options = ("--config", str(directory / "runtime.yaml"), "--ready-message", "now ask something")
    with Server(directory, environ={"RUNTIME_CONFIG": str(directory / "other.yaml")}, arguments=options) as server:
        yield server


def test_serve_takes_the_yaml_by_an_option(with_options: Server) -> None:
    assert with_options.rows("SELECT 1 AS a") == [{"a": 1}]
    assert with_options.sql("SELECT 1", None).status_code == 401


@pytest.mark.exhaustive
def test_ipv6_is_served_in_every_mode(tmp_path: Path) -> None:
    for mode in MODES:
        port = free_port()
        config = example_config(port, runtime={"http": {"bind": f"[::1]:{port}"}})
        with Server(tmp_path, mode=mode, port=port, config=config, host="[::1]") as server:
            assert server.rows("SELECT 1 AS a") == [{"a": 1}]


@pytest.mark.exhaustive
def test_a_statement_longer_than_the_shutdown_timeout_gets_a_typed_error(tmp_path: Path) -> None:
    port = free_port()
    config = example_config(port, runtime={"shutdown_timeout": "4s"})
    with Server(tmp_path, port=port, config=config) as server, ThreadPoolExecutor() as pool:
        endless = pool.submit(server.sql, "SELECT count(*) FROM range(1000000000000)")
        wait_for(lambda: statements_running(server), "the statement to run")
        began = time.monotonic()

        code = server.stop()

        assert endless.result().status_code == 503
        assert endless.result().json()["code"] == "engine_unavailable"
        assert code == 0
        assert time.monotonic() - began < 30


def statements_running(server: Server) -> bool:
    """Say whether an engine worker runs one."""
    return bool(busy_engine_workers(server.process.pid))


def test_serve_says_when_it_is_ready(with_options: Server) -> None:
    wait_for(lambda: "now ask something" in with_options.output(), "the message")
    assert "Ready     after" in with_options.output()


@pytest.fixture(scope="module")
def signalled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A runtime that gets signals, and still ends as it should."""
    with Server(tmp_path_factory.mktemp("signalled")) as server:
        yield server
        assert server.stop() == 0


def is_pending(pid: int, number: signal.Signals) -> bool:
    """Say whether a signal to process *pid* waits to be taken."""
    (mask,) = re.findall(r"^ShdPnd:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


@pytest.mark.parametrize("name", ["SIGHUP", "SIGTTIN", "SIGTTOU", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCHLD"])
def test_signals_that_mean_nothing_here_change_nothing(signalled: Server, name: str) -> None:
    line = "SIGHUP has no effect"
    said = signalled.output().count(line)

    # The parent takes its signals one by one: what it says of the last one comes after all that the first has done.
    sent = (signal.Signals[name], signal.SIGHUP)
    for number in sent:
        signalled.process.send_signal(number)
        wait_for(lambda taken=number: not is_pending(signalled.process.pid, taken), "it to be taken")  # type: ignore[misc]
    wait_for(lambda: signalled.output().count(line) == said + sent.count(signal.SIGHUP), "the parent's next turn")

    assert _answers(signalled)
    assert signalled.sql("SELECT 1", K1).status_code == 200


@pytest.mark.exhaustive
@pytest.mark.parametrize("named_by", ["environment", "option"])
def test_manage_check_judges_the_sql_of_the_yaml(tmp_path: Path, named_by: str) -> None:
    file = tmp_path / "runtime.yaml"
    file.write_text("views:\n  - {name: v, sql: 'DELETE FROM x'}\n")
    option = ["--config", str(file)] if named_by == "option" else []

    done = subprocess.run(
        [PYTHON, "manage.py", "check", *option],
        cwd=REPOSITORY,
        env={**os.environ, "RUNTIME_CONFIG": str(tmp_path / "absent.yaml") if option else str(file)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 1
    assert "views[0]" in done.stderr
    assert "Traceback" not in done.stderr
